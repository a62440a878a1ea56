// Package app composes the token service: settings, PostgreSQL, NATS and the host cluster around the domain. It must
// hold no rule about tokens.
package app

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/kubebyon/kubebyon/pkg/backing"
	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	pkgpostgres "github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/process"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/services/token/internal/joinscript"
	"github.com/kubebyon/kubebyon/services/token/internal/kube"
	"github.com/kubebyon/kubebyon/services/token/internal/postgres"
	"github.com/kubebyon/kubebyon/services/token/internal/token"
)

const (
	name = "token"
	// drain is how long calls under way may take to end at shutdown.
	drain = 15 * time.Second
)

// Config of the process, from the environment.
type Config struct {
	config.Common
	backing.Settings

	AllowLoopback bool `env:"KUBEBYON_ALLOW_LOOPBACK_HOSTS"`
}

// LoadConfig reads the settings; its error is one line that names the variable.
func LoadConfig(lookup func(string) (string, bool)) (Config, error) {
	return config.Load[Config](lookup)
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
	log, pool, conn := on.Log, on.Pool, on.NATS
	if err := pkgpostgres.Migrate(ctx, pool, name, postgres.Migrations()); err != nil {
		return backing.Ended(ctx, err)
	}
	log.InfoContext(ctx, "storage initialized, driver=postgres")

	service := &token.Service{
		Clusters: clusters{get: rpc.Client(conn, clusterv1.Get)},
		Tenants:  kube.New(on.Host, cfg.AllowLoopback),
		Store:    postgres.New(pool),
		Render:   render,
		Now:      time.Now,
		Random:   token.Entropy(),
		Log:      log,
	}
	server := rpc.NewServer(conn, rpc.Options{Service: name, Queue: tokenv1.Queue, Version: process.Version(), Log: log})
	rpc.ServeAs(server, tokenv1.Create, service.Create)
	rpc.ServeAs(server, tokenv1.List, known(service.List))
	rpc.ServeAs(server, tokenv1.Revoke, known(service.Revoke))
	rpc.Serve(server, tokenv1.JoinScript, service.JoinScript)
	rpc.Serve(server, tokenv1.Forget, service.Forget)
	if err := server.Start(); err != nil { //nolint:contextcheck // each call has a context of its own
		return err
	}
	log.InfoContext(ctx, "token service started", "token_issuer", "client-go-bootstrap-token", "version", process.Version())

	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	return server.Shutdown(last)
}

// known is for what asks the cluster service who may, with the principal that is in ctx.
func known[Req, Res any](handle func(context.Context, Req) (Res, error)) func(context.Context, contract.Principal, Req) (Res, error) {
	return func(ctx context.Context, _ contract.Principal, req Req) (Res, error) { return handle(ctx, req) }
}

// clusters is token.Clusters over NATS.
type clusters struct {
	get func(context.Context, clusterv1.GetRequest) (clusterv1.Cluster, error)
}

func (c clusters) For(ctx context.Context, id string, need clusterv1.Access) (clusterv1.Cluster, error) {
	return c.get(ctx, clusterv1.GetRequest{ID: id, Need: need})
}

// Any asks as the service itself: a machine with a token is nobody's session.
func (c clusters) Any(ctx context.Context, id string) (clusterv1.Cluster, error) {
	return c.get(rpc.WithPrincipal(ctx, contract.Principal{UserID: "system-token", Role: contract.RoleAdmin}), clusterv1.GetRequest{ID: id})
}

// clusterDomain is what both control planes' charts set.
const clusterDomain = "cluster.local"

func render(s token.Script) (string, error) {
	files := make([]joinscript.MirrorFile, 0, len(s.Mirror))
	for _, f := range s.Mirror {
		files = append(files, joinscript.MirrorFile(f))
	}
	script, err := joinscript.Render(joinscript.Params{
		APIServer: s.APIServer, CAPEM: s.CAPEM, Token: s.Token.Reveal(), ClusterName: s.ClusterName, ClusterID: s.ClusterID,
		KubernetesVersion: s.KubernetesVersion, ClusterDNS: s.ClusterDNS, ClusterDomain: clusterDomain,
		MirrorURL: s.MirrorURL, MirrorFiles: files,
	})
	return string(script), err
}
