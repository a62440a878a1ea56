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

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// patience is how long one call may take: a database that hangs must not hold requests.
const patience = 3 * time.Second

// Store implements every subject's Store interface, in a file each.
type Store struct{ pool *pgxpool.Pool }

// NewStore uses a pool whose database is migrated.
func NewStore(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

// Ping says whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	return s.within(ctx, func(ctx context.Context) error { return s.pool.Ping(ctx) })
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
