package app_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/services/edge/app"
)

func TestPingUntilTheEnd(t *testing.T) {
	url := natstest.New(t)
	log := telemetry.NewLogger(t.Output(), "text", "debug")
	cfg, err := app.LoadConfig(func(k string) (string, bool) { return url, k == "KUBEBYON_NATS_URL" })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx, cfg, app.Deps{Log: log}) }()

	conn, err := rpc.Connect(t.Context(), url, "test", log)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ping := rpc.Client(conn, edgev1.PingMethod)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		pong, err := ping(t.Context(), contract.Ping{})
		if err == nil {
			if pong.Service != "edge" || pong.Version == "" {
				t.Errorf("%+v", pong)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSettings(t *testing.T) {
	for name, c := range map[string]struct{ key, value string }{
		"another provider": {"KUBEBYON_PUBLIC_ACCESS_PROVIDER", "nginx"},
		"no port":          {"KUBEBYON_HAPROXY_BIND_ADDR", "443"},
		"port too large":   {"KUBEBYON_HAPROXY_BIND_ADDR", ":70000"},
		"a URL":            {"KUBEBYON_HAPROXY_BIND_ADDR", "https://0.0.0.0:443"},
		"address type":     {"KUBEBYON_HAPROXY_NODE_ADDRESS_TYPE", "both"},
	} {
		var out bytes.Buffer
		code := app.Main(t.Context(), nil, func(k string) (string, bool) { return c.value, k == c.key }, &out)
		if text := out.String(); code != 2 || strings.Count(text, "\n") != 1 || !strings.Contains(text, c.key) || !strings.Contains(text, "accepts") {
			t.Errorf("%s: %d, %q", name, code, text)
		}
	}
	cfg, err := app.LoadConfig(func(string) (string, bool) { return "", false })
	if err != nil || cfg.Provider != "haproxy" || cfg.BindAddr != ":443" || cfg.AddressType != "internal" {
		t.Errorf("%+v, %v", cfg, err)
	}
}
