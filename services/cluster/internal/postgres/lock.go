package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	pkgpostgres "github.com/kubebyon/kubebyon/pkg/postgres"
)

// lockClass keeps the clusters' advisory locks apart from all others.
const lockClass = 0x6b62

// Locker gives each cluster's work to one process at a time.
type Locker struct{ pool *pgxpool.Pool }

// NewLocker takes its settings from pool; every held lock has a connection of its own outside of it.
func NewLocker(pool *pgxpool.Pool) *Locker { return &Locker{pool: pool} }

// While runs work under the cluster's lock, as pkg/postgres.HoldBy says. held is false, and work not run, where another holds
// it. For a cluster that is gone it does nothing.
func (l *Locker) While(ctx context.Context, id string, work func(context.Context) error) (held bool, err error) {
	held, err = pkgpostgres.HoldBy(ctx, l.pool, func(ctx context.Context, conn *pgx.Conn) (got bool, err error) {
		err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1, lock_key) FROM clusters WHERE id = $2", lockClass, id).Scan(&got)
		return got, err
	}, work)
	if !held && errors.Is(err, pgx.ErrNoRows) {
		return true, nil
	}
	return held, err
}
