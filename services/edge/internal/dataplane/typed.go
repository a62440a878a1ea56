package dataplane

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/haproxytech/client-native/v5/models"

	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

// readdress changes servers' addresses alone: the API tells HAProxy without a reload, or asks for one where it could not.
func (c *session) readdress(ctx context.Context, version int64, want *layout, todo *changes) (string, int64, error) {
	reload := ""
	for _, name := range sortedKeys(todo.addresses) {
		for _, i := range todo.addresses[name] {
			got, err := c.putServer(ctx, name, i, want.routes[name], versionQuery(version))
			if err != nil {
				return "", 0, err
			}
			version++
			if id := got.reload(); id != "" {
				reload = id
			}
		}
	}
	return reload, version, nil
}

// transact makes a few changes in one transaction. One that is not committed is deleted.
func (c *session) transact(ctx context.Context, was *snapshot, want *layout, todo *changes) (reload string, version int64, err error) {
	got, err := c.do(ctx, call{method: http.MethodPost, path: "/transactions", query: versionQuery(was.version)})
	if err != nil {
		return "", 0, err
	}
	var tx models.Transaction
	if err := got.decode(&tx); err != nil {
		return "", 0, err
	}
	path := "/transactions/" + url.PathEscape(tx.ID)
	defer func() {
		if err != nil {
			c.abandon(ctx, path)
		}
	}()
	if err := c.fill(ctx, was, want, todo, url.Values{"transaction_id": {tx.ID}}); err != nil {
		return "", 0, err
	}
	got, err = c.do(ctx, call{method: http.MethodPut, path: path, timeout: writeTimeout})
	if err != nil {
		return "", 0, err
	}
	return got.reload(), was.version + 1, nil
}

func (c *session) abandon(ctx context.Context, path string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = c.do(ctx, call{method: http.MethodDelete, path: path}) // an outdated one is gone already
}

func (c *session) fill(ctx context.Context, was *snapshot, want *layout, todo *changes, query url.Values) error {
	for i := len(todo.dropRules) - 1; i >= 0; i-- {
		if err := c.dropRule(ctx, todo.dropRules[i], query); err != nil {
			return err
		}
	}
	for _, name := range todo.drop {
		if _, err := c.do(ctx, call{method: http.MethodDelete, path: "/configuration/backends/" + name, query: query}); err != nil {
			return err
		}
	}
	for _, name := range todo.add {
		if err := c.addBackend(ctx, name, want.routes[name], query); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(todo.addresses) {
		for _, i := range todo.addresses[name] {
			if _, err := c.putServer(ctx, name, i, want.routes[name], query); err != nil {
				return err
			}
		}
	}
	at := len(was.rules) - len(todo.dropRules)
	for i, line := range todo.addRules {
		if err := c.addRule(ctx, line, at+i, query); err != nil {
			return err
		}
	}
	return nil
}

func (c *session) addBackend(ctx context.Context, name string, r edge.Route, query url.Values) error {
	err := c.post(ctx, "/configuration/backends", query, &models.Backend{Name: name, From: routeDefaults})
	if err != nil {
		return err
	}
	for i := range r.Targets {
		path, q := c.serversOf(name, query)
		if err := c.post(ctx, path, q, server(i, r)); err != nil {
			return err
		}
	}
	return nil
}

func (c *session) putServer(ctx context.Context, backend string, i int, r edge.Route, query url.Values) (*reply, error) {
	path, q := c.serversOf(backend, query)
	body, err := json.Marshal(server(i, r))
	if err != nil {
		return nil, fmt.Errorf("write a server down: %w", err)
	}
	return c.do(ctx, call{method: http.MethodPut, path: path + "/" + serverName(i), query: q, kind: asJSON, body: body, timeout: writeTimeout})
}

func (c *session) post(ctx context.Context, path string, query url.Values, model any) error {
	body, err := json.Marshal(model)
	if err != nil {
		return fmt.Errorf("write a change down: %w", err)
	}
	_, err = c.do(ctx, call{method: http.MethodPost, path: path, query: query, kind: asJSON, body: body, timeout: writeTimeout})
	return err
}

func server(i int, r edge.Route) *models.Server {
	port := int64(r.Targets[i].Port())
	s := &models.Server{Name: serverName(i), Address: r.Targets[i].Addr().String(), Port: &port}
	if r.ProxyProtocol {
		s.SendProxyV2 = models.ServerParamsSendProxyV2Enabled
	}
	return s
}

// serversOf is where a backend's servers are.
func (c *session) serversOf(backend string, query url.Values) (string, url.Values) {
	if c.v3() {
		return "/configuration/backends/" + backend + "/servers", query
	}
	return "/configuration/servers", with(query, "backend", backend)
}

func (c *session) dropRule(ctx context.Context, index int, query url.Values) error {
	path, query := c.ruleAt(index, query)
	_, err := c.do(ctx, call{method: http.MethodDelete, path: path, query: query})
	return err
}

// addRule appends one of our rules at index.
func (c *session) addRule(ctx context.Context, line string, index int, query url.Values) error {
	words := wordsOf(line)
	at := int64(index)
	model := &models.BackendSwitchingRule{Name: words[1], Cond: words[2], CondTest: joined(words[3:]), Index: &at}
	if c.v3() {
		path, query := c.ruleAt(index, query)
		return c.post(ctx, path, query, struct {
			Name     string `json:"name"`
			Cond     string `json:"cond"`
			CondTest string `json:"cond_test"`
		}{model.Name, model.Cond, model.CondTest})
	}
	return c.post(ctx, "/configuration/backend_switching_rules", with(query, "frontend", frontendName), model)
}

func (c *session) ruleAt(index int, query url.Values) (string, url.Values) {
	if c.v3() {
		return "/configuration/frontends/" + frontendName + "/backend_switching_rules/" + strconv.Itoa(index), query
	}
	return "/configuration/backend_switching_rules/" + strconv.Itoa(index), with(query, "frontend", frontendName)
}

func with(query url.Values, name, value string) url.Values {
	out := url.Values{name: {value}}
	for k, v := range query {
		out[k] = v
	}
	return out
}
