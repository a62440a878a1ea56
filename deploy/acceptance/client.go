package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
)

// client speaks to the gateway the way a person's script would: JSON over HTTP and the session cookie.
type client struct {
	base string // http://host:port
	http *http.Client
}

// problem is an application/problem+json answer.
type problem struct {
	Status  int    `json:"status"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
	Action  string `json:"action"`
	TraceID string `json:"trace_id"`
}

func (p *problem) Error() string {
	text := fmt.Sprintf("HTTP %d %s: %s", p.Status, p.Code, p.Detail)
	if p.Action != "" {
		text += " (" + p.Action + ")"
	}
	return text
}

func newClient(base string) (*client, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	return &client{base: base, http: &http.Client{Jar: jar, Timeout: 30 * time.Second}}, nil
}

// call sends in as JSON (nil: no body) and decodes the answer into out (nil: ignored). A non-2xx answer is a *problem.
func (c *client) call(ctx context.Context, method, path string, in, out any) error {
	body, err := c.raw(ctx, method, path, in)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%s %s answered something else than the JSON expected: %w", method, path, err)
	}
	return nil
}

func (c *client) raw(ctx context.Context, method, path string, in any) ([]byte, error) {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		p := &problem{}
		if json.Unmarshal(answer, p) != nil || p.Code == "" {
			p = &problem{Code: "unexpected_body", Detail: strings.TrimSpace(string(answer))}
		}
		p.Status = response.StatusCode
		return nil, fmt.Errorf("%s %s: %w", method, strings.SplitN(path, "?", 2)[0], p)
	}
	return answer, nil
}

func (c *client) health(ctx context.Context) error {
	var health struct {
		Status string `json:"status"`
	}
	if err := c.call(ctx, http.MethodGet, "/healthz", nil, &health); err != nil {
		return err
	}
	if health.Status != "ok" {
		return fmt.Errorf("/healthz says %q", health.Status)
	}
	return nil
}

func (c *client) ready(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, "/readyz", nil, nil)
}

func (c *client) logIn(ctx context.Context, email, password string) error {
	return c.call(ctx, http.MethodPost, "/api/auth/login", map[string]string{"email": email, "password": password}, nil)
}

func (c *client) setJoinBaseURL(ctx context.Context, joinBaseURL string) error {
	return c.call(ctx, http.MethodPut, "/api/admin/settings", map[string]any{
		"settings": map[string]string{"join_base_url": joinBaseURL, "public_base_url": joinBaseURL},
	}, nil)
}

func (c *client) createCluster(ctx context.Context, request clusterv1.CreateRequest) (clusterv1.Cluster, error) {
	var answer struct {
		Cluster clusterv1.Cluster `json:"cluster"`
	}
	err := c.call(ctx, http.MethodPost, "/api/console/clusters", request, &answer)
	return answer.Cluster, err
}

func (c *client) clusters(ctx context.Context) ([]clusterv1.Cluster, error) {
	var answer struct {
		Clusters []clusterv1.Cluster `json:"clusters"`
	}
	err := c.call(ctx, http.MethodGet, "/api/console/clusters", nil, &answer)
	return answer.Clusters, err
}

func (c *client) cluster(ctx context.Context, id string) (clusterv1.Cluster, error) {
	var answer struct {
		Cluster clusterv1.Cluster `json:"cluster"`
	}
	err := c.call(ctx, http.MethodGet, "/api/console/clusters/"+id, nil, &answer)
	return answer.Cluster, err
}

func (c *client) deleteCluster(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/api/console/clusters/"+id, nil, nil)
}

func (c *client) events(ctx context.Context, id string) ([]clusterv1.Event, error) {
	var answer struct {
		Events []clusterv1.Event `json:"events"`
	}
	err := c.call(ctx, http.MethodGet, "/api/console/clusters/"+id+"/events", nil, &answer)
	return answer.Events, err
}

func (c *client) kubeconfig(ctx context.Context, id string) ([]byte, error) {
	return c.raw(ctx, http.MethodGet, "/api/console/clusters/"+id+"/kubeconfig", nil)
}

func (c *client) joinToken(ctx context.Context, id string, ttl time.Duration) (tokenv1.CreateResponse, error) {
	var answer tokenv1.CreateResponse
	err := c.call(ctx, http.MethodPost, "/api/console/clusters/"+id+"/join-token",
		map[string]int64{"ttl_seconds": int64(ttl.Seconds())}, &answer)
	return answer, err
}

func (c *client) nodes(ctx context.Context, id string) ([]nodev1.Node, error) {
	var answer struct {
		Nodes []nodev1.Node `json:"nodes"`
	}
	err := c.call(ctx, http.MethodGet, "/api/console/nodes?cluster_id="+id, nil, &answer)
	return answer.Nodes, err
}

// waitReady polls a cluster until it is ready; a cluster in error ends the wait with its reason and its timeline.
func (c *client) waitReady(ctx context.Context, id string) (clusterv1.Cluster, error) {
	var last clusterv1.Cluster
	err := poll(ctx, 100*time.Millisecond, func() (bool, error) {
		var err error
		if last, err = c.cluster(ctx, id); err != nil {
			return false, err
		}
		if last.Status == clusterv1.Failed {
			return false, errors.New(c.explain(ctx, last))
		}
		return last.Status == clusterv1.Ready, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not ready in time: %s", c.explain(context.WithoutCancel(ctx), last))
	}
	return last, err
}

func (c *client) explain(ctx context.Context, cluster clusterv1.Cluster) string {
	text := fmt.Sprintf("cluster %s is %s", cluster.ID, cluster.Status)
	if cluster.Reason != nil {
		text += fmt.Sprintf(": %s: %s; %s", cluster.Reason.Code, cluster.Reason.Message, cluster.Reason.Action)
	}
	events, err := c.events(ctx, cluster.ID)
	if err != nil {
		return text
	}
	for _, event := range events {
		text += fmt.Sprintf("\n    %s %s %s: %s", event.At.Format(time.TimeOnly), event.Level, event.Code, event.Message)
	}
	return text
}

// poll calls done at once and then every interval until it is true, fails, or ctx ends.
func poll(ctx context.Context, interval time.Duration, done func() (bool, error)) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		ok, err := done()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
