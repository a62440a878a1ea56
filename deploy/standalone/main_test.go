package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kubebyon/kubebyon/pkg/test/acmetest"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

func TestMain(m *testing.M) {
	// client-go keeps its transports, and so their idle connections, for the process's life.
	goleak.VerifyTestMain(m, append(acmetest.Leaks(), goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"))...)
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

// haproxyDir is a folder whose sockets have short paths.
func haproxyDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kb-edge-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestWrongVariableStopsTheStartWithOneLine(t *testing.T) {
	kubeconfig := kubetest.Kubeconfig(t, kubetest.Shared(t))
	good := map[string]string{
		"KUBEBYON_DATABASE_DSN": "postgresql://kubebyon:canary-password@127.0.0.1:1/kubebyon", "KUBEBYON_KUBECONFIG_PATH": kubeconfig,
	}
	for variable, value := range map[string]string{
		"KUBEBYON_HTTP_ADDR":                      "8080",
		"KUBEBYON_DATABASE_DSN":                   "mysql://u:canary-password@h/d",
		"KUBEBYON_KUBECONFIG_PATH":                filepath.Join(t.TempDir(), "absent"),
		"KUBEBYON_CONTROL_PLANE":                  "kamaji",
		"KUBEBYON_VCLUSTER_VALUES_FILE":           filepath.Join(t.TempDir(), "absent"),
		"KUBEBYON_VCLUSTER_CHART_VERSION":         "../0.33",
		"KUBEBYON_KUBERNETES_VERSION":             "latest",
		"KUBEBYON_MIRROR_DIR":                     filepath.Join(t.TempDir(), "absent"),
		"KUBEBYON_ADMIN_PASSWORD_FILE":            filepath.Join(t.TempDir(), "absent"),
		"KUBEBYON_SESSION_COOKIE_SECURE":          "perhaps",
		"KUBEBYON_JOIN_RATE_LIMIT_BURST":          "-1",
		"KUBEBYON_AUTH_RATE_LIMIT_WINDOW_SECONDS": "soon",
		"KUBEBYON_TRUSTED_PROXY_CIDRS":            "10.0.0.0/99",
		"KUBEBYON_CORS_ALLOWED_ORIGINS":           "console.example.com",
		"KUBEBYON_PUBLIC_ACCESS_PROVIDER":         "nginx",
		"KUBEBYON_HAPROXY_BIND_ADDR":              "443",
		"KUBEBYON_HAPROXY_NODE_ADDRESS_TYPE":      "public",
		"KUBEBYON_HAPROXY_STATE_DIR":              "/dev/null/haproxy",
		"KUBEBYON_HAPROXY_MAP_ABOVE":              "0",
		"KUBEBYON_HAPROXY_DATAPLANE_URL":          "http://admin:canary-password@127.0.0.1:5555",
		"KUBEBYON_CONSOLE_DOMAIN":                 "10.0.0.1",
		"KUBEBYON_CONSOLE_UPSTREAM":               "127.0.0.1:8443",
		"KUBEBYON_LOG_FORMAT":                     "xml",
	} {
		t.Run(variable, func(t *testing.T) {
			env := map[string]string{variable: value}
			for k, v := range good {
				if k != variable {
					env[k] = v
				}
			}
			var stderr bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if status := Main(ctx, nil, lookup(env), &stderr); status == 0 {
				t.Fatalf("it started with %s=%s: %s", variable, value, stderr.String())
			}
			text := stderr.String()
			if !strings.Contains(text, variable) || strings.Count(strings.TrimRight(text, "\n"), "\n") != 0 {
				t.Errorf("want one line that names %s, got %q", variable, text)
			}
			if strings.Contains(text, "canary-password") {
				t.Errorf("the password is in %q", text)
			}
		})
	}
}

// TestLife takes the process through a start before its database, readiness, a database outage and an orderly stop.
func TestLife(t *testing.T) {
	kubeconfig := kubetest.Kubeconfig(t, kubetest.Shared(t))
	database := pgtest.Private(t)
	database.Stop(t)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("canary-admin-password\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	_ = listener.Close()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log buffer
	status := make(chan int, 1)
	go func() {
		status <- Main(ctx, nil, lookup(map[string]string{
			"KUBEBYON_HTTP_ADDR": addr, "KUBEBYON_DATABASE_DSN": database.DSN(), "KUBEBYON_KUBECONFIG_PATH": kubeconfig,
			"KUBEBYON_CONTROL_PLANE": "upstream", "KUBEBYON_ADMIN_PASSWORD_FILE": password, "KUBEBYON_HAPROXY_STATE_DIR": haproxyDir(t),
		}), &log)
	}()

	await := func(what, path string, want int) {
		t.Helper()
		var got int
		var body []byte
		for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			response, err := http.Get("http://" + addr + path)
			if err != nil {
				body = []byte(err.Error())
				continue
			}
			got = response.StatusCode
			body, _ = io.ReadAll(response.Body)
			_ = response.Body.Close()
			if got == want {
				return
			}
		}
		t.Fatalf("%s: %s answers %d %s, want %d; log:\n%s", what, path, got, body, want, log.String())
	}
	await("without its database", "/healthz", http.StatusOK)
	await("without its database", "/readyz", http.StatusServiceUnavailable)
	database.Start(t)
	await("with its database", "/readyz", http.StatusOK)

	body := fmt.Sprintf(`{"email":%q,"password":"canary-admin-password"}`, "admin@kubebyon.local")
	response, err := http.Post("http://"+addr+"/api/auth/login", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK || len(response.Cookies()) != 1 || response.Cookies()[0].Name != "kubebyon_session" {
		t.Fatalf("log-in answers %d with cookies %v", response.StatusCode, response.Cookies())
	}
	session := response.Cookies()[0]
	get := func(path string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.AddCookie(session)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var problem struct{ Code string }
		_ = json.NewDecoder(response.Body).Decode(&problem)
		return response.StatusCode, problem.Code
	}
	if status, code := get("/api/console/clusters"); status != http.StatusOK {
		t.Fatalf("the list answers %d %s", status, code)
	}

	database.Stop(t)
	began := time.Now()
	if status, code := get("/api/console/clusters"); status != http.StatusServiceUnavailable || code == "" {
		t.Errorf("with the database gone the list answers %d %q, want 503 and a code", status, code)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("and it took %s", took)
	}
	await("with the database gone", "/healthz", http.StatusOK)
	await("with the database gone", "/readyz", http.StatusServiceUnavailable)
	database.Start(t)
	await("with the database back", "/readyz", http.StatusOK)

	stop()
	select {
	case got := <-status:
		if got != 0 {
			t.Errorf("the orderly end has status %d", got)
		}
	case <-time.After(60 * time.Second):
		t.Fatalf("it does not end; log:\n%s", log.String())
	}
	for _, line := range []string{
		"storage initialized, driver=postgres", "using vcluster backend", "control_plane_provisioner=helm-sdk",
		"node_observer=client-go", "token_issuer=client-go-bootstrap-token",
	} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log lacks %q", line)
		}
	}
	if strings.Contains(log.String(), "canary-admin-password") || strings.Contains(log.String(), session.Value) {
		t.Error("a secret is in the log")
	}
	http.DefaultClient.CloseIdleConnections()
}

// buffer is written by the process and read by the test.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
