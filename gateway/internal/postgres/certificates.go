package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/certificate"
)

var _ certificate.Store = (*Store)(nil)

// PutFile implements certificate.Store.
func (s *Store) PutFile(ctx context.Context, path string, sealed []byte) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `insert into certificate_files (path, sealed) values ($1, $2)
			on conflict (path) do update set sealed = excluded.sealed, modified_at = now()`, path, sealed)
		return err
	})
}

// File implements certificate.Store.
func (s *Store) File(ctx context.Context, path string) (sealed []byte, modified time.Time, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select sealed, modified_at from certificate_files where path = $1`, path).Scan(&sealed, &modified)
	})
	return sealed, modified, err
}

// DeleteFiles implements certificate.Store.
func (s *Store) DeleteFiles(ctx context.Context, path string) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `delete from certificate_files where path = $1 or starts_with(path, $1 || '/')`, path)
		return err
	})
}

// FilesBelow implements certificate.Store.
func (s *Store) FilesBelow(ctx context.Context, path string) (paths []string, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, `select path from certificate_files where $1 = '' or starts_with(path, $1 || '/') order by path collate "C"`, path)
		if err != nil {
			return err
		}
		paths, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return paths, err
}

// Hold implements certificate.Store. The database's clock counts: replicas need not agree on the time.
func (s *Store) Hold(ctx context.Context, name, holder string, lease time.Duration) (held bool, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		done, err := s.pool.Exec(ctx, `insert into certificate_locks as kept (name, holder, expires_at) values ($1, $2, clock_timestamp() + $3::interval)
			on conflict (name) do update set holder = excluded.holder, expires_at = excluded.expires_at
			where kept.holder = excluded.holder or kept.expires_at < clock_timestamp()`, name, holder, lease)
		held = err == nil && done.RowsAffected() == 1
		return err
	})
	return held, err
}

// LetGo implements certificate.Store.
func (s *Store) LetGo(ctx context.Context, name, holder string) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `delete from certificate_locks where name = $1 and holder = $2`, name, holder)
		return err
	})
}
