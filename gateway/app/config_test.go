package app_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/gateway/app"
)

const anyDSN = "postgresql://kubebyon:canary-dsn@localhost/kubebyon"

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if v, ok := env[name]; ok {
			return v, true
		}
		if name == "KUBEBYON_DATABASE_DSN" {
			return anyDSN, true
		}
		return "", false
	}
}

func TestDefaults(t *testing.T) {
	cfg, err := app.LoadConfig(lookup(nil))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.HTTPAddr != ":8080" || cfg.AdminEmail != "admin@kubebyon.local" || cfg.SessionCookieSecure ||
		cfg.JoinLimit.WindowSeconds != 3 || cfg.JoinLimit.Burst != 5 || cfg.JoinLimit.MaxEntries != 10000 ||
		cfg.AuthLimit.WindowSeconds != 30 || cfg.AuthLimit.Burst != 5 || cfg.AuthLimit.MaxEntries != 5000 ||
		cfg.APILimit.PerSecond != 100 || cfg.APILimit.Burst != 500 || cfg.APILimit.MaxEntries != 10000 {
		t.Errorf("%+v", cfg)
	}
}

func TestConfig(t *testing.T) {
	cfg, err := app.LoadConfig(lookup(map[string]string{
		"KUBEBYON_CORS_ALLOWED_ORIGINS": "https://Console.example.com, http://localhost:5173", "KUBEBYON_TRUSTED_PROXY_CIDRS": "127.0.0.1/32,10.0.0.0/8,fd00::/8",
		"KUBEBYON_SESSION_COOKIE_SECURE": "true", "KUBEBYON_JOIN_RATE_LIMIT_BURST": "7",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.CORSAllowedOrigins) != 2 || cfg.CORSAllowedOrigins[0] != "https://console.example.com" || cfg.CORSAllowedOrigins[1] != "http://localhost:5173" ||
		len(cfg.TrustedProxies) != 3 || !cfg.SessionCookieSecure || cfg.JoinLimit.Burst != 7 {
		t.Errorf("%+v", cfg)
	}
}

func TestWrongConfigIsOneLine(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct{ name, value string }{
		{"KUBEBYON_HTTP_ADDR", "8080"},
		{"KUBEBYON_HTTP_ADDR", ":70000"},
		{"KUBEBYON_DATABASE_DSN", "mysql://root:canary-dsn@localhost/x"},
		{"KUBEBYON_DATABASE_DSN", ""},
		{"KUBEBYON_SESSION_COOKIE_SECURE", "maybe"},
		{"KUBEBYON_CORS_ALLOWED_ORIGINS", "console.example.com"},
		{"KUBEBYON_CORS_ALLOWED_ORIGINS", "https://console.example.com/"},
		{"KUBEBYON_CORS_ALLOWED_ORIGINS", "https://*.example.com"},
		{"KUBEBYON_CORS_ALLOWED_ORIGINS", "https://a.example.com;https://b.example.com"},
		{"KUBEBYON_CORS_ALLOWED_ORIGINS", "null"},
		{"KUBEBYON_TRUSTED_PROXY_CIDRS", "10.0.0.1"},
		{"KUBEBYON_TRUSTED_PROXY_CIDRS", "10.0.0.0/33"},
		{"KUBEBYON_JOIN_RATE_LIMIT_WINDOW_SECONDS", "0"},
		{"KUBEBYON_JOIN_RATE_LIMIT_BURST", "-1"},
		{"KUBEBYON_JOIN_RATE_LIMIT_MAX_ENTRIES", "1e9"},
		{"KUBEBYON_AUTH_RATE_LIMIT_WINDOW_SECONDS", "3s"},
		{"KUBEBYON_AUTH_RATE_LIMIT_BURST", "99999999999999999999"},
		{"KUBEBYON_AUTH_RATE_LIMIT_MAX_ENTRIES", "0"},
		{"KUBEBYON_AUTH_RATE_LIMIT_WINDOW_SECONDS", "1000000"}, // with a burst of a thousand
		{"KUBEBYON_JOIN_RATE_LIMIT_WINDOW_SECONDS", "1000000"},
		{"KUBEBYON_API_RATE_LIMIT_PER_SECOND", "0"},
		{"KUBEBYON_API_RATE_LIMIT_BURST", "many"},
		{"KUBEBYON_API_RATE_LIMIT_MAX_ENTRIES", "-5"},
		{"KUBEBYON_ADMIN_EMAIL", "root"},
		{"KUBEBYON_ADMIN_PASSWORD_FILE", filepath.Join(dir, "absent")},
		{"KUBEBYON_ADMIN_PASSWORD_FILE", dir},
		{"KUBEBYON_ADMIN_PASSWORD_FILE", file("empty", "")},
		{"KUBEBYON_ADMIN_PASSWORD_FILE", file("short", "elevenchars\n")},
		{"KUBEBYON_ADMIN_PASSWORD_FILE", file("huge", strings.Repeat("x", 10000))},
		{"KUBEBYON_ENCRYPTION_KEY_FILE", filepath.Join(dir, "absent")},
		{"KUBEBYON_ENCRYPTION_KEY_FILE", file("nokey", "")},
		{"KUBEBYON_ENCRYPTION_KEY_FILE", file("badkey", "canary-key\n")},
		{"KUBEBYON_ADMIN_PASSWORD_FILE", file("binary", "canary-binary\xff\xfe")},
		{"KUBEBYON_MIRROR_DIR", filepath.Join(dir, "absent")},
		{"KUBEBYON_MIRROR_DIR", file("file", "x")},
		{"KUBEBYON_LOG_FORMAT", "xml"},
		{"KUBEBYON_LOG_LEVEL", "loud"},
	} {
		var stderr bytes.Buffer
		status := app.Main(t.Context(), nil, lookup(map[string]string{"KUBEBYON_AUTH_RATE_LIMIT_BURST": "1000", "KUBEBYON_JOIN_RATE_LIMIT_BURST": "1000", c.name: c.value}), &stderr)
		line := strings.TrimSuffix(stderr.String(), "\n")
		if status == 0 || !strings.Contains(line, c.name) || !strings.Contains(line, "accepts ") || strings.Contains(line, "\n") || strings.Contains(line, "canary") {
			t.Errorf("%s=%q: status %d, %q", c.name, c.value, status, line)
		}
	}
}

func TestNoArguments(t *testing.T) {
	var stderr bytes.Buffer
	if status := app.Main(t.Context(), []string{"serve"}, lookup(nil), &stderr); status == 0 || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("status %d, %q", status, stderr.String())
	}
}

func TestAddressInUse(t *testing.T) {
	w := prepare(t, withoutServices)
	var stderr bytes.Buffer
	status := app.Main(t.Context(), nil, lookup(map[string]string{"KUBEBYON_HTTP_ADDR": strings.TrimPrefix(w.url, "http://")}), &stderr)
	if status == 0 || !strings.Contains(stderr.String(), "KUBEBYON_HTTP_ADDR") {
		t.Errorf("status %d, %q", status, stderr.String())
	}
}

// The command as a process runs it: nothing is there but the environment, and it stops cleanly.
func TestMainServesUntilItIsTold(t *testing.T) {
	log := &buffer{}
	ctx, cancel := context.WithCancel(t.Context())
	status := make(chan int, 1)
	go func() {
		// Neither PostgreSQL nor NATS listens there.
		status <- app.Main(ctx, nil, lookup(map[string]string{
			"KUBEBYON_HTTP_ADDR": "127.0.0.1:0", "KUBEBYON_DATABASE_DSN": "postgresql://x:canary@127.0.0.1:1/x", "KUBEBYON_NATS_URL": "nats://x:canary@127.0.0.1:1",
			"KUBEBYON_LOG_FORMAT": "json",
		}), log)
	}()
	w := &world{t: t, log: log}
	var address string
	w.eventually(func() bool {
		_, rest, _ := strings.Cut(log.String(), `"addr":"`)
		address, _, _ = strings.Cut(rest, `"`)
		return address != ""
	})
	client := w.newBrowser()
	response, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK || string(text) != "{\"status\":\"ok\"}\n" {
		t.Errorf("%d %s", response.StatusCode, text)
	}
	cancel()
	if got := <-status; got != 0 || strings.Contains(log.String(), "canary") {
		t.Errorf("status %d: %s", got, log)
	}
}
