// Package app composes the node service: settings, PostgreSQL, NATS and the host cluster around the domain. It must
// hold no rule about nodes.
package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/kubebyon/kubebyon/pkg/backing"
	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/lifecycle"
	pkgpostgres "github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/process"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/services/node/internal/kube"
	"github.com/kubebyon/kubebyon/services/node/internal/node"
	"github.com/kubebyon/kubebyon/services/node/internal/postgres"
)

const (
	name = "node"
	// drain is how long calls under way may take to end at shutdown.
	drain = 15 * time.Second
)

// Config of the process, from the environment.
type Config struct {
	config.Common
	backing.Settings

	Clients       int           `env:"KUBEBYON_NODE_CLIENTS" envDefault:"256" accepts:"a whole number from 1: how many tenants' clients are kept"`
	ClientIdle    time.Duration `env:"KUBEBYON_NODE_CLIENT_IDLE" envDefault:"15m" accepts:"a duration from 1s: how long an unused tenant's client is kept"`
	ClientFresh   time.Duration `env:"KUBEBYON_NODE_CLIENT_FRESH" envDefault:"10s" accepts:"a duration from 0s: how long a tenant's kubeconfig is not read again"`
	AllowLoopback bool          `env:"KUBEBYON_ALLOW_LOOPBACK_HOSTS"`
}

// LoadConfig reads the settings; its error is one line that names the variable.
func LoadConfig(lookup func(string) (string, bool)) (Config, error) {
	cfg, err := config.Load[Config](lookup)
	switch {
	case err != nil:
	case cfg.Clients < 1:
		err = fmt.Errorf("KUBEBYON_NODE_CLIENTS: %d is too few; it accepts a whole number from 1", cfg.Clients)
	case cfg.ClientIdle < time.Second:
		err = fmt.Errorf("KUBEBYON_NODE_CLIENT_IDLE: %s is too short; it accepts a duration from 1s", cfg.ClientIdle)
	case cfg.ClientFresh < 0:
		err = fmt.Errorf("KUBEBYON_NODE_CLIENT_FRESH: %s is negative; it accepts a duration from 0s", cfg.ClientFresh)
	}
	return cfg, err
}

// Deps are what a composition may share between services. Log is required; what is nil is made from Config, and then closed
// by Run.
type Deps = backing.Services

// Main is the process; it gives the exit status.
func Main(ctx context.Context, args []string, lookup func(string) (string, bool), stderr io.Writer) int {
	return process.Main(ctx, process.Process[Config]{
		Name: "kubebyon-" + name, Load: LoadConfig,
		Run: func(ctx context.Context, cfg Config, log *slog.Logger) error { return Run(ctx, cfg, Deps{Log: log}) },
	}, args, lookup, stderr)
}

// Run serves until ctx ends, then finishes the calls under way. While PostgreSQL or NATS is away it waits for them.
func Run(ctx context.Context, cfg Config, deps Deps) error {
	on, closing, err := deps.Open(ctx, cfg.Settings, name)
	defer closing()
	if err != nil {
		return backing.Ended(ctx, err)
	}
	log, conn := on.Log, on.NATS
	if err := pkgpostgres.Migrate(ctx, on.Pool, name, postgres.Migrations()); err != nil {
		return backing.Ended(ctx, err)
	}
	log.InfoContext(ctx, "storage initialized, driver=postgres")

	pool, err := kube.New(on.Host, kube.Options{Size: cfg.Clients, Idle: cfg.ClientIdle, Fresh: cfg.ClientFresh, Now: time.Now, AllowLoopback: cfg.AllowLoopback})
	if err != nil {
		return err
	}
	defer pool.Close()
	service, err := node.New(clusters{get: rpc.Client(conn, clusterv1.Get)}, pool, time.Now)
	if err != nil {
		return err
	}
	server := rpc.NewServer(conn, rpc.Options{Service: name, Queue: nodev1.Queue, Version: process.Version(), Log: log})
	rpc.ServeAs(server, nodev1.List, service.List)
	return lifecycle.Run(ctx,
		lifecycle.Part{Name: "idle clients", Run: pool.Sweep},
		lifecycle.Part{Name: "requests", Run: func(ctx context.Context) error {
			if err := server.Start(); err != nil { //nolint:contextcheck // each call has a context of its own
				return err
			}
			log.InfoContext(ctx, "node service started", "node_observer", "client-go", "version", process.Version())
			<-ctx.Done()
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
			defer cancel()
			return server.Shutdown(last)
		}},
	)
}

// clusters is node.Clusters over NATS.
type clusters struct {
	get func(context.Context, clusterv1.GetRequest) (clusterv1.Cluster, error)
}

func (c clusters) Visible(ctx context.Context, id string) (clusterv1.Cluster, error) {
	return c.get(ctx, clusterv1.GetRequest{ID: id, Need: clusterv1.Viewer})
}
