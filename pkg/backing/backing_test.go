package backing_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/backing"
	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

func settings(t *testing.T) backing.Settings {
	t.Helper()
	return backing.Settings{NATS: rpc.NATS{NATSURL: natstest.New(t)}, DatabaseDSN: config.DSN{Secret: telemetry.Secret(pgtest.New(t))}}
}

func host(t *testing.T) kubernetes.Interface {
	t.Helper()
	h, err := kubernetes.NewForConfig(&rest.Config{Host: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestWhatIsLackingIsOpenedAndClosed(t *testing.T) {
	var log bytes.Buffer
	have := backing.Services{Log: slog.New(slog.NewTextHandler(&log, nil)), Host: host(t)}
	on, closing, err := have.Open(t.Context(), settings(t), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := on.Pool.Ping(t.Context()); err != nil || on.NATS.Opts.Name != "kubebyon-x" || on.Host != have.Host {
		t.Errorf("%v; %q", err, on.NATS.Opts.Name)
	}
	if on.Log.Info("said"); !strings.Contains(log.String(), "service=x") {
		t.Errorf("%s", &log)
	}
	// What was there before stays open.
	more, closingMore, err := on.Open(t.Context(), backing.Settings{}, "y")
	if err != nil || more.Pool != on.Pool || more.NATS != on.NATS {
		t.Fatal(err)
	}
	closingMore()
	if err := on.Pool.Ping(t.Context()); err != nil || on.NATS.IsClosed() {
		t.Errorf("closed: %v", err)
	}
	closing()
	if err := on.Pool.Ping(t.Context()); err == nil || !on.NATS.IsClosed() {
		t.Error("still open")
	}
}

func TestOpeningThatFails(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	ok := settings(t)
	wrongKube := ok
	wrongKube.KubeconfigPath = "/nowhere"
	_, closing, err := backing.Services{Log: quiet}.Open(t.Context(), wrongKube, "x")
	closing()
	if err == nil || !strings.Contains(err.Error(), "KUBEBYON_KUBECONFIG_PATH") || backing.Ended(t.Context(), err) == nil {
		t.Errorf("%v", err)
	}

	wrongNATS := ok
	wrongNATS.NATSURL = "http://x"
	on, closing, err := backing.Services{Log: quiet, Host: host(t)}.Open(t.Context(), wrongNATS, "x")
	closing()
	if err == nil || !strings.Contains(err.Error(), "KUBEBYON_NATS_URL") || on.Pool.Ping(t.Context()) == nil {
		t.Errorf("%v, or the pool is still open", err)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	away := ok
	away.NATSURL = "nats://127.0.0.1:1"
	_, closing, err = backing.Services{Log: quiet, Host: host(t)}.Open(ended, away, "x")
	closing()
	if err == nil || backing.Ended(ended, err) != nil {
		t.Errorf("%v", err)
	}
}
