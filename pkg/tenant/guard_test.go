package tenant

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/reach"
)

// ask makes a request as a guarded client does, and reads the whole answer.
func ask(t *testing.T, server *httptest.Server, path string, allowLoopback bool) (int, error) {
	t.Helper()
	cfg := &rest.Config{Host: server.URL}
	Guard(cfg, allowLoopback)
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	n, err := io.Copy(io.Discard, res.Body)
	return int(n), err
}

func TestGuard(t *testing.T) {
	reached := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer elsewhere.Close()
	zeros := make([]byte, maxAnswer)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/same":
			w.WriteHeader(http.StatusNotModified)
		case "/redirect":
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		case "/most":
			_, _ = w.Write(zeros)
		case "/more": // chunked
			_, _ = w.Write(zeros)
			_, _ = w.Write(zeros[:1])
		case "/announced":
			w.Header().Set("Content-Length", strconv.Itoa(maxAnswer+1))
			_, _ = w.Write(zeros)
			_, _ = w.Write(zeros[:1])
		case "/packed": // 32 KiB on the wire
			w.Header().Set("Content-Encoding", "gzip")
			packed := gzip.NewWriter(w)
			_, _ = packed.Write(zeros)
			_, _ = packed.Write(zeros)
			_ = packed.Close()
		}
	}))
	defer api.Close()
	for path, want := range map[string]struct {
		bytes int
		err   error
		text  string
	}{
		"/same": {}, "/most": {bytes: maxAnswer}, "/redirect": {text: "redirect"},
		"/more": {bytes: maxAnswer, err: ErrTooLarge}, "/announced": {err: ErrTooLarge}, "/packed": {bytes: maxAnswer, err: ErrTooLarge},
	} {
		n, err := ask(t, api, path, true)
		as := err == nil && want.err == nil && want.text == "" ||
			err != nil && want.err != nil && errors.Is(err, want.err) || err != nil && want.text != "" && strings.Contains(err.Error(), want.text)
		if n != want.bytes || !as {
			t.Errorf("%s: %d bytes, %v", path, n, err)
		}
	}
	if _, err := ask(t, api, "/same", false); !errors.Is(err, reach.ErrForbidden) {
		t.Errorf("loopback: %v", err)
	}
	if reached {
		t.Error("a redirect was followed")
	}
	// A proxy of the environment would resolve the name for us, where nobody looks.
	cfg := &rest.Config{}
	Guard(cfg, false)
	if cfg.Proxy == nil {
		t.Fatal("the environment's proxies are used")
	}
	if proxy, err := cfg.Proxy(httptest.NewRequest(http.MethodGet, "https://tenant.example.com", http.NoBody)); proxy != nil || err != nil {
		t.Errorf("%v, %v", proxy, err)
	}
}
