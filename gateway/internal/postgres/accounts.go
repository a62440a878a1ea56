package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
)

// firstAccount is the advisory lock that making the first account takes; the number is this lock's name.
const firstAccount = 0x6b62_7966_6972_7374

var _ account.Store = (*Store)(nil)

// AccountByEmail implements account.Store.
func (s *Store) AccountByEmail(ctx context.Context, email string) (a account.Account, passwordHash string, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select id, email, role, created_at, coalesce(password_hash, '') from users where email = $1 and disabled_at is null`, email).
			Scan(&a.ID, &a.Email, &a.Role, &a.CreatedAt, &passwordHash)
	})
	return a, passwordHash, err
}

// AnyAccount implements account.Store.
func (s *Store) AnyAccount(ctx context.Context) (exists bool, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select exists (select from users)`).Scan(&exists)
	})
	return exists, err
}

// CreateFirst implements account.Store.
func (s *Store) CreateFirst(ctx context.Context, a account.Account, passwordHash string) (created bool, err error) {
	err = s.beforeFirst(ctx, func(ctx context.Context, tx pgx.Tx) error {
		created = true
		return insertFirst(ctx, tx, a, passwordHash)
	})
	return created && err == nil, err
}

// AddSetupLink implements account.Store.
func (s *Store) AddSetupLink(ctx context.Context, tokenHash []byte, expiresAt time.Time) (added bool, err error) {
	err = s.beforeFirst(ctx, func(ctx context.Context, tx pgx.Tx) error {
		added = true
		_, err := tx.Exec(ctx, `insert into setup_links (token_hash, expires_at) values ($1, $2)`, tokenHash, expiresAt)
		return err
	})
	return added && err == nil, err
}

// HasSetupLink implements account.Store.
func (s *Store) HasSetupLink(ctx context.Context, tokenHash []byte, now time.Time) (found bool, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select exists (select from setup_links where token_hash = $1 and expires_at > $2)
			and not exists (select from users)`, tokenHash, now).Scan(&found)
	})
	return found, err
}

// UseSetupLink implements account.Store.
func (s *Store) UseSetupLink(ctx context.Context, tokenHash []byte, now time.Time, a account.Account, passwordHash string) (used bool, err error) {
	err = s.beforeFirst(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `delete from setup_links where token_hash = $1 and expires_at > $2`, tokenHash, now)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		used = true
		return insertFirst(ctx, tx, a, passwordHash)
	})
	return used && err == nil, err
}

// beforeFirst runs do in a transaction only while there is no account, and no other caller's do meanwhile.
func (s *Store) beforeFirst(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	return s.within(ctx, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(firstAccount)); err != nil {
				return err
			}
			var exists bool
			if err := tx.QueryRow(ctx, `select exists (select from users)`).Scan(&exists); err != nil || exists {
				return err
			}
			return do(ctx, tx)
		})
	})
}

func insertFirst(ctx context.Context, tx pgx.Tx, a account.Account, passwordHash string) error {
	if _, err := tx.Exec(ctx, `insert into users (id, email, password_hash, role, created_at) values ($1, $2, $3, $4, $5)`,
		a.ID, a.Email, passwordHash, a.Role, a.CreatedAt); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `delete from setup_links`)
	return err
}
