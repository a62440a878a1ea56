package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/tenant"
)

// plainAPI is an api without a credential.
type plainAPI struct{ base *url.URL }

func (a plainAPI) ask(ctx context.Context, q question, header http.Header, body []byte) (*http.Response, error) {
	req, err := request(ctx, a.base, q, header, body)
	if err != nil {
		return nil, err
	}
	return http.DefaultTransport.RoundTrip(req)
}

// proxied serves h behind a proxy, and gives a client that asks it, and what ended the run.
func proxied(t *testing.T, answerIn time.Duration, h http.HandlerFunc) (*http.Client, func() error) {
	t.Helper()
	tenant := httptest.NewServer(h)
	t.Cleanup(tenant.Close)
	base, err := url.Parse(tenant.URL)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var ended error
	p := newProxy(plainAPI{base}, time.Now().Add(answerIn), func(err error) {
		mu.Lock()
		defer mu.Unlock()
		ended = errors.Join(ended, err)
	})
	socket := filepath.Join(t.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.serve(t.Context(), l))
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}, func() error { mu.Lock(); defer mu.Unlock(); return ended }
}

func do(t *testing.T, client *http.Client, method, at string, header http.Header, body string) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://tenant"+at, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res, string(text), err
}

// No header leads past the proxy in either direction, but for those that a read needs.
func TestProxyPassesWhatAReadNeeds(t *testing.T) {
	client, ended := proxied(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Warning", `299 - "old"`)
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Audit-Id", "x")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, "%s %s %v %s", r.Method, r.URL, r.Header, body)
	})
	header := http.Header{
		"Accept": {"application/json;as=Table"}, "Authorization": {"Bearer stolen"}, "Impersonate-User": {"admin"}, "Cookie": {"a=b"},
		"Connection": {"Impersonate-User, Authorization"}, "X-Remote-User": {"admin"}, "X-Http-Method-Override": {"DELETE"},
		"Content-Type": {"application/json"},
	}
	res, text, err := do(t, client, "GET", "/api/v1/pods?limit=5", header, "")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text, "GET /api/v1/pods?limit=5 map[") || res.StatusCode != http.StatusNotFound || res.Header.Get("Warning") == "" ||
		res.Header.Get("Set-Cookie")+res.Header.Get("Audit-Id") != "" || !strings.Contains(text, "as=Table") {
		t.Errorf("%v\n%s", res.Header, text)
	}
	for _, never := range []string{"stolen", "admin", "Cookie", "Override", "Connection", "Content-Type"} {
		if strings.Contains(text, never) {
			t.Errorf("%s in %s", never, text)
		}
	}
	_, text, err = do(t, client, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", header, `{"spec":{}}`)
	if err != nil || !strings.Contains(text, `Content-Type:[application/json]`) || !strings.HasSuffix(text, `{"spec":{}}`) {
		t.Errorf("%s, %v", text, err)
	}
	if ended() != nil {
		t.Error(ended())
	}
}

func TestProxyRefuses(t *testing.T) {
	client, ended := proxied(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s reached the API", r.Method, r.URL) })
	for method, at := range map[string]string{
		"GET": "/api/v1/namespaces/x/secrets", "DELETE": "/api/v1/namespaces/x/pods/a", "POST": "/api/v1/namespaces/x/pods",
		"OPTIONS": "/api/v1/pods",
	} {
		res, text, err := do(t, client, method, at, nil, "")
		var status metav1.Status
		if err != nil || res.StatusCode != http.StatusForbidden || json.Unmarshal([]byte(text), &status) != nil ||
			status.Reason != metav1.StatusReasonForbidden || !strings.Contains(status.Message, "KubeBYON") {
			t.Errorf("%s %s: %s, %v", method, at, text, err)
		}
	}
	if res, _, err := do(t, client, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", nil, strings.Repeat(" ", maxBody+1)); err == nil && res.StatusCode != http.StatusForbidden {
		t.Errorf("%v", res.Status)
	}
	if ended() != nil {
		t.Error(ended())
	}
}

// A watch is no question: whoever makes it waits until the run ends.
func TestProxyLetsWatchersWait(t *testing.T) {
	client, ended := proxied(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s reached the API", r.URL) })
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://tenant/api/v1/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res, err)
	}
	defer func() { _ = res.Body.Close() }()
	cancel()
	if _, err := io.ReadAll(res.Body); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if ended() != nil {
		t.Error(ended())
	}
}

func TestProxyEndsTheRun(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	piece := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		is      func(error) bool
	}{
		"an API that does not answer": {
			func(_ http.ResponseWriter, r *http.Request) {
				select {
				case <-r.Context().Done():
				case <-release:
				}
			},
			func(err error) bool { return errors.Is(err, context.DeadlineExceeded) },
		},
		"one that breaks off": {
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "100")
				_, _ = io.WriteString(w, "half")
			},
			func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) },
		},
		"one that says too much": {
			func(w http.ResponseWriter, _ *http.Request) {
				for range maxAnswers>>20 + 1 {
					if _, err := io.WriteString(w, piece); err != nil {
						return
					}
				}
			},
			func(err error) bool {
				return fault.From(err).Code == "kubectl_answer_too_large" && errors.Is(err, tenant.ErrTooLarge)
			},
		},
	} {
		client, ended := proxied(t, 200*time.Millisecond, c.handler)
		_, text, err := do(t, client, "GET", "/api/v1/pods", nil, "")
		if err == nil || !c.is(ended()) {
			t.Errorf("%s: %d bytes, %v; the run ended with %v", name, len(text), err, ended())
		}
	}
}
