package kubectl

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// limits of how many run and wait at once.
type limits struct {
	all, user, tenant       int
	waiting, waitingPerUser int // besides those that run
	patience                time.Duration
}

// usual limits. All that run and wait leave room among the service's workers for its other methods.
func usual() limits {
	return limits{all: min(2*runtime.GOMAXPROCS(0), 24), user: 4, tenant: 8, waiting: 32, waitingPerUser: 20, patience: 5 * time.Second}
}

// turns lets runs begin in the order in which they came, past those that have to wait for one of their own user or tenant.
type turns struct {
	limits limits

	mu                       sync.Mutex
	running                  int
	byUser, byTenant, queued map[string]int
	waiters                  []*waiter // none of them may run now
}

type waiter struct {
	user, tenant string
	turn         chan struct{} // closed when it runs
}

func newTurns(l limits) *turns {
	return &turns{limits: l, byUser: map[string]int{}, byTenant: map[string]int{}, queued: map[string]int{}}
}

// take waits for a turn, which the caller ends with done. It fails with kubectl_busy: rate_limited where the user's own runs are in
// the way, unavailable otherwise.
func (t *turns) take(ctx context.Context, user, tenant string) (done func(), err error) {
	w := &waiter{user, tenant, make(chan struct{})}
	t.mu.Lock()
	switch {
	case t.fits(w):
		t.run(w)
	case len(t.waiters) >= t.limits.waiting, t.queued[user] >= t.limits.waitingPerUser:
		err = t.busy(w)
	default:
		t.waiters = append(t.waiters, w)
		t.queued[user]++
	}
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	patience := time.NewTimer(t.limits.patience)
	defer patience.Stop()
	select {
	case <-w.turn:
	case <-ctx.Done():
		err = ctx.Err()
	case <-patience.C:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-w.turn: // it may have come at the last moment
		if ctx.Err() == nil {
			return sync.OnceFunc(func() { t.end(w) }), nil
		}
		t.leave(w)
		return nil, ctx.Err()
	default:
	}
	if err == nil {
		err = t.busy(w)
	}
	t.waiters = slices.DeleteFunc(t.waiters, func(other *waiter) bool { return other == w })
	t.count(t.queued, user, -1)
	return nil, err
}

func (t *turns) fits(w *waiter) bool {
	return t.running < t.limits.all && t.byUser[w.user] < t.limits.user && t.byTenant[w.tenant] < t.limits.tenant
}

func (t *turns) run(w *waiter) {
	t.running++
	t.byUser[w.user]++
	t.byTenant[w.tenant]++
	close(w.turn)
}

func (t *turns) end(w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave(w)
}

func (t *turns) leave(w *waiter) {
	t.running--
	t.count(t.byUser, w.user, -1)
	t.count(t.byTenant, w.tenant, -1)
	t.waiters = slices.DeleteFunc(t.waiters, func(next *waiter) bool {
		if !t.fits(next) {
			return false
		}
		t.count(t.queued, next.user, -1)
		t.run(next)
		return true
	})
}

// count keeps no key that stands for none.
func (t *turns) count(of map[string]int, key string, by int) {
	if of[key] += by; of[key] <= 0 {
		delete(of, key)
	}
}

func (t *turns) busy(w *waiter) error {
	const code, soon = "kubectl_busy", "try again in a moment"
	switch {
	case t.byUser[w.user] >= t.limits.user:
		return fault.New(fault.RateLimited, code, "this account runs %d kubectl commands at once, which is all that it may", t.limits.user).
			Do("wait until one of them has answered, then try again")
	case t.byTenant[w.tenant] >= t.limits.tenant:
		return fault.New(fault.Unavailable, code, "the cluster runs %d kubectl commands at once, which is all that it may", t.limits.tenant).Do(soon)
	}
	return fault.New(fault.Unavailable, code, "too many kubectl commands run at once").Do(soon)
}
