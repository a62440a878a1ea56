package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kubebyon/kubebyon/gateway/internal/idempotency"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
)

// Keys implements idempotency.Store.
type Keys struct {
	store *Store
	now   func() time.Time
}

var _ idempotency.Store = (*Keys)(nil)

// Keys makes an idempotency.Store. Without now its clock is the database's: replicas need not agree on the time.
func (s *Store) Keys(now func() time.Time) *Keys { return &Keys{store: s, now: now} }

func (k *Keys) clock() *time.Time {
	if k.now == nil {
		return nil
	}
	at := k.now()
	return &at
}

// HoldKey implements idempotency.Store. The primary key makes it one caller's; dead rows that another caller is removing are left to it.
func (k *Keys) HoldKey(ctx context.Context, userID string, keyHash []byte, r idempotency.Record, lease time.Duration, most int) (held bool, found idempotency.Record, err error) {
	for range 3 { // the record that is in the way may end before it is read
		held, found, err = k.holdKey(ctx, userID, keyHash, r, lease, most)
		if held || err != nil || found.Holder != "" {
			return held, found, err
		}
	}
	return false, idempotency.Record{}, idempotency.TooMany()
}

func (k *Keys) holdKey(ctx context.Context, userID string, keyHash []byte, r idempotency.Record, lease time.Duration, most int) (held bool, found idempotency.Record, err error) {
	at := k.clock()
	err = k.store.within(ctx, func(ctx context.Context) error {
		done, err := k.store.pool.Exec(ctx, `with clock as materialized (select coalesce($6::timestamptz, clock_timestamp()) as now),
			dead as (
				delete from idempotency_keys where (user_id, key_hash) in (
					select d.user_id, d.key_hash from idempotency_keys d where d.expires_at <= (select now from clock) and (d.user_id, d.key_hash) <> ($1, $2)
					order by d.expires_at limit 100 for update skip locked)
			) insert into idempotency_keys as kept (user_id, key_hash, holder, credential, fingerprint, expires_at)
			select $1, $2, $3, $4, $5, now + $7::interval from clock
			where (select count(*) from (select 1 from idempotency_keys where user_id = $1 and expires_at > now limit $8) counted) < $8
			on conflict (user_id, key_hash) do update set holder = excluded.holder, credential = excluded.credential, fingerprint = excluded.fingerprint,
				done = false, answer = null, expires_at = excluded.expires_at
			where kept.expires_at <= (select now from clock)`, userID, keyHash, r.Holder, r.Credential, r.Fingerprint, at, lease, most)
		if held = err == nil && done.RowsAffected() == 1; held || err != nil {
			return err
		}
		err = k.store.pool.QueryRow(ctx, `select holder, credential, fingerprint, done, answer from idempotency_keys
			where user_id = $1 and key_hash = $2 and expires_at > coalesce($3::timestamptz, clock_timestamp())`, userID, keyHash, at).
			Scan(&found.Holder, &found.Credential, &found.Fingerprint, &found.Done, &found.Answer)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	var answered *pgconn.PgError
	if errors.As(err, &answered) && answered.ConstraintName == "idempotency_keys_user_id_fkey" {
		return false, idempotency.Record{}, session.Refused() // the account has gone since its credential was looked at
	}
	return held, found, err
}

// KeepAnswer implements idempotency.Store.
func (k *Keys) KeepAnswer(ctx context.Context, userID string, keyHash []byte, holder string, answer []byte, life time.Duration) (kept bool, err error) {
	err = k.store.within(ctx, func(ctx context.Context) error {
		done, err := k.store.pool.Exec(ctx, `update idempotency_keys set done = true, answer = $4, expires_at = coalesce($5::timestamptz, clock_timestamp()) + $6::interval
			where user_id = $1 and key_hash = $2 and holder = $3 and not done`, userID, keyHash, holder, answer, k.clock(), life)
		kept = err == nil && done.RowsAffected() == 1
		return err
	})
	return kept, err
}

// FreeKey implements idempotency.Store.
func (k *Keys) FreeKey(ctx context.Context, userID string, keyHash []byte, holder string) error {
	return k.store.within(ctx, func(ctx context.Context) error {
		_, err := k.store.pool.Exec(ctx, `delete from idempotency_keys where user_id = $1 and key_hash = $2 and holder = $3 and not done`, userID, keyHash, holder)
		return err
	})
}
