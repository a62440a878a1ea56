package app_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

const edgeStatus = "/api/admin/edge"

func exampleEdge() edgev1.StatusResponse {
	at := example().CreatedAt
	return edgev1.StatusResponse{
		Provider: "haproxy", BindAddr: ":443", DataPlane: edgev1.DataPlane{Kind: "embedded", API: "v2", HAProxy: "2.6.12", Mode: "rules"},
		LastSync: &at, LastReload: &edgev1.Reload{At: at, Message: "bind: address in use"}, Workers: []edgev1.Worker{{PID: 4711, Old: true, UptimeSeconds: 9}},
		Count: edgev1.Count{Routes: 2, Serving: 1, Failed: 1, Sessions: 3}, More: true,
		Routes: []edgev1.Route{
			{Domain: "console.example.com", State: clusterv1.EdgeServing, Since: at, SessionsTotal: 7, BytesIn: 1 << 40, BytesOut: 2, Errors: 1,
				Servers: []edgev1.Server{{Address: "192.0.2.1:8443", Up: true}}},
			{ClusterID: clusterID, Domain: "demo.example.com", State: clusterv1.EdgeFailed, Since: at,
				Reason: &clusterv1.Reason{Code: "probe_failed", Message: "nobody answers", Action: "look at the node"}},
		},
		Problem: &clusterv1.Reason{Code: "haproxy_refused", Message: "HAProxy does not accept the configuration"},
	}
}

// What the edge service says comes through as it is, with lists that are never null.
func TestEdgeStatus(t *testing.T) {
	w := start(t)
	w.backend.set(func(b *backend) { b.edge = exampleEdge() })
	a := w.call("GET", edgeStatus, "?after=api.example.com", "")
	var got edgev1.StatusResponse
	a.json(t, &got)
	want := exampleEdge()
	if a.status != 200 || got.Count != want.Count || got.DataPlane != want.DataPlane || !got.More || *got.Problem != *want.Problem || *got.LastReload != *want.LastReload ||
		got.Workers[0] != want.Workers[0] || got.Routes[0].BytesIn != 1<<40 || got.Routes[0].Servers[0] != want.Routes[0].Servers[0] || got.Routes[1].ClusterID != clusterID ||
		*got.Routes[1].Reason != *want.Routes[1].Reason || !got.LastSync.Equal(*want.LastSync) {
		t.Errorf("%d %s", a.status, a.text)
	}
	if !strings.Contains(a.text, `"servers":[]`) {
		t.Errorf("a list is null in %s", a.text)
	}
	w.backend.set(func(b *backend) {
		if len(b.edges) != 1 || b.edges[0].After != "api.example.com" {
			t.Errorf("the service was asked %+v", b.edges)
		}
		b.edge, b.edges = edgev1.StatusResponse{}, nil
	})
	if a := w.call("GET", edgeStatus, "", ""); a.status != 200 || !strings.Contains(a.text, `"workers":[]`) || !strings.Contains(a.text, `"routes":[]`) {
		t.Errorf("%d %s", a.status, a.text)
	}
	w.backend.set(func(b *backend) { b.err = fault.New(fault.Unavailable, "data_plane_unreachable", "nobody answers") })
	w.call("GET", edgeStatus, "", "").expect(t, 503, "data_plane_unreachable")
}

func TestEdgeStatusOfBadPages(t *testing.T) {
	w := start(t)
	for _, query := range []string{
		"?after=", "?after=A.example.com", "?after=a..%2F", "?after=a%00b", "?after=" + strings.Repeat("a", 254), "?after=.a", "?after=a.", "?after=a&after=b", "?after=%D1%84.example.com", "?after=*.example.com",
	} {
		a := w.call("GET", edgeStatus, query, "")
		a.expect(t, 400, "parameter_invalid")
		if a.problem.Field != "after" {
			t.Errorf("%s: field %q", query, a.problem.Field)
		}
	}
	w.call("GET", edgeStatus, "?before=a", "").expect(t, 400, "query_parameter_unknown")
	w.call("GET", edgeStatus, "?after="+strings.Repeat("a", 253), "").expect(t, 200, "")
	w.backend.set(func(b *backend) {
		if len(b.edges) != 1 {
			t.Errorf("the service was asked %d times", len(b.edges))
		}
	})
}

func TestEdgeAbsent(t *testing.T) {
	w := start(t, withoutServices)
	w.eventually(func() bool {
		return strings.Contains(w.call("GET", "/readyz", "", "").text, `{"name":"nats","state":"ok","required":true}`)
	})
	begin := time.Now()
	if a := w.call("GET", edgeStatus, "", ""); a.status != 503 || a.header.Get("Retry-After") == "" || time.Since(begin) > edgev1.Status.Timeout {
		t.Errorf("%d after %v: %s", a.status, time.Since(begin), a.text)
	}
}
