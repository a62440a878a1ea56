package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

var migrationName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,40}$`)

// Migrate applies the goose migrations at the root of migrations that the database has not seen. What it has seen stands
// in the table goose_<name>, so that services share a database without seeing each other. Replicas that start at once take
// turns under an advisory lock and wait up to ten minutes for it. Migrations that fail leave the ones before them applied
// and their own undone (each runs in a transaction unless it says otherwise). A server that goes away meanwhile is waited
// for until ctx ends.
func Migrate(ctx context.Context, pool *pgxpool.Pool, name string, migrations fs.FS) error {
	for wait := 100 * time.Millisecond; ; wait = min(wait*2, 3*time.Second) {
		err := migrate(ctx, pool, name, migrations)
		if err == nil || !away(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// away says whether err means that the server is not there, is starting or is stopping.
func away(err error) bool {
	var answered *pgconn.PgError
	if errors.As(err, &answered) {
		return strings.HasPrefix(answered.Code, "08") || strings.HasPrefix(answered.Code, "57P") || answered.Code == "53300"
	}
	var network net.Error
	return errors.As(err, &network) || pgconn.SafeToRetry(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) || strings.Contains(err.Error(), "conn closed")
}

func migrate(ctx context.Context, pool *pgxpool.Pool, name string, migrations fs.FS) error {
	if !migrationName.MatchString(name) {
		return fmt.Errorf("postgres: %q names no set of migrations", name)
	}
	// A pool of its own: one connection holds the lock, another applies, and neither may be cut by the timeouts that
	// protect requests.
	cfg := pool.Config()
	cfg.MinConns, cfg.MaxConns = 0, 2
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = "0"
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	own, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("postgres: migrations of %s: %w", name, err)
	}
	defer own.Close()
	db := stdlib.OpenDBFromPool(own)
	defer func() { _ = db.Close() }()

	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID(name)), lock.WithLockTimeout(1, 600), lock.WithUnlockTimeout(1, 10))
	if err != nil {
		return fmt.Errorf("postgres: migrations of %s: %w", name, err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations,
		goose.WithTableName("goose_"+name), goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("postgres: migrations of %s: %w", name, err)
	}
	// The lock is tried once a second: a replica that has nothing to apply must not wait for one that has it.
	if pending, err := p.HasPending(ctx); err == nil && !pending {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	if _, err := p.Up(ctx); err != nil {
		var partial *goose.PartialError
		if errors.As(err, &partial) && partial.Failed != nil && partial.Failed.Source != nil {
			return fmt.Errorf("postgres: migrations of %s: %s: %w", name, partial.Failed.Source.Path, partial.Err)
		}
		return fmt.Errorf("postgres: migrations of %s: %w", name, err)
	}
	return nil
}

// lockID keeps apart the locks of different sets.
func lockID(name string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("kubebyon/migrations/" + name))
	return int64(h.Sum64() >> 1)
}
