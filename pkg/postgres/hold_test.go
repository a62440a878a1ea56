package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

func TestHold(t *testing.T) {
	pool, err := postgres.Open(t.Context(), pgtest.New(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	never := func(context.Context) error { t.Error("it works without the lock"); return nil }
	failed := errors.New("failed")
	held, err := postgres.Hold(t.Context(), pool, "a", func(ctx context.Context) error {
		if held, err := postgres.Hold(ctx, pool, "a", never); held || err != nil {
			t.Errorf("held twice: %v, %v", held, err)
		}
		other := false
		if held, err := postgres.Hold(ctx, pool, "b", func(context.Context) error { other = true; return nil }); !held || err != nil || !other {
			t.Errorf("another lock: %v, %v", held, err)
		}
		return failed
	})
	if !held || !errors.Is(err, failed) {
		t.Errorf("%v, %v", held, err)
	}

	// The server ends the session: the work learns that it is alone no more.
	held, err = postgres.Hold(t.Context(), pool, "a", func(ctx context.Context) error {
		if _, err := pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted`); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Minute):
			return errors.New("it never learnt")
		}
	})
	if !held || !errors.Is(err, postgres.ErrLockLost) {
		t.Errorf("%v, %v", held, err)
	}
	if held, err := postgres.Hold(t.Context(), pool, "a", func(context.Context) error { return nil }); !held || err != nil {
		t.Errorf("the lock stays with what is gone: %v, %v", held, err)
	}
}
