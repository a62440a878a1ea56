package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	pkgpostgres "github.com/kubebyon/kubebyon/pkg/postgres"
)

//go:embed migrations/*.sql
var files embed.FS

// migrationLock is held while River's tables are brought up to date; goose holds its own.
const migrationLock = 0x6b62_636c_7573_7465

// Migrate brings this service's tables and River's up to date. Any number of replicas may call it at once: one works,
// the others wait for it.
func Migrate(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		return err
	}
	conn, end, err := pkgpostgres.Session(ctx, pool)
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	defer end()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(migrationLock)); err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	if err := pkgpostgres.Migrate(ctx, pool, "cluster", dir); err != nil {
		return err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: log})
	if err != nil {
		return fmt.Errorf("queue migrations: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("queue migrations: %w", err)
	}
	return nil
}
