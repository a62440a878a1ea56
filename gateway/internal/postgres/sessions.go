package postgres

import (
	"context"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/session"
)

var _ session.Store = (*Store)(nil)

// AddSession implements session.Store.
func (s *Store) AddSession(ctx context.Context, tokenHash []byte, n session.Session) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `with dead as (
				delete from sessions where user_id = $2 and (expires_at <= $3 or last_seen_at <= $5)
			) insert into sessions (token_hash, user_id, created_at, last_seen_at, expires_at) values ($1, $2, $3, $3, $4)`,
			tokenHash, n.Account.ID, n.CreatedAt, n.ExpiresAt, n.CreatedAt.Add(-session.Idle))
		return err
	})
}

// FindSession implements session.Store.
func (s *Store) FindSession(ctx context.Context, tokenHash []byte, now, seenAfter time.Time) (n session.Session, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select u.id, u.email, u.role, u.created_at, s.created_at, s.last_seen_at, s.expires_at
			from sessions s join users u on u.id = s.user_id
			where u.disabled_at is null and s.token_hash = $1 and s.expires_at > $2 and s.last_seen_at > $3`, tokenHash, now, seenAfter).
			Scan(&n.Account.ID, &n.Account.Email, (*string)(&n.Account.Role), &n.Account.CreatedAt, &n.CreatedAt, &n.LastSeenAt, &n.ExpiresAt)
	})
	return n, err
}

// SessionSeen implements session.Store.
func (s *Store) SessionSeen(ctx context.Context, tokenHash []byte, at time.Time) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `update sessions set last_seen_at = $2 where token_hash = $1 and last_seen_at < $2`, tokenHash, at)
		return err
	})
}

// DeleteSession implements session.Store.
func (s *Store) DeleteSession(ctx context.Context, tokenHash []byte) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `delete from sessions where token_hash = $1`, tokenHash)
		return err
	})
}
