package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// WorkStore keeps what the work found out. Writes that name a generation do nothing, and say so with false, once the
// row has moved on to another generation or to deleting.
type WorkStore interface {
	// Begin counts an attempt and gives the row; found is false where the row is gone or has nothing to do.
	Begin(ctx context.Context, id string) (c Cluster, found bool, err error)
	// Current reports whether c is still what is asked for.
	Current(ctx context.Context, c Cluster) (bool, error)
	// Report replaces the reason, unless it is nil, and adds e.
	Report(ctx context.Context, c Cluster, reason *clusterv1.Reason, e clusterv1.Event) (bool, error)
	// Finish ends the work on a generation: ready with what was found out, or error with a reason.
	Finish(ctx context.Context, c Cluster, o Outcome, e clusterv1.Event) (bool, error)
	// SetRemaining replaces what is left of a cluster that is being deleted.
	SetRemaining(ctx context.Context, c Cluster, left []clusterv1.Remaining) error
	// Edge gives what the edge said last of a cluster of public_access_mode loadbalancer.
	Edge(ctx context.Context, id string) (clusterv1.Edge, error)
	// Remove deletes the row and its events.
	Remove(ctx context.Context, id string) error
}

// Outcome of the work on a generation.
type Outcome struct {
	Status            clusterv1.Status
	Reason            *clusterv1.Reason
	APIEndpoint       string
	KubernetesVersion string
}

// Releases is the charts' side of a control plane. Neither method stops in the middle when ctx ends, and neither waits
// for what it made to run.
type Releases interface {
	// Apply installs or upgrades; what it found out stands in Applied also where it fails.
	Apply(ctx context.Context, c Cluster) (Applied, error)
	// Holds reports whether the release is there. In a namespace that is not the cluster's own it is only where it says itself that it
	// is of this cluster.
	Holds(ctx context.Context, c Cluster, owns Ownership) (bool, error)
	// Uninstall removes the release; an absent one is no error.
	Uninstall(ctx context.Context, c Cluster) error
}

// Applied is what the chart was rendered with.
type Applied struct {
	Chart             string // name and version
	Recovered         string // in words, what a killed process had left behind
	KubernetesVersion string
	PodCIDR           string
	ServiceCIDR       string
}

// Host is the host cluster's side. Faults of the kinds unavailable, timeout and internal are tried again; every other
// kind ends the work in error.
type Host interface {
	// EnsureNamespace makes the namespace ours: namespace_in_use where it belongs to something else.
	EnsureNamespace(ctx context.Context, c Cluster) error
	// CopyPlatformSecret fails with platform_secret_missing.
	CopyPlatformSecret(ctx context.Context, c Cluster) error
	// AwaitJoinable returns once a node could join; report is told what it waits for.
	AwaitJoinable(ctx context.Context, c Cluster, a Applied, report func(clusterv1.Reason)) (endpoint, version string, err error)
	// Owns says whose the namespace is.
	Owns(ctx context.Context, c Cluster) (Ownership, error)
	// Doom asks for the end of the control plane's Pods and volume claims, while its release says that they are c's.
	Doom(ctx context.Context, c Cluster, owns Ownership) error
	// Clear asks for the end of what is left once the release is gone, and gives what is there yet, in the order in which it has to go.
	// It does not wait.
	Clear(ctx context.Context, c Cluster, owns Ownership) ([]clusterv1.Remaining, error)
}

// Limits of the work.
type Limits struct {
	Provision time.Duration // until a cluster that is not ready is in error
	Delete    time.Duration // until a removal that is not over says so; it goes on
}

// maxAttempts ends the work on a generation that keeps killing the process, or that the process keeps being killed in.
const maxAttempts = 20

var (
	errSuperseded = errors.New("the cluster is asked to be something else now")
	errDeadline   = errors.New("the time for provisioning is over")
)

// Worker brings the host cluster to where a row asks it to be. Its caller holds the cluster's lock: no two Works on one
// cluster run at once.
type Worker struct {
	store    WorkStore
	releases Releases
	host     Host
	tokens   Tokens
	limits   Limits
	log      *slog.Logger
}

// NewWorker joins the parts.
func NewWorker(store WorkStore, releases Releases, host Host, tokens Tokens, limits Limits, log *slog.Logger) *Worker {
	return &Worker{store: store, releases: releases, host: host, tokens: tokens, limits: limits, log: log}
}

// Work returns nil once nothing is left to do, be it that the cluster is in error. Any error means: call it again. When
// ctx ends it returns soon, after a chart operation that is under way, and the row stays busy.
func (w *Worker) Work(ctx context.Context, id string) error {
	for {
		c, found, err := w.store.Begin(ctx, id)
		if err != nil || !found {
			return err
		}
		if err := w.once(ctx, c); !errors.Is(err, errSuperseded) {
			return err
		}
	}
}

// once works on one generation, and gives up with errSuperseded when the row moves on.
func (w *Worker) once(ctx context.Context, c Cluster) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if current, err := w.store.Current(ctx, c); err == nil && !current {
					cancel(errSuperseded)
				}
			}
		}
	})
	defer watching.Wait()
	defer cancel(nil)
	r := &reporter{ctx: ctx, store: w.store, c: c, log: w.log.With(slog.String("cluster", c.ID))}
	if c.Attempts > 1 && (c.Removal == nil || time.Now().Before(c.Removal.Deadline)) { // after that it is looked at again and again
		r.log.InfoContext(ctx, "work on the cluster is taken up again", slog.Int("attempt", c.Attempts), slog.String("status", string(c.Status)))
	}
	var err error
	if c.Status == clusterv1.Deleting {
		err = w.remove(ctx, c, r)
	} else {
		err = w.provision(ctx, c, r)
	}
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSuperseded) {
		return errSuperseded
	}
	return err
}

func (w *Worker) provision(ctx context.Context, c Cluster, r *reporter) error {
	if c.Attempts > maxAttempts {
		return w.fail(ctx, c, clusterv1.Reason{Code: "gave_up", Message: "the work was interrupted too often",
			Action: "look at the service's log, " + TryAgain})
	}
	if c.Attempts > 1 {
		r.event(clusterv1.Warning, EventResumed, "the work was interrupted, for example by a restart, and is taken up again")
	}
	timed, cancel := context.WithTimeoutCause(ctx, w.limits.Provision, errDeadline)
	defer cancel()
	wait := 250 * time.Millisecond
	for {
		err := w.steps(timed, c, r)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case timed.Err() != nil:
			return w.fail(ctx, c, r.overdue(w.limits.Provision))
		case !transient(err):
			f := fault.From(err)
			return w.fail(ctx, c, clusterv1.Reason{Code: f.Code, Message: f.Message, Action: f.Action})
		}
		f := fault.From(err)
		r.log.WarnContext(ctx, "a step failed and is tried again", slog.Any("error", err), slog.Duration("wait", wait))
		r.reason(clusterv1.Warning, EventRetrying, clusterv1.Reason{Code: f.Code, Message: f.Message, Action: f.Action})
		select {
		case <-timed.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, 10*time.Second)
	}
}

// transient: what time or a restart of something may mend.
func transient(err error) bool {
	k := fault.From(err).Kind
	return k == fault.Unavailable || k == fault.Timeout || k == fault.Internal
}

// steps are each safe to repeat.
func (w *Worker) steps(ctx context.Context, c Cluster, r *reporter) error {
	if err := w.host.EnsureNamespace(ctx, c); err != nil {
		return err
	}
	r.event(clusterv1.Info, EventNamespaceReady, "the namespace "+c.Namespace+" is there")
	if c.ControlPlane == clusterv1.VCluster {
		if err := w.host.CopyPlatformSecret(ctx, c); err != nil {
			return err
		}
		r.event(clusterv1.Info, EventSecretCopied, "the platform's Secret was copied into the namespace")
	}
	applied, err := w.releases.Apply(ctx, c)
	if applied.Recovered != "" {
		r.event(clusterv1.Warning, EventRecovered, applied.Recovered)
	}
	if err != nil {
		return err
	}
	r.event(clusterv1.Info, EventChartApplied, "the chart "+applied.Chart+" was applied")
	endpoint, version, err := w.host.AwaitJoinable(ctx, c, applied, func(reason clusterv1.Reason) {
		r.reason(clusterv1.Info, EventWaiting, reason)
	})
	if err != nil {
		return err
	}
	current, err := w.store.Finish(ctx, c, Outcome{Status: clusterv1.Ready, APIEndpoint: endpoint, KubernetesVersion: version},
		clusterv1.Event{At: time.Now().UTC(), Level: clusterv1.Info, Code: EventReady,
			Message: fmt.Sprintf("nodes can join at %s, %s after the work began", endpoint, time.Since(r.begun()).Round(100*time.Millisecond))})
	if err == nil && !current {
		return errSuperseded
	}
	return err
}

func (w *Worker) fail(ctx context.Context, c Cluster, reason clusterv1.Reason) error {
	w.log.WarnContext(ctx, "the cluster is in error", slog.String("cluster", c.ID), slog.String("code", reason.Code), slog.String("reason", reason.Message))
	_, err := w.store.Finish(ctx, c, Outcome{Status: clusterv1.Failed, Reason: &reason},
		clusterv1.Event{At: time.Now().UTC(), Level: clusterv1.Error, Code: EventFailed, Message: reason.Code + ": " + reason.Message, Action: reason.Action})
	return err
}

// reporter writes the timeline of one attempt: each event once, each reason when it changes. A write that fails is
// logged and forgotten: the timeline never stops the work.
type reporter struct {
	ctx   context.Context //nolint:containedctx // it lives as long as one call of once
	store WorkStore
	c     Cluster
	log   *slog.Logger
	seen  map[string]bool
	last  clusterv1.Reason
	since time.Time
}

func (r *reporter) begun() time.Time {
	if r.since.IsZero() {
		r.since = time.Now()
	}
	return r.since
}

func (r *reporter) event(level clusterv1.Level, code, message string) {
	r.begun()
	if r.seen[code] {
		return
	}
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	r.seen[code] = true
	r.write(nil, clusterv1.Event{At: time.Now().UTC(), Level: level, Code: code, Message: message})
}

func (r *reporter) reason(level clusterv1.Level, code string, reason clusterv1.Reason) {
	r.begun()
	if reason == r.last {
		return
	}
	r.last = reason
	r.write(&reason, clusterv1.Event{At: time.Now().UTC(), Level: level, Code: code, Message: reason.Message, Action: reason.Action})
}

func (r *reporter) write(reason *clusterv1.Reason, e clusterv1.Event) {
	if _, err := r.store.Report(r.ctx, r.c, reason, e); err != nil && r.ctx.Err() == nil {
		r.log.WarnContext(r.ctx, "an event could not be recorded", slog.String("code", e.Code), slog.Any("error", err))
	}
}

// overdue is the last reason, told as the cause of a deadline.
func (r *reporter) overdue(limit time.Duration) clusterv1.Reason {
	if r.last == (clusterv1.Reason{}) {
		return clusterv1.Reason{Code: "timeout", Message: fmt.Sprintf("not done after %s", limit)}
	}
	out := r.last
	out.Message = fmt.Sprintf("not done after %s: %s", limit, out.Message)
	return out
}
