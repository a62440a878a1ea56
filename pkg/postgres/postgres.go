// Package postgres opens the one supported store and brings its tables up to date. It must never put a DSN or a password
// into an error or a log, and knows no table.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What the DSN does not set.
const (
	connectTimeout   = 5 * time.Second
	statementTimeout = 30 * time.Second
	idleInTxTimeout  = time.Minute
	maxConns         = 10
)

// Open gives a pool whose server has answered. While the server is away, starting or full it tries again until ctx ends,
// and says so in the log; a wrong DSN, a wrong password and a missing database fail at once, since waiting mends none of
// them. The search path is public. Statements are cut after 30 s unless the DSN has statement_timeout. Close the pool.
func Open(ctx context.Context, dsn string, log *slog.Logger) (*pgxpool.Pool, error) {
	cfg, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("postgres: the pool cannot be made: %w", err)
	}
	wait := 100 * time.Millisecond
	for {
		err := pool.Ping(ctx)
		if err == nil {
			return pool, nil
		}
		if hopeless(err) {
			pool.Close()
			return nil, fmt.Errorf("postgres: %w", err)
		}
		if ctx.Err() == nil {
			log.WarnContext(ctx, "postgres cannot be reached yet; trying again",
				slog.String("host", cfg.ConnConfig.Host), slog.String("error", oneLine(err)), slog.Duration("wait", wait))
		}
		select {
		case <-ctx.Done():
			pool.Close()
			return nil, fmt.Errorf("postgres: gave up waiting for the server (%w): %w", context.Cause(ctx), err)
		case <-time.After(wait):
		}
		wait = min(wait*2, 3*time.Second)
	}
}

func parse(dsn string) (*pgxpool.Config, error) {
	if !strings.HasPrefix(dsn, "postgresql://") && !strings.HasPrefix(dsn, "postgres://") {
		return nil, errors.New("postgres: the DSN does not start with postgresql://")
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The parser's text repeats the DSN, with a password where it could not find one to hide.
		return nil, errors.New("postgres: the DSN is not valid; it accepts postgresql://user:password@host:5432/database")
	}
	cfg.ConnConfig.Tracer = otelpgx.NewTracer()
	if cfg.ConnConfig.ConnectTimeout == 0 || cfg.ConnConfig.ConnectTimeout > time.Minute {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	if !strings.Contains(dsn, "pool_max_conns") {
		cfg.MaxConns = maxConns
	}
	p := cfg.ConnConfig.RuntimeParams
	p["search_path"] = "public"
	setDefault(p, "statement_timeout", fmt.Sprint(statementTimeout.Milliseconds()))
	setDefault(p, "idle_in_transaction_session_timeout", fmt.Sprint(idleInTxTimeout.Milliseconds()))
	setDefault(p, "application_name", "kubebyon")
	return cfg, nil
}

func setDefault(m map[string]string, k, v string) {
	if m[k] == "" {
		m[k] = v
	}
}

// hopeless reports errors that waiting does not mend: class 28 (authorization) and 3D000 (no such database).
func hopeless(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (strings.HasPrefix(e.Code, "28") || e.Code == "3D000")
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// InTx runs f in a transaction, committed where f returns nil and rolled back otherwise.
func InTx(ctx context.Context, pool *pgxpool.Pool, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, f)
}
