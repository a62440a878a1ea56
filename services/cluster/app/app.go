// Package app puts the cluster service together: configuration, start, drain. It must never hold a rule of the domain.
package app

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	pkgpostgres "github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/process"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
	"github.com/kubebyon/kubebyon/services/cluster/internal/helm"
	"github.com/kubebyon/kubebyon/services/cluster/internal/kube"
	"github.com/kubebyon/kubebyon/services/cluster/internal/postgres"
	"github.com/kubebyon/kubebyon/services/cluster/internal/queue"
	"github.com/kubebyon/kubebyon/services/cluster/kubectl"
)

const (
	service = "kubebyon-cluster"
	// drainTime is what a chart operation that has begun may still take when the process is told to stop.
	drainTime = 90 * time.Second
	// chartTime is what chart operations add to the waiting that has its own limit.
	chartTime = 5 * time.Minute
)

// Deps are what a process has already. Only Log is needed.
type Deps struct {
	Log  *slog.Logger
	NATS *nats.Conn // nil: Run connects to cfg.NATS
}

// Main is the process, or the kubectl that such a process starts of itself; it gives the exit status.
func Main(ctx context.Context, args []string, lookup func(string) (string, bool), stderr io.Writer) int {
	if len(args) > 0 && args[0] == kubectl.Arg {
		return kubectl.Main(args[1:], lookup, os.Stdout, stderr)
	}
	return process.Main(ctx, process.Process[Config]{
		Name: service, Load: LoadConfig,
		Run: func(ctx context.Context, cfg Config, log *slog.Logger) error {
			if err := Run(ctx, cfg, Deps{Log: log}); ctx.Err() == nil {
				return err
			}
			return nil
		},
	}, args, lookup, stderr)
}

// Run serves until ctx ends, then answers what it has taken, lets chart operations end and returns. While PostgreSQL or
// NATS are away at the start it waits and says so in the log; it answers nothing until both are there.
func Run(ctx context.Context, cfg Config, deps Deps) error {
	log := deps.Log
	host := cfg.host
	pool, err := pkgpostgres.Open(ctx, string(cfg.DatabaseDSN.Secret), log)
	if err != nil {
		return err
	}
	defer pool.Close()
	quiet := slog.New(atLeast{log.Handler(), slog.LevelWarn})
	if err := migrate(ctx, func() error { return postgres.Migrate(ctx, pool, quiet) }, log); err != nil {
		return err
	}
	log.InfoContext(ctx, "storage initialized, driver=postgres")

	conn := deps.NATS
	if conn == nil {
		if conn, err = rpc.Connect(ctx, cfg.NATS, service, log); err != nil {
			return err
		}
		defer conn.Close()
	}

	inserter, err := queue.NewInserter(pool, quiet)
	if err != nil {
		return err
	}
	store := postgres.New(pool, inserter, func() time.Time { return time.Now().UTC() })
	announced := cluster.Announce(store, rpc.Publish(conn, clusterv1.Changed, log))
	hosts, err := kube.New(host, kube.Options{
		PlatformSecret: cfg.PlatformSecret, PlatformNamespace: cfg.PlatformNamespace,
		NodeAddress: cfg.nodeAddress(), AllowLoopback: cfg.AllowLoopback,
	}, log)
	if err != nil {
		return err
	}
	charts, err := helm.New(host, helm.Options{
		VCluster: cfg.source, VClusterValues: cfg.vclusterValues, UpstreamValues: cfg.upstreamValues, KubernetesVersion: cfg.KubernetesVersion,
	}, log)
	if err != nil {
		return err
	}
	worker := cluster.NewWorker(announced, charts, hosts, tokens{rpc.Client(conn, tokenv1.Forget)}, cluster.Limits{Provision: cfg.ProvisionTimeout, Delete: cfg.DeleteTimeout}, log)
	jobs, err := queue.New(pool, postgres.NewLocker(pool), store, worker.Work, cfg.Workers, max(cfg.ProvisionTimeout, cfg.DeleteTimeout)+chartTime, quiet)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "using vcluster backend", slog.String("control_plane_provisioner", "helm-sdk"),
		slog.String("control_plane", string(cfg.ControlPlane)), slog.String("chart", cfg.source.String()), slog.String("chart_version", cfg.VClusterVersion))

	svc := cluster.NewService(announced, hosts, hosts, cluster.Policy{
		AllowLoopback: cfg.AllowLoopback, DefaultControlPlane: cfg.ControlPlane,
		ReservedNamespaces: []string{cfg.PlatformNamespace}, Domains: cfg.domains, DeleteWithin: cfg.DeleteTimeout,
	}, rand20, time.Now)

	kubeconfigs := cluster.NewKubeconfigs(svc, store, hosts, log)

	if err := jobs.Start(ctx); err != nil {
		return err
	}
	server := rpc.NewServer(conn, rpc.Options{Service: clusterv1.Queue, Version: process.Version(), Log: log})
	serve(server, svc, kubeconfigs, cluster.NewEdge(store, time.Now))
	if err := server.Start(); err != nil { //nolint:contextcheck // each request brings its own
		return errors.Join(err, stop(ctx, jobs.Stop))
	}
	var sweeping sync.WaitGroup
	sweeping.Go(func() { kubeconfigs.Sweep(ctx) })
	warm := make(chan struct{})
	go func() { // ahead of the first cluster; without it the first one learns the same
		defer close(warm)
		if err := charts.Warm(); err != nil {
			log.WarnContext(ctx, "the host cluster cannot be reached yet; clusters wait for it", slog.Any("error", err))
		}
	}()
	log.InfoContext(ctx, "the cluster service is ready")
	<-ctx.Done()
	log.InfoContext(ctx, "the cluster service is stopping")
	err = errors.Join(stop(ctx, server.Shutdown), stop(ctx, jobs.Stop))
	<-warm
	sweeping.Wait()
	return err
}

// tokens is cluster.Tokens over NATS.
type tokens struct {
	forget func(context.Context, tokenv1.ForgetRequest) (tokenv1.ForgetResponse, error)
}

func (t tokens) Forget(ctx context.Context, clusterID string) error {
	_, err := t.forget(ctx, tokenv1.ForgetRequest{ClusterID: clusterID})
	return err
}

// stop gives each part its own time after ctx has ended.
func stop(ctx context.Context, part func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	return part(ctx)
}

// migrate tries again while the database goes away in the middle.
func migrate(ctx context.Context, apply func() error, log *slog.Logger) error {
	for wait := time.Second; ; wait = min(2*wait, 10*time.Second) {
		err := apply()
		if err == nil || ctx.Err() != nil || wait > 5*time.Second {
			return err
		}
		log.WarnContext(ctx, "the tables could not be brought up to date; trying again", slog.Any("error", err), slog.Duration("wait", wait))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// serve binds the contract's methods, each with the principal that asks, and those of the edge service, which is none.
func serve(server *rpc.Server, svc *cluster.Service, kubeconfigs *cluster.Kubeconfigs, edge *cluster.Edge) {
	rpc.Serve(server, clusterv1.Published, edge.Published)
	rpc.Serve(server, clusterv1.ReportEdge, edge.Report)
	rpc.ServeAs(server, clusterv1.Create, svc.Create)
	rpc.ServeAs(server, clusterv1.List, svc.List)
	rpc.ServeAs(server, clusterv1.Get, svc.Get)
	rpc.ServeAs(server, clusterv1.Update, svc.Update)
	rpc.ServeAs(server, clusterv1.Delete, svc.Delete)
	rpc.ServeAs(server, clusterv1.Retry, svc.Retry)
	rpc.ServeAs(server, clusterv1.Events, svc.Events)
	rpc.ServeAs(server, clusterv1.Kubeconfig, svc.Kubeconfig)
	rpc.ServeAs(server, clusterv1.CreateKubeconfig, kubeconfigs.Create)
	rpc.ServeAs(server, clusterv1.Kubeconfigs, kubeconfigs.List)
	rpc.ServeAs(server, clusterv1.RevokeKubeconfig, kubeconfigs.Revoke)
	rpc.ServeAs(server, clusterv1.RevokeKubeconfigsOf, kubeconfigs.RevokeOf)
	rpc.ServeAs(server, clusterv1.Members, svc.Members)
	rpc.ServeAs(server, clusterv1.SetMember, svc.SetMember)
	rpc.ServeAs(server, clusterv1.RemoveMember, svc.RemoveMember)
}

// rand20 gives 20 of [a-z0-9], about 103 bits.
func rand20() string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, 0, 20)
	var buf [32]byte
	for len(out) < 20 {
		_, _ = rand.Read(buf[:]) // never fails
		for _, b := range buf {
			if int(b) < 252 && len(out) < 20 { // 252 = 7·36: no letter is likelier
				out = append(out, alphabet[int(b)%36])
			}
		}
	}
	return string(out)
}

// atLeast lets a library that tells much tell only what matters.
type atLeast struct {
	slog.Handler
	level slog.Level
}

func (h atLeast) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.level && h.Handler.Enabled(ctx, level)
}

func (h atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeast{h.Handler.WithAttrs(attrs), h.level}
}
func (h atLeast) WithGroup(name string) slog.Handler {
	return atLeast{h.Handler.WithGroup(name), h.level}
}
