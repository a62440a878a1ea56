package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/secondfactor"
)

var _ secondfactor.Store = (*Store)(nil)

// SecondFactor implements secondfactor.Store.
func (s *Store) SecondFactor(ctx context.Context, userID string) (f secondfactor.State, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select secret, created_at, confirmed_at is not null from second_factors where user_id = $1`, userID).
			Scan(&f.Sealed, &f.CreatedAt, &f.Confirmed)
	})
	return f, err
}

// AddSecondFactor implements secondfactor.Store. The tries stay: beginning again buys no more of them.
func (s *Store) AddSecondFactor(ctx context.Context, userID string, sealed []byte, now time.Time) (bool, error) {
	return s.changed(ctx, `insert into second_factors as f (user_id, secret, created_at, tries_since) values ($1, $2, $3, $3)
		on conflict (user_id) do update set secret = excluded.secret, created_at = excluded.created_at where f.confirmed_at is null`, userID, sealed, now)
}

// TrySecondFactor implements secondfactor.Store.
func (s *Store) TrySecondFactor(ctx context.Context, userID string, now, since time.Time, most int) (bool, error) {
	return s.changed(ctx, `update second_factors set tries = case when tries_since <= $3 then 1 else tries + 1 end,
			tries_since = case when tries_since <= $3 or tries = 0 then $2 else tries_since end
		where user_id = $1 and (tries < $4 or tries_since <= $3)`, userID, now, since, most)
}

// UseStep implements secondfactor.Store.
func (s *Store) UseStep(ctx context.Context, userID string, step int64) (bool, error) {
	return s.changed(ctx, `update second_factors set last_step = $2, tries = 0
		where user_id = $1 and last_step < $2 and confirmed_at is not null`, userID, step)
}

// ConfirmSecondFactor implements secondfactor.Store.
func (s *Store) ConfirmSecondFactor(ctx context.Context, userID string, sealed []byte, step int64, recovery [][]byte, now time.Time) (bool, error) {
	return s.changed(ctx, `with confirmed as (
			update second_factors set confirmed_at = $5, last_step = $3, tries = 0
			where user_id = $1 and secret = $2 and confirmed_at is null and last_step < $3 returning user_id
		) insert into recovery_codes (user_id, code_hash) select user_id, unnest($4::bytea[]) from confirmed`, userID, sealed, step, recovery, now)
}

// UseRecovery implements secondfactor.Store.
func (s *Store) UseRecovery(ctx context.Context, userID string, hash []byte) (bool, error) {
	return s.changed(ctx, `with used as (delete from recovery_codes where user_id = $1 and code_hash = $2 returning user_id)
		update second_factors set tries = 0 where user_id in (select user_id from used)`, userID, hash)
}

// ReplaceRecovery implements secondfactor.Store.
func (s *Store) ReplaceRecovery(ctx context.Context, userID string, hashes [][]byte) error {
	return s.within(ctx, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			// The factor's lock, so that two callers do not leave both sets.
			if _, err := tx.Exec(ctx, `select from second_factors where user_id = $1 for update`, userID); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `delete from recovery_codes where user_id = $1`, userID); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `insert into recovery_codes (user_id, code_hash)
				select f.user_id, unnest($2::bytea[]) from second_factors f where f.user_id = $1`, userID, hashes)
			return err
		})
	})
}

// RemoveSecondFactor implements secondfactor.Store.
func (s *Store) RemoveSecondFactor(ctx context.Context, userID string) error {
	_, err := s.changed(ctx, `delete from second_factors where user_id = $1`, userID)
	return err
}

// TakeSecondFactor implements secondfactor.Store.
func (s *Store) TakeSecondFactor(ctx context.Context, userID string) error {
	return s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `with factor as (delete from second_factors where user_id = $1),
				ended as (delete from sessions where user_id = $1)
			select id from users where id = $1`, userID).Scan(&userID)
	})
}

// changed says whether the statement changed a row.
func (s *Store) changed(ctx context.Context, sql string, values ...any) (yes bool, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		tag, err := s.pool.Exec(ctx, sql, values...)
		yes = tag.RowsAffected() > 0
		return err
	})
	return yes, err
}
