package lifecycle_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubebyon/kubebyon/pkg/lifecycle"
)

func TestRunWaitsForEveryPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var ended atomic.Int32
		slow := func(d time.Duration) lifecycle.Part {
			return lifecycle.Part{Name: "slow", Run: func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(d)
				ended.Add(1)
				return ctx.Err()
			}}
		}
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		err := lifecycle.Run(ctx, slow(5*time.Second), slow(7*time.Second),
			lifecycle.Part{Name: "short", Run: func(context.Context) error { return nil }})
		if err != nil {
			t.Fatalf("a clean stop returned %v", err)
		}
		if ended.Load() != 2 || time.Since(start) != 8*time.Second {
			t.Fatalf("%d parts ended after %v", ended.Load(), time.Since(start))
		}
	})
}

func TestFirstErrorStopsTheOthers(t *testing.T) {
	boom := errors.New("boom")
	err := lifecycle.Run(t.Context(),
		lifecycle.Part{Name: "good", Run: func(ctx context.Context) error { <-ctx.Done(); return errors.New("late") }},
		lifecycle.Part{Name: "bad", Run: func(context.Context) error { return boom }})
	if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "bad: ") {
		t.Fatalf("got %v", err)
	}
}

func TestPanicIsAnError(t *testing.T) {
	err := lifecycle.Run(t.Context(), lifecycle.Part{Name: "p", Run: func(context.Context) error { panic("ouch") }})
	if err == nil || !strings.Contains(err.Error(), "ouch") {
		t.Fatalf("got %v", err)
	}
}

func TestRealFailureDuringStopIsReported(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := lifecycle.Run(ctx, lifecycle.Part{Name: "p", Run: func(context.Context) error { return errors.New("lost data") }})
	if err == nil {
		t.Fatal("a failure while stopping was dropped")
	}
}

func TestSignalEndsTheContext(t *testing.T) {
	ctx, stop := lifecycle.WithSignals(t.Context())
	defer stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("SIGTERM did not end the context")
	}
}
