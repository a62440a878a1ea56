// Package app composes the edge service: settings, NATS, the host cluster and HAProxy around the domain. It must hold no rule
// about routes.
package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/backing"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/lifecycle"
	pkgpostgres "github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/process"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/services/edge/internal/dataplane"
	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
	"github.com/kubebyon/kubebyon/services/edge/internal/haproxy"
	"github.com/kubebyon/kubebyon/services/edge/internal/kube"
	"github.com/kubebyon/kubebyon/services/edge/internal/probe"
)

const (
	name = "edge"
	// drain is how long calls under way may take to end at shutdown.
	drain = 15 * time.Second
	// turn is how soon a replica takes over from one that is gone.
	turn = time.Second
)

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

// Run keeps the routes until ctx ends, then finishes the calls under way; a HAProxy of our own ends with it. While PostgreSQL,
// NATS, the host cluster or a Data Plane API are away it waits for them, and the routes stay as they are.
func Run(ctx context.Context, cfg Config, deps Deps) error {
	on, closing, err := deps.Open(ctx, cfg.Settings, name)
	defer closing()
	if err != nil {
		return backing.Ended(ctx, err)
	}
	s := &service{cfg: cfg, log: on.Log, conn: on.NATS, pool: on.Pool}
	return s.run(ctx, on.Host)
}

// service is one replica.
type service struct {
	cfg    Config
	log    *slog.Logger
	conn   *nats.Conn
	pool   *pgxpool.Pool
	source world
	plane  edge.Plane
	own    *haproxy.Plane // nil with a Data Plane API that is not ours

	mu     sync.Mutex
	keeper *edge.Keeper // nil while another replica keeps the routes
}

func (s *service) run(ctx context.Context, client kubernetes.Interface) error {
	host, err := kube.New(client, s.cfg.nodeAddress(), s.wake)
	if err != nil {
		return err
	}
	s.source = world{published: rpc.Client(s.conn, clusterv1.Published), host: host, domain: s.cfg.ConsoleDomain, upstream: s.cfg.ConsoleUpstream}
	if err := s.openPlane(); err != nil {
		return err
	}
	stop, err := rpc.Subscribe(s.conn, clusterv1.Changed, s.log, func(clusterv1.ChangedEvent) { s.wake() })
	if err != nil {
		return err
	}
	defer stop()
	server := rpc.NewServer(s.conn, rpc.Options{Service: name, Queue: edgev1.Queue, Version: process.Version(), Log: s.log})
	if err := server.Start(); err != nil { //nolint:contextcheck // each call has a context of its own
		return err
	}
	s.log.InfoContext(ctx, "edge service started", "provider", s.cfg.Provider, "data_plane", s.kind(), "bind_addr", s.cfg.BindAddr,
		"node_address_type", s.cfg.AddressType, "version", process.Version())
	parts := []lifecycle.Part{
		{Name: "host cluster", Run: func(ctx context.Context) error { host.Run(ctx); return nil }},
		{Name: "routes", Run: s.keep},
	}
	if s.own != nil {
		parts = append(parts, lifecycle.Part{Name: "haproxy", Run: s.own.Run})
	}
	err = lifecycle.Run(ctx, parts...)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if stopErr := server.Shutdown(last); err == nil {
		err = stopErr
	}
	return err
}

func (s *service) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeper != nil {
		s.keeper.Wake()
	}
}

func (s *service) kind() string {
	if s.own != nil {
		return "embedded"
	}
	return "remote"
}

func (s *service) openPlane() error {
	options := dataplane.Options{Settings: s.cfg.layout(), Log: s.log}
	if s.cfg.DataPlaneURL == "" {
		own, err := haproxy.New(haproxy.Options{Binary: s.cfg.Binary, Dir: s.cfg.StateDir, Log: s.log})
		if err != nil {
			return fmt.Errorf("KUBEBYON_HAPROXY_STATE_DIR: %w", err)
		}
		s.own = own
		options.URL, options.Transport = "http://embedded", dataplane.InProcess(own.Handler())
	} else {
		options.URL, options.User, options.Password, options.CA = s.cfg.DataPlaneURL, s.cfg.DataPlaneUser, s.cfg.dataPlanePassword, s.cfg.dataPlaneCA
	}
	plane, err := dataplane.New(options)
	if err != nil {
		return err
	}
	s.plane = plane
	return nil
}

// keep keeps the routes. A HAProxy of our own is nobody else's; before a shared one, one replica at a time.
func (s *service) keep(ctx context.Context) error {
	addr, perSecond := s.cfg.probeAt()
	keeper := func() *edge.Keeper {
		return edge.NewKeeper(s.plane, s.source, probe.New(addr, perSecond), reporter{rpc.Client(s.conn, clusterv1.ReportEdge)}, s.log)
	}
	if s.own == nil {
		s.turns(ctx, "edge/"+s.cfg.DataPlaneURL, func(ctx context.Context) {
			k := keeper()
			defer s.use(k)()
			s.speak(ctx, k, func() { k.Run(ctx) })
		})
		return nil
	}
	k := keeper()
	defer s.use(k)()
	var speaking sync.WaitGroup
	speaking.Go(func() {
		s.turns(ctx, "edge/embedded", func(ctx context.Context) { s.speak(ctx, k, func() { <-ctx.Done() }) })
	})
	k.Run(ctx)
	speaking.Wait()
	return nil
}

// use makes k the one that is woken, until the function that it gives is called.
func (s *service) use(k *edge.Keeper) func() {
	set := func(k *edge.Keeper) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.keeper = k
	}
	set(k)
	return func() { set(nil) }
}

// turns runs work whenever this replica holds the lock, until ctx ends.
func (s *service) turns(ctx context.Context, lock string, work func(context.Context)) {
	for ctx.Err() == nil {
		_, err := pkgpostgres.Hold(ctx, s.pool, lock, func(ctx context.Context) error { work(ctx); return nil })
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "the edge's lock cannot be had; the routes stay as they are", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(turn):
		}
	}
}

// speak has k report, and answers what operators ask, while work runs.
func (s *service) speak(ctx context.Context, k *edge.Keeper, work func()) {
	k.Speak(true)
	defer k.Speak(false)
	server := rpc.NewServer(s.conn, rpc.Options{Service: name, Queue: edgev1.Queue, Version: process.Version(), Log: s.log})
	rpc.Serve(server, edgev1.Status, func(ctx context.Context, req edgev1.StatusRequest) (edgev1.StatusResponse, error) {
		out, err := k.Status(ctx, req)
		out.BindAddr, out.DataPlane.Kind = string(s.cfg.BindAddr), s.kind()
		return out, err
	})
	if err := server.Start(); err != nil { //nolint:contextcheck // each call has a context of its own
		s.log.ErrorContext(ctx, "the edge's status cannot be served", slog.Any("error", err))
	}
	work()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	_ = server.Shutdown(last)
}

// reporter is edge.Reporter over NATS.
type reporter struct {
	send func(context.Context, clusterv1.ReportEdgeRequest) (clusterv1.ReportEdgeResponse, error)
}

// Report implements edge.Reporter.
func (r reporter) Report(ctx context.Context, reports []clusterv1.EdgeReport) error {
	_, err := r.send(ctx, clusterv1.ReportEdgeRequest{Reports: reports})
	return err
}
