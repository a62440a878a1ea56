package dataplane

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

const secret = "swordfish-4711"

// TestWhatIsNoDataPlane: whatever answers, the fault says so, soon and in bounded memory.
func TestWhatIsNoDataPlane(t *testing.T) {
	t.Parallel()
	page := "<!doctype html><title>Welcome to nginx!</title>"
	api := func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v3/info" {
			fmt.Fprint(w, `{"api":{"version":"v3"}}`)
			return true
		}
		return false
	}
	for name, c := range map[string]struct {
		code  string
		serve http.HandlerFunc
	}{
		"a page": {"data_plane_unreachable", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) }},
		"a page, where the API is": {"data_plane_unreachable", func(w http.ResponseWriter, r *http.Request) {
			if !api(w, r) {
				fmt.Fprint(w, page)
			}
		}},
		"nothing":        {"data_plane_unreachable", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }},
		"not found":      {"data_plane_unreachable", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, page, http.StatusNotFound) }},
		"other JSON":     {"data_plane_unreachable", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `[1,2,3]`) }},
		"a bad gateway":  {"data_plane_unreachable", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, page, http.StatusBadGateway) }},
		"five megabytes": {"data_plane_unreachable", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat(" ", 5<<20)) }},
		"five megabytes, where the API is": {"data_plane_unreachable", func(w http.ResponseWriter, r *http.Request) {
			if !api(w, r) {
				fmt.Fprint(w, strings.Repeat("1", 5<<20))
			}
		}},
		"half an answer": {"data_plane_unreachable", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{"api":`)
		}},
		"an elsewhere": {"data_plane_unreachable", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) }},
		"unauthorized": {"data_plane_refused", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }},
		"forbidden":    {"data_plane_refused", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }},
		"unauthorized then": {"data_plane_refused", func(w http.ResponseWriter, r *http.Request) {
			if !api(w, r) {
				http.Error(w, `{"code":401}`, http.StatusUnauthorized)
			}
		}},
		"HAProxy is missing": {"haproxy_missing", func(w http.ResponseWriter, r *http.Request) {
			if !api(w, r) {
				http.Error(w, `{"code":503,"message":"the program haproxy was not found"}`, http.StatusServiceUnavailable)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var redirected atomic.Bool
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/login" {
					redirected.Store(true)
				}
				c.serve(w, r)
			}))
			t.Cleanup(server.Close)
			client, err := New(Options{URL: strings.Replace(server.URL, "://", "://admin:"+secret+"@", 1), Log: logger(t)})
			if err != nil {
				t.Fatal(err)
			}
			got := fails(t, client, c.code, routeTo("a", "a.example.com", one))
			if _, err := client.State(t.Context()); fault.From(err).Code != c.code {
				t.Errorf("State: %v", err)
			}
			if text := fmt.Sprintf("%v %+v %v", got, *got, errors.Unwrap(got)); strings.Contains(text, secret) || strings.Contains(text, "4711") {
				t.Errorf("the fault holds the password: %s", text)
			}
			if redirected.Load() {
				t.Error("the credentials went elsewhere")
			}
		})
	}
}

// TestThePlaneIsDownAndComesBack: nothing has to be done about it.
func TestThePlaneIsDownAndComesBack(t *testing.T) {
	t.Parallel()
	p := embedded(t)
	var down atomic.Bool
	down.Store(true)
	client := p.client(t, func(o *Options) { o.Transport = switched{o.Transport, &down} })
	a := serve(t, "a", false)
	route := routeTo("a", "a.example.com", a.AddrPort)
	fails(t, client, "data_plane_unreachable", route)
	down.Store(false)
	apply(t, client, true, true, route)
	down.Store(true)
	fails(t, client, "data_plane_unreachable", route)
	want(t, p.bind.String(), "a.example.com", "a")
	down.Store(false)
	apply(t, client, false, false, route)
}

type switched struct {
	http.RoundTripper
	off *atomic.Bool
}

func (s switched) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.off.Load() {
		return nil, errors.New("connect: connection refused")
	}
	return s.RoundTripper.RoundTrip(r)
}

// TestAnUpgradeOfTheAPIIsNoticed: from version 2 to 3 under a client that runs.
func TestAnUpgradeOfTheAPIIsNoticed(t *testing.T) {
	t.Parallel()
	p := embedded(t)
	v2 := p.transport
	var upgraded atomic.Bool
	client := p.client(t, func(o *Options) {
		o.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			if upgraded.Load() {
				return InProcess(asV3{v2}).RoundTrip(r)
			}
			return v2.RoundTrip(r)
		})
	})
	a := routeTo("a", "a.example.com", one)
	apply(t, client, true, true, a)
	upgraded.Store(true)
	apply(t, client, false, false, a)
	if state, err := client.State(t.Context()); err != nil || state.API != "v3" {
		t.Fatalf("it speaks %q: %v", state.API, err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAnAPIThatWritesInOtherWordsIsNotWrittenToAgainAndAgain: a release that we do not know may put the same thing differently.
func TestAnAPIThatWritesInOtherWordsIsNotWrittenToAgainAndAgain(t *testing.T) {
	t.Parallel()
	p := embedded(t)
	next := p.transport
	p.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		out, err := next.RoundTrip(r)
		if err != nil || r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/configuration/raw") {
			return out, err
		}
		text, err := io.ReadAll(out.Body)
		out.Body = io.NopCloser(strings.NewReader(strings.ReplaceAll(string(text), "timeout tunnel 12h", "timeout tunnel 43200s")))
		return out, err
	})
	client := p.client(t)
	a, b := routeTo("a", "a.example.com", one), routeTo("b", "b.example.com", one)
	apply(t, client, true, true, a)
	apply(t, client, false, false, a)
	apply(t, client, true, true, a, b)
	apply(t, client, false, false, a, b)
	apply(t, client, false, false, a, b)
	p.edit(t, func(text string) string { return strings.Replace(text, "a.example.com", "stolen.example.com", 1) })
	apply(t, client, true, true, a, b) // a change that is none of its words is mended all the same
	apply(t, client, false, false, a, b)
}

// TestTheAPIsCertificateIsChecked against the CA that was given.
func TestTheAPIsCertificateIsChecked(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(handlerOf(embedded(t).transport))
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, c := range map[string]struct {
		ca []byte
		ok bool
	}{"given": {ca, true}, "unknown": {nil, false}} {
		client, err := New(Options{URL: server.URL, CA: c.ca, Log: logger(t)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.State(t.Context()); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(Options{URL: server.URL, CA: []byte("none"), Log: logger(t)}); err == nil {
		t.Error("a CA that is none was taken")
	}
}

// handlerOf is the other way round: a handler before a transport.
func handlerOf(next http.RoundTripper) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in := r.Clone(r.Context())
		in.URL.Scheme, in.URL.Host, in.RequestURI = "http", "embedded", ""
		out, err := next.RoundTrip(in)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer out.Body.Close()
		for name, values := range out.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(out.StatusCode)
		io.Copy(w, out.Body)
	})
}

func TestThereIsNoHAProxy(t *testing.T) {
	t.Parallel()
	p := plane{url: "http://embedded", transport: InProcess(startEmbedded(t, "/nowhere/haproxy")), bind: freePort(t)}
	fails(t, p.client(t), "haproxy_missing", routeTo("a", "a.example.com", one))
}

func TestCredentialsAreSentAndAreNowhereElse(t *testing.T) {
	t.Parallel()
	var user, password string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ = r.BasicAuth()
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	client, err := New(Options{URL: server.URL + "/", User: "admin", Password: secret, Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	fails(t, client, "data_plane_refused", routeTo("a", "a.example.com", one))
	if user != "admin" || password != secret {
		t.Errorf("sent %q %q", user, password)
	}
	for _, bad := range []string{"", "127.0.0.1:5555", "ftp://admin:" + secret + "@h", "http://admin:" + secret + "@h:port/"} {
		if _, err := New(Options{URL: bad, Log: logger(t)}); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestHAProxysWordsAreBounded: they are shown to people.
func TestHAProxysWordsAreBounded(t *testing.T) {
	for message, want := range map[string]string{
		"validation error: exit status 1: err transactionId=x \nline=12 msg=\"unknown keyword 'x'\"\nmsg=\"Fatal\"": "line 12: unknown keyword 'x'; Fatal",
		"a\r\nb\tc\x00d": "a b c d",
		"":               "it does not say why",
	} {
		if got := words(message); got != want {
			t.Errorf("%q: %q", message, got)
		}
	}
	if got := words(strings.Repeat("ü", 10000)); len(got) > maxWords+4 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestARouteThatIsNoneChangesNothing(t *testing.T) {
	t.Parallel()
	p := embedded(t)
	was := p.text(t)
	_, err := p.client(t).Apply(t.Context(), []edge.Route{routeTo("a", "a.example.com\n}", one)})
	if !fault.Is(err, fault.Invalid) {
		t.Fatalf("%v", err)
	}
	if p.text(t) != was {
		t.Fatal("the configuration was changed")
	}
}
