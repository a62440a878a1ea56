package main

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/nats-io/nats.go"

	gateway "github.com/kubebyon/kubebyon/gateway/app"
	"github.com/kubebyon/kubebyon/pkg/lifecycle"
	"github.com/kubebyon/kubebyon/pkg/natsauth"
	"github.com/kubebyon/kubebyon/pkg/process"
	cluster "github.com/kubebyon/kubebyon/services/cluster/app"
	"github.com/kubebyon/kubebyon/services/cluster/kubectl"
	edge "github.com/kubebyon/kubebyon/services/edge/app"
	node "github.com/kubebyon/kubebyon/services/node/app"
	token "github.com/kubebyon/kubebyon/services/token/app"
)

// settings is every part's configuration, read from one environment.
type settings struct {
	gateway gateway.Config
	cluster cluster.Config
	token   token.Config
	node    node.Config
	edge    edge.Config
}

func loadSettings(lookup func(string) (string, bool)) (settings, error) {
	var s settings
	var err error
	if s.gateway, err = gateway.LoadConfig(lookup); err != nil {
		return s, err
	}
	if s.cluster, err = cluster.LoadConfig(lookup); err != nil {
		return s, err
	}
	if s.token, err = token.LoadConfig(lookup); err != nil {
		return s, err
	}
	if s.node, err = node.LoadConfig(lookup); err != nil {
		return s, err
	}
	s.edge, err = edge.LoadConfig(lookup)
	return s, err
}

// LogSettings implements process.Config.
func (s settings) LogSettings() (format, level string) { return s.gateway.LogSettings() }

// Main is the process, or the kubectl that its cluster service starts of it; it gives the exit status.
func Main(ctx context.Context, args []string, lookup func(string) (string, bool), stderr io.Writer) int {
	if len(args) > 0 && args[0] == kubectl.Arg {
		return kubectl.Main(args[1:], lookup, os.Stdout, stderr)
	}
	return process.Main(ctx, process.Process[settings]{Name: "kubebyon-api", Load: loadSettings, Run: run}, args, lookup, stderr)
}

// run serves until ctx ends. The gateway stops first, so that no request finds a service gone; the services finish what
// they have begun; NATS goes last.
func run(ctx context.Context, s settings, log *slog.Logger) error {
	bus, err := startNATS()
	if err != nil {
		return err
	}
	defer bus.stop()
	log.InfoContext(ctx, "embedded NATS started")

	// The services outlive the gateway by this context.
	services, stopServices := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServices()
	part := func(name natsauth.Service, serve func(context.Context, *nats.Conn) error) lifecycle.Part {
		return lifecycle.Part{Name: string(name), Run: func(ctx context.Context) error {
			conn, err := bus.connect(ctx, name, log)
			if err != nil {
				return err
			}
			defer conn.Close()
			return serve(ctx, conn)
		}}
	}
	return lifecycle.Run(services,
		part(natsauth.Gateway, func(failed context.Context, conn *nats.Conn) error {
			defer stopServices()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(failed, cancel)()
			return gateway.Run(ctx, s.gateway, gateway.Deps{Log: log, NATS: conn})
		}),
		part(natsauth.Cluster, func(ctx context.Context, conn *nats.Conn) error {
			return cluster.Run(ctx, s.cluster, cluster.Deps{Log: log, NATS: conn})
		}),
		part(natsauth.Token, func(ctx context.Context, conn *nats.Conn) error {
			return token.Run(ctx, s.token, token.Deps{Log: log, NATS: conn})
		}),
		part(natsauth.Node, func(ctx context.Context, conn *nats.Conn) error {
			return node.Run(ctx, s.node, node.Deps{Log: log, NATS: conn})
		}),
		part(natsauth.Edge, func(ctx context.Context, conn *nats.Conn) error {
			return edge.Run(ctx, s.edge, edge.Deps{Log: log, NATS: conn})
		}),
	)
}
