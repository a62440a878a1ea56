// Package backing opens what a service stands on: PostgreSQL, NATS and the API of the host cluster.
package backing

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/tenant"
)

// Settings say where they are; embed them in a service's configuration.
type Settings struct {
	rpc.NATS
	DatabaseDSN    config.DSN `env:"KUBEBYON_DATABASE_DSN,required"`
	KubeconfigPath string     `env:"KUBEBYON_KUBECONFIG_PATH" accepts:"the path of the host cluster's kubeconfig, or nothing inside that cluster"`
}

// Services are what a composition may share between services. Log is required; what is nil is opened from Settings.
type Services struct {
	Log  *slog.Logger
	NATS *nats.Conn
	Pool *pgxpool.Pool
	Host kubernetes.Interface
}

// Open opens what s lacks, waiting for what is away until ctx ends. The result logs as name and shows that to NATS; closing
// it closes what was opened here, and must be called whatever the error.
func (s Services) Open(ctx context.Context, cfg Settings, name string) (open Services, closing func(), err error) {
	var closers []func()
	closing = func() {
		for _, c := range closers {
			defer c()
		}
	}
	s.Log = s.Log.With("service", name)
	if s.Host == nil {
		host, err := tenant.HostConfig(cfg.KubeconfigPath)
		if err != nil {
			return s, closing, err
		}
		if s.Host, err = kubernetes.NewForConfig(host); err != nil {
			return s, closing, fmt.Errorf("the host cluster's client: %w", err)
		}
	}
	if s.Pool == nil {
		if s.Pool, err = postgres.Open(ctx, string(cfg.DatabaseDSN.Secret), s.Log); err != nil {
			return s, closing, err
		}
		closers = append(closers, s.Pool.Close)
	}
	if s.NATS == nil {
		if s.NATS, err = rpc.Connect(ctx, cfg.NATS, "kubebyon-"+name, s.Log); err != nil {
			return s, closing, err
		}
		closers = append(closers, s.NATS.Close)
	}
	return s, closing, nil
}

// Ended tells an orderly end before the start was through, which is no error, from a failure.
func Ended(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}
