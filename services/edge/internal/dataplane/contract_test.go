package dataplane

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/haproxytech/client-native/v5/models"

	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

// theirPage is a section of somebody else's; a foreign backend names its defaults, or it would take whichever stand last.
const theirPage = `
# Their page, with    their spaces.
backend page_of_theirs
    mode tcp
    timeout connect 1s
    timeout server 1s
    server s1 127.0.0.1:1   # nobody
`

// contract is what every plane has to hold. fresh gives one without anything of ours.
func contract(t *testing.T, fresh func(testing.TB) plane) {
	t.Helper()
	a, b, c := serve(t, "a", false), serve(t, "b", false), serve(t, "c", false)
	toA, toB, toC := routeTo("a", "a.example.com", a.AddrPort), routeTo("b", "b.example.com", b.AddrPort), routeTo("c", "c.example.com", c.AddrPort)

	t.Run("nothing is asked for", func(t *testing.T) {
		p := fresh(t)
		was := p.text(t)
		apply(t, p.client(t), false, false)
		if now := p.text(t); now != was {
			t.Fatalf("the configuration was changed:\n%s", now)
		}
		if _, err := p.client(t).State(t.Context()); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("routes come and go", func(t *testing.T) {
		p := fresh(t)
		c1, addr := p.client(t), p.bind.String()
		apply(t, c1, true, true, toA, toB)
		want(t, addr, "a.example.com", "a")
		want(t, addr, "b.example.com", "b")
		want(t, addr, "c.example.com", "")
		apply(t, c1, false, false, toB, toA)          // the order says nothing
		apply(t, p.client(t), false, false, toA, toB) // nor who asks
		apply(t, c1, true, true, toA, toB, toC)       // one more, by typed calls
		want(t, addr, "c.example.com", "c")
		apply(t, p.client(t), false, false, toA, toB, toC)
		apply(t, c1, true, true, toC, toA)
		want(t, addr, "b.example.com", "")
		want(t, addr, "a.example.com", "a")
		moved := toA
		moved.Domain = "moved.example.com"
		apply(t, c1, true, true, moved, toC)
		want(t, addr, "moved.example.com", "a")
		want(t, addr, "a.example.com", "")
		apply(t, c1, false, false, moved, toC)
		apply(t, c1, true, true)
		want(t, addr, "c.example.com", "")
		apply(t, c1, false, false)
		if now := newSnapshot(1, p.text(t)); len(now.rules) != 0 || !now.ours() {
			t.Fatalf("rules are left: %+v", now.rules)
		}
	})

	t.Run("an address changes without a reload", func(t *testing.T) {
		p := fresh(t)
		c1, addr := p.client(t), p.bind.String()
		apply(t, c1, true, true, toA, toB)
		conn, name, err := open(addr, "b.example.com", nil)
		if err != nil || name != "b" {
			t.Fatalf("leads to %q: %v", name, err)
		}
		defer conn.Close()
		to := toA
		to.Targets = []netip.AddrPort{c.AddrPort}
		apply(t, c1, true, false, to, toB)
		want(t, addr, "a.example.com", "c")
		apply(t, c1, false, false, to, toB)
		apply(t, c1, true, true, to, toB, toC) // and it stays over a reload
		want(t, addr, "a.example.com", "c")
		if _, err := fmt.Fprint(conn, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatalf("a connection did not outlive the changes: %v", err)
		}
		more := to
		more.Targets = []netip.AddrPort{c.AddrPort, a.AddrPort}
		apply(t, c1, true, true, more, toB, toC)
		apply(t, c1, false, false, more, toB, toC)
	})

	t.Run("IPv6 targets", func(t *testing.T) {
		p := fresh(t)
		six := routeTo("six", "six.example.com", netip.MustParseAddrPort("[::1]:9"), netip.MustParseAddrPort("[fd00::1]:30443"))
		apply(t, p.client(t), true, true, six)
		apply(t, p.client(t), false, false, six)
		apply(t, p.client(t), true, true, six, toA)
		seven := six
		seven.ID, seven.Domain = idOf("seven"), "seven.example.com"
		apply(t, p.client(t), true, true, six, toA, seven)
		apply(t, p.client(t), false, false, six, toA, seven)
	})

	t.Run("the console is told who connects", func(t *testing.T) {
		p := fresh(t)
		gateway := serve(t, "gateway", true)
		console := edge.Route{ID: edge.Console, Domain: "console.example.com", Targets: []netip.AddrPort{gateway.AddrPort}, ProxyProtocol: true}
		apply(t, p.client(t), true, true, toA)
		apply(t, p.client(t), true, true, console, toA)
		want(t, p.bind.String(), "console.example.com", "gateway")
		apply(t, p.client(t), false, false, console, toA)
		gateway.mu.Lock()
		defer gateway.mu.Unlock()
		if len(gateway.proxied) == 0 || gateway.proxied[0] != "127.0.0.1" {
			t.Fatalf("the gateway was told %q", gateway.proxied)
		}
	})

	t.Run("a map takes over from the rules and gives way again", func(t *testing.T) {
		p := fresh(t)
		addr := p.bind.String()
		many := func(o *Options) { o.Settings.MapAbove = 1 }
		c1 := p.client(t, many)
		apply(t, c1, true, true, toA)
		apply(t, c1, true, true, toA, toB)
		want(t, addr, "A.EXAMPLE.com", "a")
		want(t, addr, "b.example.com", "b")
		want(t, addr, "c.example.com", "")
		apply(t, p.client(t, many), false, false, toA, toB)
		apply(t, c1, true, true, toA, toB, toC)
		want(t, addr, "c.example.com", "c")
		if state, err := p.client(t, many).State(t.Context()); err != nil || state.Mode != modeMap {
			t.Fatalf("the mode is %q: %v", state.Mode, err)
		}
		to := toA
		to.Targets = []netip.AddrPort{c.AddrPort}
		apply(t, c1, true, false, to, toB, toC)
		want(t, addr, "a.example.com", "c")
		stored, err := p.other(t).maps(t.Context())
		ours := 0
		for name := range stored {
			if strings.HasPrefix(name, mapPrefix) {
				ours++
			}
		}
		if err != nil || ours != 1 {
			t.Fatalf("stored maps: %v, %v", stored, err)
		}
		apply(t, c1, true, true, toA)
		want(t, addr, "a.example.com", "a")
		want(t, addr, "b.example.com", "")
		apply(t, p.client(t, many), false, false, toA)
	})

	t.Run("what others wrote is kept", func(t *testing.T) {
		p := fresh(t)
		c1, addr := p.client(t), p.bind.String()
		apply(t, c1, true, true, toA)
		p.edit(t, func(text string) string {
			return strings.Replace(text, "  default_backend kubebyon_reject\n",
				"  acl theirs req.ssl_sni -i page.example.com\n  use_backend page_of_theirs if theirs\n  default_backend kubebyon_reject\n", 1) + theirPage
		})
		page := "use_backend page_of_theirs if theirs"
		holds := func(what string) {
			t.Helper()
			now := newSnapshot(1, p.text(t))
			if len(now.rules) == 0 || now.rules[0].line != page || now.rules[0].ours {
				t.Fatalf("%s: their rule is not the first: %+v", what, now.rules)
			}
			for _, line := range []string{"backend page_of_theirs", "server s1 127.0.0.1:1", "acl theirs req.ssl_sni -i page.example.com"} {
				if !strings.Contains(now.text, line) {
					t.Fatalf("%s: %q is lost:\n%s", what, line, now.text)
				}
			}
		}
		apply(t, c1, true, true, toA) // their rule goes before ours
		holds("after their edit")
		apply(t, c1, true, true, toA, toB)
		holds("after one more route")
		want(t, addr, "b.example.com", "b")
		apply(t, c1, true, true, toB)
		holds("after one fewer")
		var many []edge.Route
		for i := range few + 1 {
			many = append(many, routeTo(fmt.Sprintf("many%d", i), fmt.Sprintf("m%d.example.com", i), a.AddrPort))
		}
		was := p.text(t)
		apply(t, c1, true, true, many...)
		holds("after many")
		if _, lost := foreign(merge(was, nil), p.text(t)); lost != "" {
			t.Fatalf("lost %q", lost)
		}
		apply(t, c1, false, false, many...)
	})

	t.Run("ours are mended", func(t *testing.T) {
		p := fresh(t)
		c1, addr := p.client(t), p.bind.String()
		apply(t, c1, true, true, toA, toB)
		p.edit(t, func(text string) string { return strings.Replace(text, "a.example.com", "stolen.example.com", 1) })
		want(t, addr, "stolen.example.com", "a")
		apply(t, c1, true, true, toA, toB)
		want(t, addr, "a.example.com", "a")
		want(t, addr, "stolen.example.com", "")
		p.edit(t, func(text string) string { return strings.Replace(text, "timeout tunnel 12h", "timeout tunnel 1s", 1) })
		apply(t, c1, true, true, toA, toB)
		if now := p.text(t); strings.Contains(now, "tunnel 1s") {
			t.Fatalf("the timeout stays:\n%s", now)
		}
	})

	t.Run("state", func(t *testing.T) {
		p := fresh(t)
		gone := freePort(t)
		lost := routeTo("lost", "lost.example.com", gone)
		c1, addr := p.client(t), p.bind.String()
		apply(t, c1, true, true, toA, lost)
		want(t, addr, "a.example.com", "a")
		var state edge.PlaneState
		for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			var err error
			if state, err = c1.State(t.Context()); err != nil {
				t.Fatal(err)
			}
			down := state.Backends[lost.ID].Servers
			if len(down) == 1 && !down[0].Up && state.Backends[toA.ID].SessionsTotal > 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("the state is %+v", state)
			}
		}
		traffic := state.Backends[toA.ID]
		if len(state.Backends) != 2 || traffic.BytesIn == 0 || traffic.BytesOut == 0 || len(traffic.Servers) != 1 ||
			traffic.Servers[0] != (edge.Server{Address: a.AddrPort, Up: true}) {
			t.Errorf("the traffic is %+v", state.Backends)
		}
		if state.API != p.other(t).api || state.Mode != modeRules || state.HAProxy == "" || len(state.Workers) == 0 || state.Workers[0].PID == 0 {
			t.Errorf("the state is %+v", state)
		}
		if state.LastReload == nil || !state.LastReload.OK || time.Since(state.LastReload.At) > time.Hour {
			t.Errorf("the last reload is %+v", state.LastReload)
		}
	})

	t.Run("a port that is taken", func(t *testing.T) {
		p := fresh(t)
		c1, addr := p.client(t), p.bind.String()
		apply(t, c1, true, true, toA)
		squatter, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer squatter.Close()
		taken := p.client(t, func(o *Options) { o.Settings.Bind = []string{addr, squatter.Addr().String()} })
		got := fails(t, taken, "haproxy_reload_failed", toA, toB)
		t.Logf("HAProxy's words: %s", got.Message)
		want(t, addr, "a.example.com", "a")
		if state, err := taken.State(t.Context()); err != nil || state.LastReload == nil || state.LastReload.OK || state.LastReload.Message == "" {
			t.Errorf("the last reload is %+v, %v", state.LastReload, err)
		}
		if now := p.text(t); strings.Contains(now, squatter.Addr().String()) {
			t.Fatalf("the address stays:\n%s", now)
		}
		want(t, addr, "b.example.com", "")
		addBackendOf(t, p.other(t), "after_the_failure") // what the API edits next is what it restored
		if now := p.text(t); strings.Contains(now, squatter.Addr().String()) {
			t.Fatalf("the address is back:\n%s", now)
		}
		apply(t, c1, true, true, toA, toB)
		want(t, addr, "b.example.com", "b")
	})

	t.Run("HAProxy refuses", func(t *testing.T) {
		p := fresh(t)
		c1, addr := p.client(t), p.bind.String()
		apply(t, c1, true, true, toA, toB)
		// Somebody leads to a backend of ours, which can then not go away.
		leads := "\nfrontend leads_to_ours from " + edgeDefaults + "\n  bind " + freePort(t).String() + "\n  use_backend be_" + toB.ID + " if { src 127.0.0.9 }\n"
		p.edit(t, func(text string) string { return text + leads })
		was := p.text(t)
		elsewhere := p.client(t, func(o *Options) { o.Settings.NameRate = 7 }) // the whole text, instead of a few calls
		for _, c := range []*Client{c1, elsewhere} {
			got := fails(t, c, "haproxy_refused", toA)
			if !strings.Contains(got.Message, "be_"+toB.ID) {
				t.Errorf("HAProxy's words are missing: %s", got.Message)
			}
			if now := p.text(t); now != was {
				t.Errorf("the configuration was changed:\n%s\nit was\n%s", now, was)
			}
		}
		want(t, addr, "a.example.com", "a")
		p.edit(t, func(text string) string {
			return strings.Replace(text, "use_backend be_"+toB.ID+" if { src 127.0.0.9 }", "", 1)
		})
		apply(t, c1, true, true, toA)
		want(t, addr, "b.example.com", "")
	})

	t.Run("ten others write meanwhile", func(t *testing.T) { storm(t, fresh(t), toA, toB) })

	t.Run("others leave transactions open", func(t *testing.T) {
		p := fresh(t)
		c1 := p.client(t)
		apply(t, c1, true, true, toA)
		s := p.other(t)
		now, err := s.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var open []string
		defer func() {
			for _, id := range open {
				s.abandon(t.Context(), "/transactions/"+id)
			}
		}()
		for full := false; !full && len(open) < 100; {
			got, err := s.do(t.Context(), call{method: http.MethodPost, path: "/transactions", query: versionQuery(now.version)})
			if full = tooMany(err); full {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			var tx models.Transaction
			if err := got.decode(&tx); err != nil {
				t.Fatal(err)
			}
			open = append(open, tx.ID)
		}
		if len(open) == 100 {
			t.Fatal("there is no end to transactions")
		}
		apply(t, c1, true, true, toA, toB)
		want(t, p.bind.String(), "b.example.com", "b")
	})

	t.Run("no transaction of ours stays open", func(t *testing.T) {
		p := fresh(t)
		apply(t, p.client(t), true, true, toA)
		// Somebody commits between the opening of our transaction and its end, again and again.
		s := p.other(t)
		var done atomic.Int32
		meddler := p.client(t, func(o *Options) {
			o.Transport = meddle{o.Transport, func(r *http.Request) {
				if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "/transactions/") {
					return
				}
				switch n := done.Add(1); {
				case n == 2: // ours is outdated by theirs
					commitOf(t, s, fmt.Sprintf("meddled_%d", n))
				case n <= 3:
					addBackendOf(t, s, fmt.Sprintf("meddled_%d", n))
				}
			}}
		})
		apply(t, meddler, true, true, toA, toB)
		if done.Load() != 3 {
			t.Fatalf("%d transactions were tried", done.Load())
		}
		var left models.Transactions
		if err := s.get(t.Context(), "/transactions", map[string][]string{"status": {"in_progress"}}, 0, &left); err != nil {
			t.Fatal(err)
		}
		if len(left) != 0 {
			t.Fatalf("left open: %+v", left)
		}
		for i := range 3 {
			if text := p.text(t); !strings.Contains(text, fmt.Sprintf("backend meddled_%d", i+1)) {
				t.Fatalf("theirs is lost:\n%s", text)
			}
		}
	})

	t.Run("a few changes are one transaction", func(t *testing.T) {
		p := fresh(t)
		toD := routeTo("d", "d.example.com", c.AddrPort)
		apply(t, p.client(t), true, true, toA, toB, toC, toD)
		var begun, written atomic.Int32
		counted := p.client(t, func(o *Options) {
			o.Transport = meddle{o.Transport, func(r *http.Request) {
				switch {
				case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/transactions"):
					begun.Add(1)
				case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/raw"):
					written.Add(1)
				}
			}}
		})
		apply(t, counted, true, true, toB, toD) // the rules that go stand on both sides of one that stays
		if begun.Load() != 1 || written.Load() != 0 {
			t.Fatalf("%d transactions and %d whole texts", begun.Load(), written.Load())
		}
		for sni, name := range map[string]string{"a.example.com": "", "b.example.com": "b", "c.example.com": "", "d.example.com": "c"} {
			want(t, p.bind.String(), sni, name)
		}
	})

	t.Run("a transaction that fails half way is deleted", func(t *testing.T) {
		p := fresh(t)
		apply(t, p.client(t), true, true, toA)
		next := p.transport
		if next == nil {
			next = http.DefaultTransport
		}
		var failed atomic.Int32
		unlucky := p.client(t, func(o *Options) {
			o.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/servers") {
					failed.Add(1)
					return nil, errors.New("connection reset by peer")
				}
				return next.RoundTrip(r)
			})
		})
		fails(t, unlucky, "data_plane_unreachable", toA, toB)
		var left models.Transactions
		if err := p.other(t).get(t.Context(), "/transactions", url.Values{"status": {"in_progress"}}, 0, &left); err != nil {
			t.Fatal(err)
		}
		if failed.Load() != 1 || len(left) != 0 {
			t.Fatalf("after %d failures there are left open: %+v", failed.Load(), left)
		}
		want(t, p.bind.String(), "a.example.com", "a")
		apply(t, p.client(t), true, true, toA, toB)
	})

	t.Run("others never stop", func(t *testing.T) {
		p := fresh(t)
		apply(t, p.client(t), true, true, toA)
		s := p.other(t)
		n := 0
		busy := p.client(t, func(o *Options) {
			o.Transport = meddle{o.Transport, func(r *http.Request) {
				if r.Method == http.MethodPost && (strings.HasSuffix(r.URL.Path, "/transactions") || strings.HasSuffix(r.URL.Path, "/raw")) {
					n++
					addBackendOf(t, s, fmt.Sprintf("endless_%d", n))
				}
			}}
		})
		fails(t, busy, "data_plane_busy", toA, toB)
		if n != maxAttempts {
			t.Fatalf("it gave up after %d attempts", n)
		}
		apply(t, p.client(t), true, true, toA, toB)
	})
}

// addBackendOf adds a backend as somebody else, at whatever version there is.
func addBackendOf(tb testing.TB, s *session, name string) {
	tb.Helper()
	for attempt := 1; ; attempt++ {
		now, err := s.read(tb.Context())
		if err == nil {
			err = s.post(tb.Context(), "/configuration/backends", versionQuery(now.version), &models.Backend{Name: name, From: edgeDefaults})
		}
		if err == nil {
			return
		}
		if !mends(err) || attempt > 50 {
			tb.Errorf("somebody else's change: %v", err)
			return
		}
	}
}

// commitOf adds a backend in a transaction, as somebody else.
func commitOf(t *testing.T, s *session, name string) {
	t.Helper()
	now, err := s.read(t.Context())
	if err != nil {
		t.Error(err)
		return
	}
	got, err := s.do(t.Context(), call{method: http.MethodPost, path: "/transactions", query: versionQuery(now.version)})
	if err != nil {
		t.Error(err)
		return
	}
	var tx models.Transaction
	if err := got.decode(&tx); err != nil {
		t.Error(err)
		return
	}
	if err := s.post(t.Context(), "/configuration/backends", url.Values{"transaction_id": {tx.ID}}, &models.Backend{Name: name, From: edgeDefaults}); err != nil {
		t.Error(err)
	}
	if _, err := s.do(t.Context(), call{method: http.MethodPut, path: "/transactions/" + tx.ID}); err != nil {
		t.Error(err)
	}
}

// meddle does something before a request is sent.
type meddle struct {
	http.RoundTripper
	before func(*http.Request)
}

func (m meddle) RoundTrip(r *http.Request) (*http.Response, error) {
	m.before(r)
	next := m.RoundTripper
	if next == nil {
		next = http.DefaultTransport
	}
	return next.RoundTrip(r)
}

// storm is ten writers who add a backend each, and another, while we add a route.
func storm(t *testing.T, p plane, toA, toB edge.Route) {
	t.Helper()
	c := p.client(t)
	apply(t, c, true, true, toA)
	var all sync.WaitGroup
	defer all.Wait()
	start := make(chan struct{})
	for w := range 10 {
		s := p.other(t)
		all.Go(func() {
			<-start
			for i := range 2 {
				name := fmt.Sprintf("theirs_%d_%d", w, i)
				for attempt := 0; ; attempt++ {
					var version int64
					err := s.get(t.Context(), "/configuration/version", nil, 0, &version)
					if err == nil {
						err = s.post(t.Context(), "/configuration/backends", versionQuery(version), &models.Backend{Name: name, From: edgeDefaults})
					}
					if err == nil {
						break
					}
					if !mends(err) || attempt > 500 {
						t.Errorf("a writer: %v", err)
						return
					}
					time.Sleep(time.Duration(20+w) * time.Millisecond)
				}
			}
		})
	}
	close(start)
	apply(t, c, true, true, toA, toB)
	all.Wait()
	text := p.text(t)
	for w := range 10 {
		for i := range 2 {
			if !strings.Contains(text, fmt.Sprintf("backend theirs_%d_%d", w, i)) {
				t.Errorf("the backend theirs_%d_%d is lost", w, i)
			}
		}
	}
	want(t, p.bind.String(), "a.example.com", "a")
	want(t, p.bind.String(), "b.example.com", "b")
	apply(t, p.client(t), false, false, toA, toB)
}
