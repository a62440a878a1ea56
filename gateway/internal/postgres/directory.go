package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
)

var _ account.DirectoryStore = (*Store)(nil)

// IDByEmail implements account.DirectoryStore.
func (s *Store) IDByEmail(ctx context.Context, email string) (id string, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select id from users where email = $1 and disabled_at is null`, email).Scan(&id)
	})
	return id, err
}

// EmailsByID implements account.DirectoryStore.
func (s *Store) EmailsByID(ctx context.Context, ids []string) (map[string]string, error) {
	found := map[string]string{}
	err := s.within(ctx, func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, `select id, email from users where id = any ($1)`, ids)
		if err != nil {
			return err
		}
		var id, email string
		_, err = pgx.ForEachRow(rows, []any{&id, &email}, func() error { found[id] = email; return nil })
		return err
	})
	return found, err
}
