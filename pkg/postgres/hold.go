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

// Hold runs work while this process holds the advisory lock of that name. held is false, and work not run, where another
// process holds it. The lock has a connection of its own beside pool's and ends with the process, whatever ends it; when
// that connection breaks, work's context ends with ErrLockLost as its cause.
func Hold(ctx context.Context, pool *pgxpool.Pool, name string, work func(context.Context) error) (held bool, err error) {
	cfg := pool.Config().ConnConfig.Copy()
	// What is locked may be held for long; and the server notices within half a minute when this machine vanishes.
	cfg.RuntimeParams["statement_timeout"] = "0"
	cfg.RuntimeParams["tcp_keepalives_idle"] = "10"
	cfg.RuntimeParams["tcp_keepalives_interval"] = "5"
	cfg.RuntimeParams["tcp_keepalives_count"] = "3"
	cfg.Tracer = nil
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return false, fmt.Errorf("postgres: the lock %q: %w", name, err)
	}
	defer closeConn(ctx, conn)
	h := fnv.New64a()
	_, _ = h.Write([]byte("kubebyon/lock/" + name))
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(h.Sum64()>>1)).Scan(&held); err != nil || !held { //nolint:gosec // 63 bits
		if err != nil {
			err = fmt.Errorf("postgres: the lock %q: %w", name, err)
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

func ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return conn.Ping(ctx)
}

// closeConn ends the session, and with it its locks, also when the work's context is over.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
