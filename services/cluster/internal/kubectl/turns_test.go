package kubectl

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

func few() limits {
	return limits{all: 3, user: 2, tenant: 2, waiting: 3, waitingPerUser: 2, patience: 5 * time.Second}
}

func mustTake(t *testing.T, turns *turns, user, tenant string) func() {
	t.Helper()
	done, err := turns.take(t.Context(), user, tenant)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// later takes a turn in its own goroutine; the channel tells what became of it.
func later(ctx context.Context, turns *turns, user, tenant string, hold time.Duration) <-chan error {
	out := make(chan error, 1)
	go func() {
		done, err := turns.take(ctx, user, tenant)
		if err == nil {
			time.Sleep(hold)
			done()
		}
		out <- err
	}()
	synctest.Wait()
	return out
}

func TestTurnsGoPastThoseWhoWaitForTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(few())
		first, second := mustTake(t, turns, "ann", "one"), mustTake(t, turns, "ann", "two")
		waits := later(t.Context(), turns, "ann", "three", time.Second)
		began := time.Now()
		third := mustTake(t, turns, "bob", "one")
		if time.Since(began) != 0 {
			t.Error("bob waited for ann")
		}
		third()
		first()
		if err := <-waits; err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		second()
		first() // again is nothing
		if turns.running != 0 || len(turns.byUser)+len(turns.byTenant)+len(turns.queued)+len(turns.waiters) != 0 {
			t.Errorf("left behind: %+v", turns)
		}
	})
}

func TestTurnsSayWhoIsInTheWay(t *testing.T) {
	for name, c := range map[string]struct {
		running      [][2]string
		user, tenant string
		kind         fault.Kind
	}{
		"the user":   {[][2]string{{"ann", "one"}, {"ann", "two"}}, "ann", "three", fault.RateLimited},
		"the tenant": {[][2]string{{"ann", "one"}, {"bob", "one"}}, "eve", "one", fault.Unavailable},
		"all":        {[][2]string{{"ann", "one"}, {"bob", "two"}, {"eve", "three"}}, "joe", "four", fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turns := newTurns(few())
				for _, r := range c.running {
					defer mustTake(t, turns, r[0], r[1])()
				}
				began := time.Now()
				_, err := turns.take(t.Context(), c.user, c.tenant)
				if f := fault.From(err); f.Kind != c.kind || f.Code != "kubectl_busy" || f.Action == "" || time.Since(began) != 5*time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				if len(turns.waiters)+len(turns.queued) != 0 {
					t.Errorf("it still waits: %+v", turns)
				}
			})
		})
	}
}

func TestTurnsBoundThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(few())
		for i := range 3 {
			defer mustTake(t, turns, fmt.Sprint("u", i), fmt.Sprint("t", i))()
		}
		var all []<-chan error
		for range 2 {
			all = append(all, later(t.Context(), turns, "ann", "one", 0))
		}
		began := time.Now()
		if _, err := turns.take(t.Context(), "ann", "one"); fault.From(err).Code != "kubectl_busy" || time.Since(began) != 0 {
			t.Errorf("the user's third: %v after %v", err, time.Since(began))
		}
		all = append(all, later(t.Context(), turns, "bob", "one", 0))
		if _, err := turns.take(t.Context(), "eve", "one"); fault.From(err).Code != "kubectl_busy" || time.Since(began) != 0 {
			t.Errorf("the fourth: %v after %v", err, time.Since(began))
		}
		for _, one := range all {
			if err := <-one; fault.From(err).Code != "kubectl_busy" {
				t.Error(err)
			}
		}
	})
}

func TestWhoeverLeavesTakesNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(limits{all: 1, user: 1, tenant: 1, waiting: 1, waitingPerUser: 1, patience: time.Minute})
		first := mustTake(t, turns, "ann", "one")
		ctx, leave := context.WithCancel(t.Context())
		gone := later(ctx, turns, "bob", "two", 0)
		leave()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		first()
		mustTake(t, turns, "eve", "three")()
		if turns.running != 0 {
			t.Errorf("%+v", turns)
		}
	})
}
