// Package app composes the edge service, which will keep HAProxy's SNI backends. So far it only answers ping, as every
// rpc.Server does; it must not touch HAProxy.
package app

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/process"
	"github.com/kubebyon/kubebyon/pkg/rpc"
)

const (
	name = "edge"
	// drain is how long calls under way may take to end at shutdown.
	drain = 15 * time.Second
)

// Config of the process, from the environment.
type Config struct {
	config.Common
	NATSURL     string          `env:"KUBEBYON_NATS_URL" envDefault:"nats://127.0.0.1:4222" accepts:"a NATS address, such as nats://127.0.0.1:4222"`
	Provider    string          `env:"KUBEBYON_PUBLIC_ACCESS_PROVIDER" envDefault:"haproxy" enum:"haproxy"`
	BindAddr    config.HostPort `env:"KUBEBYON_HAPROXY_BIND_ADDR" envDefault:":443"`
	AddressType string          `env:"KUBEBYON_HAPROXY_NODE_ADDRESS_TYPE" envDefault:"internal" enum:"internal|external"`
}

// LoadConfig reads the settings; its error is one line that names the variable.
func LoadConfig(lookup func(string) (string, bool)) (Config, error) {
	return config.Load[Config](lookup)
}

// Deps are what a composition may share between services. Log is required; NATS is dialled, and then closed, where it is nil.
type Deps struct {
	Log  *slog.Logger
	NATS *nats.Conn
}

// Main is the process; it gives the exit status.
func Main(ctx context.Context, args []string, lookup func(string) (string, bool), stderr io.Writer) int {
	return process.Main(ctx, process.Process[Config]{
		Name: "kubebyon-" + name, Load: LoadConfig,
		Run: func(ctx context.Context, cfg Config, log *slog.Logger) error { return Run(ctx, cfg, Deps{Log: log}) },
	}, args, lookup, stderr)
}

// Run serves until ctx ends, then finishes the calls under way. While NATS is away it waits for it.
func Run(ctx context.Context, cfg Config, deps Deps) error {
	log, conn := deps.Log.With("service", name), deps.NATS
	if conn == nil {
		c, err := rpc.Connect(ctx, cfg.NATSURL, "kubebyon-"+name, log)
		if err != nil {
			if ctx.Err() != nil {
				return nil // an orderly end before the start was through
			}
			return err
		}
		defer c.Close()
		conn = c
	}
	server := rpc.NewServer(conn, rpc.Options{Service: name, Queue: edgev1.Queue, Version: process.Version(), Log: log})
	if err := server.Start(); err != nil { //nolint:contextcheck // each call has a context of its own
		return err
	}
	log.InfoContext(ctx, "edge service started", "provider", cfg.Provider, "bind_addr", cfg.BindAddr, "node_address_type", cfg.AddressType, "version", process.Version())

	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	return server.Shutdown(last)
}
