package postgres

import (
	"context"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/session"
)

var _ session.Store = (*Store)(nil)

// AddSession implements session.Store.
func (s *Store) AddSession(ctx context.Context, tokenHash []byte, n session.Session) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `with dead as (
				delete from sessions where token_hash in (
					select token_hash from sessions where expires_at <= $4 or last_seen_at <= $6 limit 100 for update skip locked)
			) insert into sessions (token_hash, id, user_id, created_at, last_seen_at, expires_at, client_address, user_agent)
			values ($1, $2, $3, $4, $4, $5, $7, $8)`,
			tokenHash, n.ID, n.Account.ID, n.CreatedAt, n.ExpiresAt, n.CreatedAt.Add(-session.Idle), address(n.Client.Address), n.Client.UserAgent)
		return err
	})
}

// FindSession implements session.Store.
func (s *Store) FindSession(ctx context.Context, tokenHash []byte, now, seenAfter time.Time) (n session.Session, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select u.id, u.email, u.role, u.created_at, s.id, s.created_at, s.last_seen_at, s.expires_at
			from sessions s join users u on u.id = s.user_id
			where u.disabled_at is null and s.token_hash = $1 and s.expires_at > $2 and s.last_seen_at > $3`, tokenHash, now, seenAfter).
			Scan(&n.Account.ID, &n.Account.Email, (*string)(&n.Account.Role), &n.Account.CreatedAt, &n.ID, &n.CreatedAt, &n.LastSeenAt, &n.ExpiresAt)
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

// SessionsOf implements session.Store.
func (s *Store) SessionsOf(ctx context.Context, userID string, now, seenAfter time.Time, most int) (all []session.Session, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, `select id, created_at, last_seen_at, expires_at, client_address, user_agent from sessions
			where user_id = $1 and expires_at > $2 and last_seen_at > $3 order by last_seen_at desc, id limit $4`, userID, now, seenAfter, most)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (n session.Session, err error) {
			var from string
			err = row.Scan(&n.ID, &n.CreatedAt, &n.LastSeenAt, &n.ExpiresAt, &from, &n.Client.UserAgent)
			n.Client.Address, _ = netip.ParseAddr(from)
			return n, err
		})
		return err
	})
	return all, err
}

// DeleteSessionOf implements session.Store.
func (s *Store) DeleteSessionOf(ctx context.Context, userID, id string) (had bool, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		tag, err := s.pool.Exec(ctx, `delete from sessions where user_id = $1 and id = $2`, userID, id)
		had = tag.RowsAffected() == 1
		return err
	})
	return had, err
}

// DeleteSessionsOf implements session.Store.
func (s *Store) DeleteSessionsOf(ctx context.Context, userID, except string) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `delete from sessions where user_id = $1 and id <> $2`, userID, except)
		return err
	})
}

// address is empty where there is none.
func address(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
