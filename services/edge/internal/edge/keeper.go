package edge

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	// gather is how long a change waits for others to come along with it.
	gather = 50 * time.Millisecond
	// between is the least time from one change of HAProxy to the next: a reload leaves an old process behind for as long as
	// its connections live.
	between = 500 * time.Millisecond
	// lookEvery is how soon everything that no event told of is noticed.
	lookEvery = 30 * time.Second
	// firstRetry and lastRetry are the pauses after a failure.
	firstRetry, lastRetry = 200 * time.Millisecond, 15 * time.Second
)

// Source tells what routes are made of.
type Source interface {
	// World fails while something of it cannot be known; routes then stay as they are.
	World(ctx context.Context) (World, error)
}

// Prober proves a route.
type Prober interface {
	// Probe makes a TLS handshake with the domain through HAProxy. Its faults say what answered instead.
	Probe(ctx context.Context, domain string) error
}

// Reporter tells the owner of clusters what was found out.
type Reporter interface {
	// Report is given at most clusterv1.MaxPublished at once, and is asked again where it fails.
	Report(ctx context.Context, reports []clusterv1.EdgeReport) error
}

// Keeper keeps one HAProxy to the routes that are asked for. No two Keepers may run on one HAProxy.
//
//	Wake, or a timer ──▶ World ──▶ Plane.Apply ──▶ Probe, route by route ──▶ Report
type Keeper struct {
	plane    Plane
	source   Source
	prober   Prober
	reporter Reporter
	log      *slog.Logger

	wake, prove, tell chan struct{} // each holds one: something is to be done

	mu      sync.Mutex
	entries map[string]*entry // by wish.id
	synced  time.Time         // when HAProxy was last known to hold the routes
	problem *clusterv1.Reason
	telling bool
}

// entry is one wish and what became of it.
type entry struct {
	wish
	clusterv1.Edge
	applied bool      // HAProxy runs with the route
	from    time.Time // since when
	fails   int       // probes in a row
	due     time.Time // of the next probe
	told    bool      // the Edge was reported
}

// NewKeeper joins the parts.
func NewKeeper(plane Plane, source Source, prober Prober, reporter Reporter, log *slog.Logger) *Keeper {
	return &Keeper{
		plane: plane, source: source, prober: prober, reporter: reporter, log: log, entries: map[string]*entry{},
		wake: make(chan struct{}, 1), prove: make(chan struct{}, 1), tell: make(chan struct{}, 1),
	}
}

// Wake says that something may have changed. It never waits.
func (k *Keeper) Wake() { signal(k.wake) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run works until ctx ends. What HAProxy serves then stays.
func (k *Keeper) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { k.keep(ctx) })
	parts.Go(func() { k.proveAll(ctx) })
	parts.Go(func() { k.reportAll(ctx) })
	parts.Wait()
}

func (k *Keeper) keep(ctx context.Context) {
	for retry := firstRetry; ; {
		changed, err := k.sync(ctx)
		wait, pauses := lookEvery, gather
		switch {
		case err != nil:
			wait, retry = retry, min(2*retry, lastRetry)
			pauses = min(wait, time.Second) // an event must not turn a failure into a storm
		case changed:
			retry, pauses = firstRetry, between
		default:
			retry = firstRetry
		}
		if !sleep(ctx, pauses) {
			return
		}
		timer := time.NewTimer(max(wait-pauses, 0))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-k.wake:
		}
		timer.Stop()
		if !sleep(ctx, gather) {
			return
		}
		select {
		case <-k.wake:
		default:
		}
	}
}

// sync brings HAProxy to what is asked for now.
func (k *Keeper) sync(ctx context.Context) (changed bool, err error) {
	world, err := k.source.World(ctx)
	if err != nil {
		k.troubled(ctx, err)
		return false, err
	}
	wishes := world.wishes()
	routes := make([]Route, 0, len(wishes))
	for _, w := range wishes {
		if w.route != nil {
			routes = append(routes, *w.route)
		}
	}
	applied, err := k.plane.Apply(ctx, routes)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	now := time.Now()
	k.troubled(ctx, err)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.synced = now
	}
	k.settle(wishes, now, err)
	if applied.Changed {
		k.log.InfoContext(ctx, "HAProxy was given the routes", slog.Int("routes", len(routes)), slog.Bool("reloaded", applied.Reloaded))
	}
	signal(k.prove)
	signal(k.tell)
	return applied.Changed, err
}

// settle takes the wishes over. failed is why HAProxy does not run with them; what it ran with before it still runs with.
func (k *Keeper) settle(wishes []wish, now time.Time, failed error) {
	seen := map[string]bool{}
	for _, w := range wishes {
		seen[w.id] = true
		e, known := k.entries[w.id]
		if !known {
			e = &entry{}
			k.entries[w.id] = e
		}
		same := known && e.host == w.host && w.route != nil && e.route != nil && w.route.equal(*e.route)
		if same && e.applied {
			e.ready = w.ready
			continue
		}
		moved := !known || e.host != w.host
		e.wish = w
		switch {
		case w.leaving && failed != nil: // HAProxy may lead there yet
			e.applied = false
			e.become(clusterv1.EdgeFailed, reasonOf(failed), now, moved)
		case w.route == nil:
			e.applied = false
			e.become(w.state, w.reason, now, moved)
		case failed != nil:
			e.applied = false
			e.become(clusterv1.EdgeFailed, reasonOf(failed), now, moved)
		default:
			e.applied, e.from, e.due, e.fails = true, now, now, 0
			if moved || e.State != clusterv1.EdgeServing { // an address that changed under a route that works is proved first
				e.become(clusterv1.EdgePending, w.reason, now, moved)
			}
		}
	}
	for id := range k.entries {
		if !seen[id] {
			delete(k.entries, id)
		}
	}
}

// become changes the state; anew says so even where it is the same.
func (e *entry) become(state clusterv1.EdgeState, reason clusterv1.Reason, now time.Time, anew bool) {
	was := clusterv1.Reason{}
	if e.Reason != nil {
		was = *e.Reason
	}
	if !anew && e.State == state && was == reason {
		return
	}
	if anew || e.State != state {
		e.Since = now.UTC().Truncate(time.Millisecond)
	}
	e.State, e.Reason, e.told = state, nil, false
	if reason != (clusterv1.Reason{}) {
		e.Reason = &reason
	}
}

// troubled remembers what keeps the whole edge from working, and logs it once.
func (k *Keeper) troubled(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		if k.problem != nil {
			k.log.InfoContext(ctx, "the edge works again")
		}
		k.problem = nil
		return
	}
	reason := reasonOf(err)
	if k.problem == nil || *k.problem != reason {
		k.log.WarnContext(ctx, "the routes cannot be brought up to date; those that HAProxy has stay", slog.Any("error", err))
	}
	k.problem = &reason
}

func reasonOf(err error) clusterv1.Reason {
	f := fault.From(err)
	return clusterv1.Reason{Code: f.Code, Message: f.Message, Action: f.Action}
}

// all are the entries in the order of their domains.
func (k *Keeper) all() []*entry {
	out := make([]*entry, 0, len(k.entries))
	for _, e := range k.entries {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b *entry) int { return compareEntries(a.host, a.id, b.host, b.id) })
	return out
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
