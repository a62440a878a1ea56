// Package postgres keeps the gateway's accounts, sessions and settings in PostgreSQL. It must never put a password,
// a token or a DSN into an error.
package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// patience is how long one call may take: a database that hangs must not hold requests.
const patience = 3 * time.Second

// firstAccount is the advisory lock that making the first account takes; the number is this lock's name.
const firstAccount = 0x6b62_7966_6972_7374

// Store implements account.Store, session.Store and settings.Store.
type Store struct{ pool *pgxpool.Pool }

var (
	_ account.Store = (*Store)(nil)
	_ session.Store = (*Store)(nil)
)

// NewStore uses a pool whose database is migrated.
func NewStore(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

// Ping says whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	return s.within(ctx, func(ctx context.Context) error { return s.pool.Ping(ctx) })
}

// AccountByEmail implements account.Store.
func (s *Store) AccountByEmail(ctx context.Context, email string) (a account.Account, passwordHash string, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select id, email, role, created_at, password_hash from users where email = $1`, email).
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
			where s.token_hash = $1 and s.expires_at > $2 and s.last_seen_at > $3`, tokenHash, now, seenAfter).
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

// ReadSettings implements settings.Store.
func (s *Store) ReadSettings(ctx context.Context) (map[string]string, error) {
	values := map[string]string{}
	err := s.within(ctx, func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, `select name, value from settings`)
		if err != nil {
			return err
		}
		var name, value string
		_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
			values[name] = value
			return nil
		})
		return err
	})
	return values, err
}

// WriteSettings implements settings.Store.
func (s *Store) WriteSettings(ctx context.Context, values map[string]string, by string) error {
	var names, texts []string
	for name, text := range values {
		names, texts = append(names, name), append(texts, text)
	}
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `insert into settings (name, value, updated_by)
			select name, value, $3 from unnest($1::text[], $2::text[]) as given (name, value) order by name
			on conflict (name) do update set value = excluded.value, updated_by = excluded.updated_by, updated_at = now()`,
			names, texts, by)
		return err
	})
}

// within bounds one call and gives its failure a kind.
func (s *Store) within(ctx context.Context, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := do(bounded)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err() // the caller's own end
	case errors.Is(err, pgx.ErrNoRows):
		return fault.New(fault.NotFound, "not_found", "there is no such record")
	case away(err):
		return fault.New(fault.Unavailable, "database_unavailable", "the database does not answer").
			Do("try again in a few seconds").Because(err)
	default:
		return err
	}
}

// away says whether err means that the server is not there, rather than that it refused.
func away(err error) bool {
	var answered *pgconn.PgError
	if errors.As(err, &answered) {
		// 08: connection; 57P: shutting down or starting up; 57014: our time limit; 53: out of resources;
		// 25006: read only, as a standby is.
		for _, class := range []string{"08", "57P", "57014", "53", "25006"} {
			if strings.HasPrefix(answered.Code, class) {
				return true
			}
		}
		return false
	}
	var connecting *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connecting) || errors.As(err, &network) || pgconn.SafeToRetry(err) || pgconn.Timeout(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "conn closed") || strings.Contains(err.Error(), "closed pool")
}
