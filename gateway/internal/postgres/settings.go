package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/settings"
)

var _ settings.Store = (*Store)(nil)

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
