package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// heartbeat is how often a lock's holder makes sure that it still has it.
const heartbeat = 2 * time.Second

// ErrLockLost ends the context of work whose lock may have passed to another process.
var ErrLockLost = errors.New("the lock was lost")

// Hold runs work while this process holds the advisory lock of that name; see HoldBy.
func Hold(ctx context.Context, pool *pgxpool.Pool, name string, work func(context.Context) error) (held bool, err error) {
	h := fnv.New64a()
	_, _ = h.Write([]byte("kubebyon/lock/" + name))
	return HoldBy(ctx, pool, func(ctx context.Context, conn *pgx.Conn) (got bool, err error) {
		err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(h.Sum64()>>1)).Scan(&got) //nolint:gosec // 63 bits
		return got, err
	}, work)
}

// HoldBy runs work in a session that take has got an advisory lock in. held is false, and work not run, where it got none. The
// session is a connection of its own beside pool's, and the lock ends with it, and so with the process, whatever ends that; when
// the connection breaks, work's context ends with ErrLockLost as its cause.
func HoldBy(ctx context.Context, pool *pgxpool.Pool, take func(context.Context, *pgx.Conn) (bool, error), work func(context.Context) error) (held bool, err error) {
	conn, end, err := Session(ctx, pool)
	if err != nil {
		return false, fmt.Errorf("postgres: a lock: %w", err)
	}
	defer end()
	if held, err = take(ctx, conn); err != nil || !held {
		if err != nil {
			err = fmt.Errorf("postgres: a lock: %w", err)
		}
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var beating sync.WaitGroup
	beating.Go(func() {
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := ping(ctx, conn); err != nil && ctx.Err() == nil {
					cancel(fmt.Errorf("%w: %w", ErrLockLost, err))
					return
				}
			}
		}
	})
	defer beating.Wait()
	defer cancel(nil)
	return true, work(ctx)
}

// Session opens a connection outside of the pool, without its statement timeout: what is locked on it may be held for long. The
// server notices within half a minute when this machine vanishes. end closes it, also when ctx is over.
func Session(ctx context.Context, pool *pgxpool.Pool) (conn *pgx.Conn, end func(), err error) {
	cfg := pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["statement_timeout"] = "0"
	cfg.RuntimeParams["tcp_keepalives_idle"] = "10"
	cfg.RuntimeParams["tcp_keepalives_interval"] = "5"
	cfg.RuntimeParams["tcp_keepalives_count"] = "3"
	cfg.Tracer = nil
	if conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return nil, nil, err
	}
	return conn, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}, nil
}

func ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return conn.Ping(ctx)
}
