// Package lifecycle owns a process's long-running goroutines: it starts them together and waits for every one. It must
// never leave one behind.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
)

// Part is one thing that runs until its context ends. Run returning nil before that is fine and stops nothing else.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
}

// Run starts every part and returns when all have returned. The first failure ends the others' context and is what Run
// returns, with the part's name. A part that returns its context's end after that end has not failed. A panic in a part
// is its failure.
//
//	running ──(ctx ends, or a part fails)──▶ stopping ──(the last part returned)──▶ Run returns
func Run(ctx context.Context, parts ...Part) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	for _, p := range parts {
		wg.Go(func() {
			err := run(ctx, p)
			if err == nil || (ctx.Err() != nil && isEnd(ctx, err)) {
				return
			}
			once.Do(func() {
				first = fmt.Errorf("%s: %w", p.Name, err)
				cancel(first)
			})
		})
	}
	wg.Wait()
	return first
}

func run(ctx context.Context, p Part) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return p.Run(ctx)
}

// WithSignals ends ctx at SIGINT or SIGTERM. A second signal then kills the process, for whoever cannot wait.
func WithSignals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// isEnd reports whether err says no more than that ctx ended.
func isEnd(ctx context.Context, err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))
}
