package dataplane

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
	"github.com/kubebyon/kubebyon/services/edge/internal/haproxy"
)

// plane is a HAProxy and its API, without anything of ours.
type plane struct {
	url       string
	transport http.RoundTripper // nil: the network
	bind      netip.AddrPort
}

// client is one of ours on the plane.
func (p plane) client(tb testing.TB, edit ...func(*Options)) *Client {
	tb.Helper()
	opts := Options{URL: p.url, Transport: p.transport, Log: logger(tb), Settings: Settings{Bind: []string{p.bind.String()}, MapAbove: 1000}}
	for _, e := range edit {
		e(&opts)
	}
	c, err := New(opts)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// other is somebody else who uses the API.
func (p plane) other(tb testing.TB) *session {
	tb.Helper()
	s, err := p.client(tb).session(context.WithoutCancel(tb.Context())) // also in a Cleanup
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// edit changes the whole text, as somebody else would, and waits until HAProxy runs with it.
func (p plane) edit(tb testing.TB, change func(text string) string) {
	tb.Helper()
	s, ctx := p.other(tb), context.WithoutCancel(tb.Context())
	for attempt := 1; ; attempt++ {
		now, err := s.read(ctx)
		if err != nil {
			tb.Fatal(err)
		}
		reload, _, err := s.postRaw(ctx, now.version, change(now.text), false)
		if err == nil && reload != "" {
			err = s.follow(ctx, reload)
		}
		if err == nil {
			return
		}
		if !mends(err) || attempt > 20 {
			tb.Fatalf("%v\n%s", err, change(now.text))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (p plane) text(tb testing.TB) string {
	tb.Helper()
	now, err := p.other(tb).read(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return now.text
}

// apply applies and holds what it did.
func apply(tb testing.TB, c *Client, changed, reloaded bool, routes ...edge.Route) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*patience)
	defer cancel()
	got, err := c.Apply(ctx, routes)
	if err != nil {
		tb.Fatal(err)
	}
	if got.Changed != changed || got.Reloaded != reloaded {
		tb.Fatalf("applied: %+v, want changed %tb, reloaded %t", got, changed, reloaded)
	}
}

// fails applies and holds the fault.
func fails(tb testing.TB, c *Client, code string, routes ...edge.Route) *fault.Error {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*patience)
	defer cancel()
	_, err := c.Apply(ctx, routes)
	if err == nil {
		tb.Fatalf("it was applied; want %s", code)
	}
	got := fault.From(err)
	if got.Code != code || got.Kind != fault.Unavailable {
		tb.Fatalf("fault %s %s, want %s: %v", got.Kind, got.Code, code, err)
	}
	if got.Action == "" || strings.ContainsAny(got.Message, "\n\r") || len(got.Message) > 600 {
		tb.Fatalf("not for people to read: %+v", got)
	}
	return got
}

func embedded(tb testing.TB) plane {
	tb.Helper()
	return plane{url: "http://embedded", transport: InProcess(startEmbedded(tb, "")), bind: freePort(tb)}
}

func startEmbedded(tb testing.TB, binary string) http.Handler {
	tb.Helper()
	p, err := haproxy.New(haproxy.Options{
		Dir: shortDir(tb), Binary: binary, Grace: 100 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("the embedded plane: %v", err)
		}
	})
	return p.Handler()
}

// external is the Data Plane API that the environment names. Each test begins, and all end, with the configuration that it had at first.
func external(tb testing.TB) func(tb testing.TB) plane {
	tb.Helper()
	tb.Helper()
	bind, err := netip.ParseAddrPort(os.Getenv("KUBEBYON_TEST_DATAPLANE_BIND"))
	if err != nil {
		tb.Fatalf("KUBEBYON_TEST_DATAPLANE_BIND: %v", err)
	}
	p := plane{url: os.Getenv("KUBEBYON_TEST_DATAPLANE_URL"), bind: bind}
	base := merge(p.text(tb), nil)
	tb.Cleanup(func() { p.edit(tb, func(string) string { return base }) })
	return func(tb testing.TB) plane {
		tb.Helper()
		p.edit(tb, func(string) string { return base })
		return p
	}
}

// TestPlanes runs the contract against every plane that there is.
func TestPlanes(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { t.Parallel(); contract(t, embedded) })
	t.Run("v3", func(t *testing.T) {
		t.Parallel()
		contract(t, func(tb testing.TB) plane {
			tb.Helper()
			p := embedded(tb)
			p.transport = InProcess(asV3{p.transport})
			return p
		})
	})
	if os.Getenv("KUBEBYON_TEST_DATAPLANE_URL") != "" {
		t.Run("external", func(t *testing.T) { contract(t, external(t)) })
	}
}

// asV3 is the embedded plane in the words of version 3, as those of the real one that the contract was run against.
type asV3 struct{ v2 http.RoundTripper }

func (a asV3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/v3")
	if !ok {
		http.Error(w, `{"code":404,"message":"path `+r.URL.Path+` was not found"}`, http.StatusNotFound)
		return
	}
	body, _ := io.ReadAll(r.Body)
	q := r.URL.Query()
	parts := strings.Split(strings.TrimPrefix(rest, "/services/haproxy/configuration/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "backends" && parts[2] == "servers":
		q.Set("backend", parts[1])
		rest = "/services/haproxy/configuration/" + strings.Join(parts[2:], "/")
	case len(parts) == 4 && parts[0] == "frontends" && parts[2] == "backend_switching_rules":
		q.Set("frontend", parts[1])
		rest = "/services/haproxy/configuration/backend_switching_rules"
		if r.Method == http.MethodPost {
			var rule map[string]any
			if json.Unmarshal(body, &rule) != nil || rule["index"] != nil {
				http.Error(w, `{"code":400,"message":"the index stands in the path"}`, http.StatusBadRequest)
				return
			}
			rule["index"] = json.Number(parts[3])
			body, _ = json.Marshal(rule)
		} else {
			rest += "/" + parts[3]
		}
	case parts[0] == "servers" || parts[0] == "backend_switching_rules":
		http.Error(w, `{"code":404,"message":"path `+r.URL.Path+` was not found"}`, http.StatusNotFound)
		return
	}
	in := r.Clone(r.Context())
	in.URL = &url.URL{Scheme: "http", Host: "embedded", Path: "/v2" + rest, RawQuery: q.Encode()}
	in.Body = io.NopCloser(bytes.NewReader(body))
	in.ContentLength = int64(len(body))
	out, err := a.v2.RoundTrip(in)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer out.Body.Close()
	answer, _ := io.ReadAll(out.Body)
	raw := strings.HasSuffix(rest, "/configuration/raw")
	switch {
	case raw && out.StatusCode >= 400: // an error as text in JSON, as text
		answer, _ = json.Marshal(string(answer))
		out.Header.Set("Content-Type", "text/plain")
	case raw && r.Method == http.MethodGet:
		var text struct{ Data string }
		json.Unmarshal(answer, &text)
		answer = []byte(text.Data)
		out.Header.Set("Content-Type", "text/plain")
	case strings.HasSuffix(rest, "/stats/native"), strings.HasSuffix(rest, "/runtime/info"):
		var list []json.RawMessage
		if json.Unmarshal(answer, &list) == nil {
			answer = []byte("{}")
			if len(list) > 0 {
				answer = list[0]
			}
		}
	}
	for name, values := range out.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(out.StatusCode)
	w.Write(answer)
}
