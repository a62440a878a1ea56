package edge

import (
	"context"
	"sync"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

const (
	probesAtOnce = 16
	probeTimeout = 5 * time.Second
	// proveEvery is how often a route that works is proved again.
	proveEvery = time.Minute
	// firstProbe and lastProbe are the pauses between proofs of a route that does not work.
	firstProbe, lastProbe = 100 * time.Millisecond, 10 * time.Second
	// grace is what a new route may take before its failure is called one.
	grace = 15 * time.Second
	// doubt is how many proofs in a row have to fail before a route that worked is called failed.
	doubt = 3
)

// proveAll proves each route that is due.
func (k *Keeper) proveAll(ctx context.Context) {
	slots := make(chan struct{}, probesAtOnce)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		due, next := k.due(time.Now())
		for _, d := range due {
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			running.Go(func() {
				defer func() { <-slots }()
				k.proveOne(ctx, d)
			})
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-k.prove:
			timer.Stop()
		}
	}
}

// probe is one proof that is to be made, of an entry as it was.
type probe struct {
	id, domain string
	from       time.Time
}

// due gives what is to be proved now, and how long until something else is. It counts as begun.
func (k *Keeper) due(now time.Time) ([]probe, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []probe
	next := proveEvery
	for id, e := range k.entries {
		if !e.applied {
			continue
		}
		if wait := e.due.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		e.due = now.Add(2 * probeTimeout)
		out = append(out, probe{id, e.route.Domain, e.from})
	}
	return out, max(next, 10*time.Millisecond)
}

func (k *Keeper) proveOne(ctx context.Context, p probe) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := k.prober.Probe(ctx, p.domain)
	if context.Cause(ctx) != nil && err == nil {
		err = context.Cause(ctx)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.entries[p.id]
	if e == nil || !e.applied || !e.from.Equal(p.from) {
		return // it was about a route that is no more
	}
	now := time.Now()
	if err == nil {
		e.fails, e.due = 0, now.Add(proveEvery)
		e.become(clusterv1.EdgeServing, clusterv1.Reason{}, now, false)
	} else {
		e.fails++
		e.due = now.Add(min(firstProbe<<min(e.fails-1, 10), lastProbe))
		switch {
		case !e.ready:
			e.become(clusterv1.EdgePending, clusterv1.Reason{Code: "control_plane_starting", Message: "the route is made; the control plane does not answer behind it yet"}, now, false)
		case e.State == clusterv1.EdgeServing && e.fails < doubt:
		case now.Sub(e.from) < grace && e.State == clusterv1.EdgePending:
			e.become(clusterv1.EdgePending, reasonOf(err), now, false)
		default:
			e.become(clusterv1.EdgeFailed, reasonOf(err), now, false)
		}
	}
	signal(k.prove) // the time of the next one changed
	if !e.told {
		signal(k.tell)
	}
}
