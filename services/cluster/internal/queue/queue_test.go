package queue

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// silent is a database that takes a request and never answers.
type silent struct{ asked, taken int }

func (s *silent) Abandoned(ctx context.Context, _ string) ([]string, error) {
	if s.asked++; s.asked > 2 {
		return []string{"cl_a"}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *silent) Enqueue(context.Context, string) error {
	s.taken++
	return errors.New("not this time")
}

func TestTheSearchForAbandonedWorkNeverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := &silent{}
		q := &Queue{orders: orders, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); q.reap(ctx) }()
		time.Sleep(time.Minute)
		cancel()
		<-done
		if orders.taken < 10 {
			t.Errorf("asked %d times, took up %d", orders.asked, orders.taken)
		}
	})
}
