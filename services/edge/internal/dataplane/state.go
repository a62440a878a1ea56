package dataplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/haproxytech/client-native/v5/models"

	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

// State implements edge.Plane. Where HAProxy does not run it has no workers and no traffic.
func (c *Client) State(ctx context.Context) (edge.PlaneState, error) {
	var out edge.PlaneState
	s, err := c.session(ctx)
	if err == nil {
		out, err = s.state(ctx)
	}
	if err != nil {
		return edge.PlaneState{}, c.explain(ctx, err)
	}
	return out, nil
}

func (c *session) state(ctx context.Context) (edge.PlaneState, error) {
	out := edge.PlaneState{API: c.api, Backends: map[string]edge.Traffic{}}
	var err error
	if out.Mode, err = c.mode(ctx); err != nil {
		return out, err
	}
	if out.LastReload, err = c.lastReload(ctx); err != nil {
		return out, err
	}
	var infos models.ProcessInfos
	if err := c.oneOrMore(ctx, "/runtime/info", nil, smallAnswer, &infos); silent(err) {
		return out, nil
	} else if err != nil {
		return out, err
	}
	for _, p := range infos {
		if p == nil || p.Info == nil || p.Info.Pid == nil {
			continue
		}
		w := edge.Worker{PID: *p.Info.Pid, Old: p.Info.Stopping != nil && *p.Info.Stopping != 0}
		if p.Info.Uptime != nil {
			w.Uptime = time.Duration(*p.Info.Uptime) * time.Second
		}
		out.Workers = append(out.Workers, w)
		if !w.Old || out.HAProxy == "" {
			out.HAProxy = p.Info.Version
		}
	}
	return out, c.traffic(ctx, out.Backends)
}

// silent tells that the API is there and HAProxy is not.
func silent(err error) bool {
	var refused *apiError
	return errors.As(err, &refused) && (refused.status >= 500 || refused.status == 404)
}

// oneOrMore reads what v2 gives as a list, one per runtime socket, and v3 as one.
func (c *session) oneOrMore(ctx context.Context, path string, query url.Values, limit int64, into any) error {
	var raw json.RawMessage
	if err := c.get(ctx, path, query, limit, &raw); err != nil {
		return err
	}
	if raw = bytes.TrimSpace(raw); len(raw) > 0 && raw[0] == '{' {
		raw = append(append([]byte{'['}, raw...), ']')
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return &strangeError{why: "its answer is not the JSON that it should be"}
	}
	return nil
}

func (c *session) mode(ctx context.Context) (string, error) {
	c.seen.Lock()
	mode := c.seen.mode
	c.seen.Unlock()
	if mode != "" {
		return mode, nil
	}
	now, err := c.read(ctx)
	switch {
	case err != nil:
		return "", err
	case now.mapPath != "":
		return modeMap, nil
	}
	return modeRules, nil
}

func (c *session) lastReload(ctx context.Context) (*edge.Reload, error) {
	var all models.Reloads
	if err := c.get(ctx, "/reloads", nil, 8<<20, &all); err != nil {
		return nil, err
	}
	var last *models.Reload
	for _, r := range all {
		if r != nil && r.Status != models.ReloadStatusInProgress && (last == nil || r.ReloadTimestamp >= last.ReloadTimestamp) {
			last = r
		}
	}
	if last == nil {
		return nil, nil
	}
	out := &edge.Reload{At: time.Unix(last.ReloadTimestamp, 0).UTC(), OK: last.Status == models.ReloadStatusSucceeded}
	if !out.OK {
		out.Message = words(last.Response)
	}
	return out, nil
}

// traffic fills in what HAProxy counts for the backends of ours.
func (c *session) traffic(ctx context.Context, into map[string]edge.Traffic) error {
	for _, kind := range []string{models.NativeStatTypeBackend, models.NativeStatTypeServer} {
		var all models.NativeStats
		err := c.oneOrMore(ctx, "/stats/native", url.Values{"type": {kind}}, statsAnswer, &all)
		if silent(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, process := range all {
			if process == nil {
				continue
			}
			for _, one := range process.Stats {
				if one != nil && one.Stats != nil {
					count(into, kind, one)
				}
			}
		}
	}
	return nil
}

func count(into map[string]edge.Traffic, kind string, one *models.NativeStat) {
	name := one.Name
	if kind == models.NativeStatTypeServer {
		name = one.BackendName
	}
	id, ok := strings.CutPrefix(name, backendPrefix)
	if !ok || !routeID.MatchString(id) {
		return
	}
	s, t := one.Stats, into[id]
	if kind == models.NativeStatTypeServer {
		addr, err := netip.ParseAddrPort(addressOf(s.Addr))
		if err == nil {
			t.Servers = append(t.Servers, edge.Server{Address: addr, Up: strings.HasPrefix(s.Status, "UP") || s.Status == "no check"})
		}
	} else {
		t.Sessions += number(s.Scur)
		t.SessionsTotal += number(s.Stot)
		t.BytesIn += number(s.Bin)
		t.BytesOut += number(s.Bout)
		t.Errors += number(s.Econ) + number(s.Eresp)
	}
	into[id] = t
}

func number(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
