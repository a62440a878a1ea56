package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/apitoken"
)

var _ apitoken.Store = (*Store)(nil)

// AddToken implements apitoken.Store.
func (s *Store) AddToken(ctx context.Context, userID string, hash []byte, t apitoken.Token, most int) error {
	refused := error(nil)
	err := s.within(ctx, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			// One at a time per account, so that the count holds.
			var id string
			if err := tx.QueryRow(ctx, `select id from users where id = $1 for no key update`, userID).Scan(&id); err != nil {
				return err
			}
			var has int
			if err := tx.QueryRow(ctx, `select count(*) from api_tokens where user_id = $1`, userID).Scan(&has); err != nil {
				return err
			}
			if has >= most {
				refused = apitoken.TooMany()
				return nil
			}
			_, err := tx.Exec(ctx, `insert into api_tokens (id, token_hash, user_id, name, scopes, created_at, expires_at)
				values ($1, $2, $3, $4, $5, $6, $7)`, t.ID, hash, userID, t.Name, []string(t.Scopes), t.CreatedAt, t.ExpiresAt)
			return err
		})
	})
	var answered *pgconn.PgError
	if errors.As(err, &answered) && answered.ConstraintName == "api_tokens_user_id_name_key" {
		return apitoken.NameTaken()
	}
	return errors.Join(err, refused)
}

// FindToken implements apitoken.Store.
func (s *Store) FindToken(ctx context.Context, hash []byte, now time.Time) (t apitoken.Token, a account.Account, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select t.id, t.name, t.scopes, t.created_at, t.expires_at, t.last_used_at, u.id, u.email, u.role, u.created_at
			from api_tokens t join users u on u.id = t.user_id where u.disabled_at is null and t.token_hash = $1 and t.expires_at > $2`, hash, now).
			Scan(&t.ID, &t.Name, (*[]string)(&t.Scopes), &t.CreatedAt, &t.ExpiresAt, &t.LastUsedAt, &a.ID, &a.Email, (*string)(&a.Role), &a.CreatedAt)
	})
	return t, a, err
}

// TokenUsed implements apitoken.Store.
func (s *Store) TokenUsed(ctx context.Context, id string, at time.Time, every time.Duration) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `update api_tokens set last_used_at = $2 where id = $1 and (last_used_at is null or last_used_at <= $3)`,
			id, at, at.Add(-every))
		return err
	})
}

// TokensOf implements apitoken.Store.
func (s *Store) TokensOf(ctx context.Context, userID string) (all []apitoken.Token, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, `select id, name, scopes, created_at, expires_at, last_used_at from api_tokens
			where user_id = $1 order by created_at desc, id`, userID)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t apitoken.Token, err error) {
			err = row.Scan(&t.ID, &t.Name, (*[]string)(&t.Scopes), &t.CreatedAt, &t.ExpiresAt, &t.LastUsedAt)
			return t, err
		})
		return err
	})
	return all, err
}

// DeleteToken implements apitoken.Store.
func (s *Store) DeleteToken(ctx context.Context, userID, id string) (had bool, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		tag, err := s.pool.Exec(ctx, `delete from api_tokens where user_id = $1 and id = $2`, userID, id)
		had = tag.RowsAffected() == 1
		return err
	})
	return had, err
}

// DeleteTokensOf implements apitoken.Store.
func (s *Store) DeleteTokensOf(ctx context.Context, userID string) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `delete from api_tokens where user_id = $1`, userID)
		return err
	})
}
