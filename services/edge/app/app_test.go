package app_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/services/edge/app"
)

func TestSettings(t *testing.T) {
	const secret = "canary-password"
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	password := file("password", secret+"\n")
	for name, c := range map[string][]string{ // the variable that is named, its value, and what else is set
		"no database":                    {"KUBEBYON_DATABASE_DSN", ""},
		"another provider":               {"KUBEBYON_PUBLIC_ACCESS_PROVIDER", "nginx"},
		"no port":                        {"KUBEBYON_HAPROXY_BIND_ADDR", "443"},
		"a port that nobody knows":       {"KUBEBYON_HAPROXY_BIND_ADDR", ":0"},
		"port too large":                 {"KUBEBYON_HAPROXY_BIND_ADDR", ":70000"},
		"a URL":                          {"KUBEBYON_HAPROXY_BIND_ADDR", "https://0.0.0.0:443"},
		"a name":                         {"KUBEBYON_HAPROXY_BIND_ADDR", "edge.example.com:443"},
		"address type":                   {"KUBEBYON_HAPROXY_NODE_ADDRESS_TYPE", "both"},
		"no folder":                      {"KUBEBYON_HAPROXY_STATE_DIR", filepath.Join(password, "haproxy")},
		"a folder for nothing":           {"KUBEBYON_HAPROXY_STATE_DIR", t.TempDir(), "KUBEBYON_HAPROXY_DATAPLANE_URL", "http://127.0.0.1:5555"},
		"no routes above":                {"KUBEBYON_HAPROXY_MAP_ABOVE", "0"},
		"a rate of nothing":              {"KUBEBYON_HAPROXY_SOURCE_RATE", "-1"},
		"a rate in words":                {"KUBEBYON_HAPROXY_ROUTE_RATE", "many"},
		"a password in the URL":          {"KUBEBYON_HAPROXY_DATAPLANE_URL", "http://admin:" + secret + "@127.0.0.1:5555"},
		"no scheme":                      {"KUBEBYON_HAPROXY_DATAPLANE_URL", "127.0.0.1:5555"},
		"nobody who calls":               {"KUBEBYON_HAPROXY_DATAPLANE_URL", "http://127.0.0.1:5555"},
		"a password for nothing":         {"KUBEBYON_HAPROXY_DATAPLANE_PASSWORD_FILE", password},
		"no password file":               {"KUBEBYON_HAPROXY_DATAPLANE_PASSWORD_FILE", "/nowhere", "KUBEBYON_HAPROXY_DATAPLANE_URL", "http://127.0.0.1:5555", "KUBEBYON_HAPROXY_DATAPLANE_USER", "admin"},
		"an empty password":              {"KUBEBYON_HAPROXY_DATAPLANE_PASSWORD_FILE", file("empty", "\n"), "KUBEBYON_HAPROXY_DATAPLANE_URL", "http://127.0.0.1:5555", "KUBEBYON_HAPROXY_DATAPLANE_USER", "admin"},
		"a CA that is none":              {"KUBEBYON_HAPROXY_DATAPLANE_CA_FILE", password, "KUBEBYON_HAPROXY_DATAPLANE_URL", "https://127.0.0.1:5555", "KUBEBYON_HAPROXY_DATAPLANE_USER", "admin", "KUBEBYON_HAPROXY_DATAPLANE_PASSWORD_FILE", password},
		"a console at an address":        {"KUBEBYON_CONSOLE_DOMAIN", "10.0.0.1"},
		"a console of one label":         {"KUBEBYON_CONSOLE_DOMAIN", "console"},
		"an upstream of no console":      {"KUBEBYON_CONSOLE_UPSTREAM", "127.0.0.1:8443"},
		"an upstream without a port":     {"KUBEBYON_CONSOLE_UPSTREAM", "127.0.0.1", "KUBEBYON_CONSOLE_DOMAIN", "console.example.com"},
		"the second upstream has none":   {"KUBEBYON_CONSOLE_UPSTREAM", "127.0.0.1:8443,gateway", "KUBEBYON_CONSOLE_DOMAIN", "console.example.com"},
		"where proofs go to has no port": {"KUBEBYON_HAPROXY_PROBE_ADDR", "127.0.0.1"},
	} {
		env := map[string]string{"KUBEBYON_DATABASE_DSN": "postgresql://kubebyon:" + secret + "@127.0.0.1:1/kubebyon"}
		for i := 0; i < len(c); i += 2 {
			env[c[i]] = c[i+1]
		}
		var out bytes.Buffer
		code := app.Main(t.Context(), nil, func(k string) (string, bool) { v, ok := env[k]; return v, ok }, &out)
		text := out.String()
		if code != 2 || strings.Count(text, "\n") != 1 || !strings.Contains(text, c[0]) || strings.Contains(text, secret) ||
			!strings.Contains(text, "accepts") && !strings.Contains(text, "set ") {
			t.Errorf("%s: %d, %q", name, code, text)
		}
	}
	cfg, err := app.LoadConfig(func(k string) (string, bool) {
		v, ok := map[string]string{"KUBEBYON_DATABASE_DSN": "postgresql://h/d", "KUBEBYON_CONSOLE_DOMAIN": "Console.Example.com.", "KUBEBYON_CONSOLE_UPSTREAM": "gateway-1:8443,127.0.0.1:8443"}[k]
		return v, ok
	})
	if err != nil || cfg.Provider != "haproxy" || cfg.BindAddr != ":443" || cfg.AddressType != "internal" || cfg.ConsoleDomain != "console.example.com" || len(cfg.ConsoleUpstream) != 2 {
		t.Errorf("%+v, %v", cfg, err)
	}
}
