// Package app composes the edge service, which will keep HAProxy's SNI backends. So far it only answers ping, as every
// rpc.Server does; it must not touch HAProxy.
package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/lifecycle"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

// Version is set by the linker.
var Version = "dev"

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

// Main is the process: 0 after an orderly end, 1 after a failure, 2 for wrong settings.
func Main(ctx context.Context, args []string, lookup func(string) (string, bool), stderr io.Writer) int {
	flags := flag.NewFlagSet("kubebyon-"+name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	version := flags.Bool("version", false, "print the version and end")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if *version {
		_, _ = fmt.Fprintln(stderr, Version)
		return 0
	}
	cfg, err := LoadConfig(lookup)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err)
		return 2
	}
	log := telemetry.NewLogger(stderr, cfg.LogFormat, cfg.LogLevel)
	ctx, stop := lifecycle.WithSignals(ctx)
	defer stop()
	shutdown, err := telemetry.Setup(ctx, "kubebyon-"+name, Version, log)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err)
		return 2
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = shutdown(ctx)
	}()
	if err := Run(ctx, cfg, Deps{Log: log}); err != nil {
		log.Error("the edge service ended", "error", err)
		return 1
	}
	return 0
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
	server := rpc.NewServer(conn, rpc.Options{Service: name, Queue: edgev1.Queue, Version: Version, Log: log})
	if err := server.Start(); err != nil { //nolint:contextcheck // each call has a context of its own
		return err
	}
	log.InfoContext(ctx, "edge service started", "provider", cfg.Provider, "bind_addr", cfg.BindAddr, "node_address_type", cfg.AddressType, "version", Version)

	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	return server.Shutdown(last)
}
