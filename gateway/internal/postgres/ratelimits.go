package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/ratelimit"
)

// Tries implements ratelimit.Store.
type Tries struct {
	store *Store
	now   func() time.Time
}

var _ ratelimit.Store = (*Tries)(nil)

// Tries makes a ratelimit.Store. Without now its clock is the database's: replicas need not agree on the time.
func (s *Store) Tries(now func() time.Time) *Tries { return &Tries{store: s, now: now} }

func (t *Tries) clock() *time.Time {
	if t.now == nil {
		return nil
	}
	at := t.now()
	return &at
}

// CountTry implements ratelimit.Store. The row's lock puts concurrent tries in a row; excluded.tat is now + every.
func (t *Tries) CountTry(ctx context.Context, name string, key []byte, every, span time.Duration) (allowed bool, ahead time.Duration, fresh bool, err error) {
	var micros int64
	at := t.clock()
	err = t.store.within(ctx, func(ctx context.Context) error {
		err := t.store.pool.QueryRow(ctx, `with clock as materialized (select coalesce($3::timestamptz, clock_timestamp()) as now)
			insert into rate_limits as kept (name, key, tat) select $1, $2, now + $4::interval from clock
			on conflict (name, key) do update set tat = greatest(kept.tat + $4, excluded.tat) where kept.tat + $4 <= excluded.tat - $4 + $5::interval
			returning xmax = 0, (extract(epoch from tat - (select now from clock)) * 1000000)::bigint`,
			name, key, at, every, span).Scan(&fresh, &micros)
		if allowed = err == nil; !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		// One too many. The row may have gone since: then one is possible.
		err = t.store.pool.QueryRow(ctx, `select (extract(epoch from tat - coalesce($3::timestamptz, clock_timestamp())) * 1000000)::bigint
			from rate_limits where name = $1 and key = $2`, name, key, at).Scan(&micros)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return allowed && err == nil, time.Duration(micros) * time.Microsecond, fresh, err
}

// SweepTries implements ratelimit.Store. Rows that are in use stay for the next time.
func (t *Tries) SweepTries(ctx context.Context, name string, most int) error {
	return t.store.within(ctx, func(ctx context.Context) error {
		_, err := t.store.pool.Exec(ctx, `delete from rate_limits where name = $1 and key in (
				select key from rate_limits where name = $1 and (tat, key) <= (
					select tat, key from rate_limits where name = $1 order by tat desc, key desc offset $2 limit 1)
				for update skip locked)`, name, most)
		return err
	})
}
