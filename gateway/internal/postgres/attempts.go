package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/attempt"
)

// keptAttempts is how many of a key's attempts are kept: more than count, for those that are withdrawn.
const keptAttempts = 16

var _ attempt.Store = (*Store)(nil)

// Attempt implements attempt.Store. The keys' rows are locked in their order, so that no two callers wait for each other.
func (s *Store) Attempt(ctx context.Context, keys [][]byte, now, since time.Time, free int, solved bool) (may bool, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `insert into login_failures (key, recent, last_at) select key, '{}', $2 from unnest($1::bytea[]) as given (key) order by key
				on conflict (key) do update set recent = login_failures.recent
				returning (select count(*) from unnest(login_failures.recent) as failed (at) where at > $3)`, keys, now, since)
			if err != nil {
				return err
			}
			may = true
			var failed int
			if _, err := pgx.ForEachRow(rows, []any{&failed}, func() error {
				may = may && (solved || failed < free)
				return nil
			}); err != nil || !may {
				return err
			}
			_, err = tx.Exec(ctx, `update login_failures set recent = (array_prepend($2::timestamptz, recent))[1:$3], last_at = greatest(last_at, $2)
				where key = any($1)`, keys, now, keptAttempts)
			return err
		})
	})
	return may && err == nil, err
}

// Withdraw implements attempt.Store.
func (s *Store) Withdraw(ctx context.Context, keys [][]byte, at time.Time) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `with mine as (
				select key, array_position(recent, $2::timestamptz) as place from login_failures where key = any($1) order by key for update
			) update login_failures f set recent = f.recent[:place - 1] || f.recent[place + 1:]
			from mine where f.key = mine.key and place is not null`, keys, at)
		return err
	})
}

// Forget implements attempt.Store.
func (s *Store) Forget(ctx context.Context, key []byte) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `delete from login_failures where key = $1`, key)
		return err
	})
}

// SweepAttempts implements attempt.Store. Rows that are in use stay for the next time.
func (s *Store) SweepAttempts(ctx context.Context, since time.Time, most int) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `with dead as (
				delete from login_failures where key in (select key from login_failures where last_at <= $1 for update skip locked)
			) delete from login_failures where key in (
				select key from login_failures where last_at > $1 order by last_at desc offset $2 for update skip locked)`, since, most)
		return err
	})
}
