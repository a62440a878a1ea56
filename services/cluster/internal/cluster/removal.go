package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	// lookAgain is how soon a removal looks again at what remains.
	lookAgain = 200 * time.Millisecond
	// quietFor is how long a removal takes before its reason tells what it waits for.
	quietFor = 10 * time.Second
	// forgetTime bounds one call of the token service, and forgetAgain is when one that failed is made again.
	forgetTime, forgetAgain = 2 * time.Second, 2 * time.Second
	// overdueAgain is how soon a removal whose deadline is over is looked at again. It holds no worker in between.
	overdueAgain = 5 * time.Second
	// shownInReason is how many of what remains a reason names.
	shownInReason = 3
)

// Ownership says whose a cluster's namespace is.
type Ownership string

// The ownerships.
const (
	Absent  Ownership = "absent"
	Own     Ownership = "own"     // made by KubeBYON for this cluster: all in it goes
	Foreign Ownership = "foreign" // anything else: only what is the cluster's own goes, and the namespace stays
)

// Tokens is the token service's side of a removal.
type Tokens interface {
	// Forget ends every join token of a cluster that is being deleted.
	Forget(ctx context.Context, clusterID string) error
}

// later ends one run of the work; the next one begins by itself.
type later struct{ why string }

func (e later) Error() string { return e.why }

// Again is when the work is to be taken up.
func (later) Again() time.Duration { return overdueAgain }

// removal is one run of a cluster's removal. Its steps can begin again anywhere: what is done already is absent, and that is
// no error.
type removal struct {
	*Worker
	c Cluster
	r *reporter

	began     time.Time
	forgotten bool      // the join tokens
	asked     time.Time // last for that, in vain
	unended   []clusterv1.Remaining
	released  bool // the release
	stored    []clusterv1.Remaining
}

// remove takes everything away, in an order in which each step finds what it needs, and ends once nothing is left. After the
// deadline it gives its place to other clusters between two looks.
func (w *Worker) remove(ctx context.Context, c Cluster, r *reporter) error {
	if c.Removal == nil { // of the time before there were deadlines
		c.Removal = &clusterv1.Removal{Deadline: time.Now().Add(w.limits.Delete)}
	}
	if c.Reason != nil {
		r.last = *c.Reason // it is told already
	}
	do := &removal{Worker: w, c: c, r: r, began: time.Now(), stored: c.Removal.Remaining}
	for {
		left, err := do.look(ctx)
		switch {
		case err == nil && len(left) == 0:
			return w.store.Remove(ctx, c.ID)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		do.tell(ctx, left, err)
		if do.overdue() {
			return later{fmt.Sprintf("the removal of %s is not over", c.ID)}
		}
		wait := lookAgain
		if err != nil {
			wait *= 5
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

func (d *removal) overdue() bool { return time.Now().After(d.c.Removal.Deadline) }

// look does what can be done now, and gives what is left in the order in which it has to go.
func (d *removal) look(ctx context.Context) ([]clusterv1.Remaining, error) {
	left := append(d.tokens(ctx), d.route(ctx)...)
	owns, err := d.host.Owns(ctx, d.c)
	if err != nil {
		return left, err
	}
	if !d.released {
		held, err := d.release(ctx, owns)
		if err != nil {
			return left, err
		}
		left = append(left, held...)
	}
	if d.released {
		there, err := d.host.Clear(ctx, d.c, owns)
		if err != nil {
			return left, err
		}
		left = append(left, there...)
	}
	if len(left) > 0 {
		return left, nil
	}
	// One that was being made when the removal began may have been recorded since.
	d.forgotten = false
	return d.tokens(ctx), nil
}

// tokens go first: no machine begins to join what goes.
func (d *removal) tokens(ctx context.Context) []clusterv1.Remaining {
	if d.forgotten || time.Since(d.asked) < forgetAgain {
		return d.unended
	}
	ctx, cancel := context.WithTimeout(ctx, forgetTime)
	defer cancel()
	err := d.Worker.tokens.Forget(ctx, d.c.ID)
	if d.forgotten, d.unended = err == nil, nil; err != nil {
		d.r.log.WarnContext(ctx, "the join tokens of a cluster that is removed could not be ended; it is tried again", slog.Any("error", err))
		d.asked, d.unended = time.Now(), []clusterv1.Remaining{{Kind: "JoinToken", Name: "all", Why: fault.From(err).Message}}
	}
	return d.unended
}

// route is waited for: its node port may soon be another's. An edge that says nothing until the deadline holds nothing any
// longer, since it leads nowhere but to clusters that are published once it is back.
func (d *removal) route(ctx context.Context) []clusterv1.Remaining {
	if d.c.PublicAccessMode != clusterv1.LoadBalancer || d.overdue() {
		return nil
	}
	e, err := d.store.Edge(ctx, d.c.ID)
	if err != nil {
		return []clusterv1.Remaining{{Kind: "Route", Name: d.c.ControlPlaneHost, Why: fault.From(err).Message}}
	}
	left := clusterv1.Remaining{Kind: "Route", Name: d.c.ControlPlaneHost, Why: "the edge has not said yet that it is gone"}
	switch {
	case e.State == clusterv1.EdgeSkipped, e.Reason != nil && e.Reason.Code == EdgeNotAsked:
		return nil // no route could be made, or none is there any more
	case e.State == clusterv1.EdgeFailed && e.Reason != nil:
		left.Why = e.Reason.Message
	}
	return []clusterv1.Remaining{left}
}

// release goes before what it made: else its Pods would come again. What keeps a release in a namespace of our own from being
// removed holds nothing: the namespace goes with all that is in it.
func (d *removal) release(ctx context.Context, owns Ownership) ([]clusterv1.Remaining, error) {
	held := false
	if owns != Absent {
		var err error
		if held, err = d.releases.Holds(ctx, d.c, owns); err != nil {
			return nil, err
		}
	}
	if owns == Own || held {
		if err := d.host.Doom(ctx, d.c, owns); err != nil {
			return nil, err
		}
	}
	if held {
		err := d.releases.Uninstall(ctx, d.c)
		switch {
		case err != nil && transient(err):
			return nil, err
		case err != nil && owns != Own:
			return []clusterv1.Remaining{{Kind: "Release", Name: d.c.VClusterName, Why: fault.From(err).Message}}, nil
		case err != nil:
			d.r.log.WarnContext(ctx, "a release cannot be removed; its namespace is", slog.Any("error", err))
		default:
			d.r.event(clusterv1.Info, EventReleaseRemoved, "the release was removed; waiting for its Pods, volumes and Secrets to go")
		}
	}
	d.released = true
	return nil, nil
}

// tell stores what is left, and says in the cluster's reason what lasts.
func (d *removal) tell(ctx context.Context, left []clusterv1.Remaining, err error) {
	if len(left) > clusterv1.MaxRemaining { // what goes last says most
		left = append(slices.Clone(left[:clusterv1.MaxRemaining-1]), left[len(left)-1])
	}
	if len(left) > 0 && !slices.Equal(left, d.stored) {
		if err := d.store.SetRemaining(ctx, d.c, left); err != nil {
			d.r.log.WarnContext(ctx, "what remains of a cluster could not be recorded", slog.Any("error", err))
		} else {
			d.stored = left
		}
	}
	var reason clusterv1.Reason
	if err != nil {
		f := fault.From(err)
		d.r.log.WarnContext(ctx, "a step of the removal failed and is tried again", slog.Any("error", err))
		reason = clusterv1.Reason{Code: f.Code, Message: f.Message, Action: f.Action}
	} else {
		reason = clusterv1.Reason{Code: "delete_waiting", Message: "still there: " + summary(left)}
	}
	switch {
	case d.overdue():
		d.r.reason(clusterv1.Warning, EventDeleteWaiting, clusterv1.Reason{Code: "delete_incomplete",
			Message: fmt.Sprintf("not done after %s: %s", d.limits.Delete, reason.Message),
			Action:  "look at what holds it on the host cluster; the removal goes on by itself"})
	case err != nil:
		d.r.reason(clusterv1.Warning, EventRetrying, reason)
	case time.Since(d.began) > quietFor:
		d.r.reason(clusterv1.Info, EventDeleteWaiting, reason)
	}
}

func summary(left []clusterv1.Remaining) string {
	var named []string
	for _, one := range left[:min(len(left), shownInReason)] {
		text := one.Kind + " " + one.Name
		if one.Why != "" {
			text += " (" + one.Why + ")"
		}
		named = append(named, text)
	}
	if more := len(left) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(named, ", ")
}

// workers tells in the timeline which machines had joined, and what becomes of them.
func (s *Service) workers(c Cluster, found []clusterv1.Worker, err error) []clusterv1.Event {
	var e clusterv1.Event
	switch {
	case err != nil:
		e = s.event(clusterv1.Warning, EventWorkersUnknown, "which machines had joined is not known: "+fault.From(err).Message)
	case len(found) == 0:
		return nil
	default:
		names := make([]string, 0, shownInReason)
		for _, w := range found[:min(len(found), shownInReason)] {
			names = append(names, w.Name)
		}
		if more := len(found) - len(names); more > 0 {
			names = append(names, fmt.Sprintf("and %d more", more))
		}
		e = s.event(clusterv1.Warning, EventWorkersLeft, "machines that had joined: "+strings.Join(names, ", "))
	}
	e.Action = "on each machine run kubebyon-leave, or join it to another cluster with --force-join"
	if c.ControlPlane == clusterv1.VCluster {
		e.Action = "join each machine to another cluster with --force-join, or reset it"
	}
	return []clusterv1.Event{e}
}
