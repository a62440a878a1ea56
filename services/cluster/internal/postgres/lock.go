package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lockClass keeps the clusters' advisory locks apart from all others.
const lockClass = 0x6b62

// heartbeat is how often a lock's holder makes sure that it still has it.
const heartbeat = 2 * time.Second

// ErrLockLost ends the context of work whose lock may have passed to another replica.
var ErrLockLost = errors.New("the cluster's lock was lost")

// Locker gives each cluster's work to one process at a time.
type Locker struct{ pool *pgxpool.Pool }

// NewLocker takes its settings from pool; every held lock has a connection of its own outside of it.
func NewLocker(pool *pgxpool.Pool) *Locker { return &Locker{pool: pool} }

// While runs work under the cluster's lock. held is false, and work not run, where another holds it. For a cluster that
// is gone it does nothing. The lock ends with the process, whatever ends it; when the connection that holds it breaks, work's context ends
// with ErrLockLost as its cause.
func (l *Locker) While(ctx context.Context, id string, work func(context.Context) error) (held bool, err error) {
	conn, err := dedicated(ctx, l.pool)
	if err != nil {
		return false, fmt.Errorf("cluster lock: %w", err)
	}
	defer closeConn(ctx, conn)
	var got bool
	err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1, lock_key) FROM clusters WHERE id = $2", lockClass, id).Scan(&got)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("cluster lock: %w", err)
	case !got:
		return false, nil
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
