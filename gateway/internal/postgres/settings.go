package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/settings"
)

var _ settings.Store = (*Store)(nil)

// ReadSettings implements settings.Store.
func (s *Store) ReadSettings(ctx context.Context) (values map[string]string, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		values, err = settingsIn(ctx, s.pool)
		return err
	})
	return values, err
}

// ChangeSettings implements settings.Store. The table's lock lets readers pass and makes other changes wait.
func (s *Store) ChangeSettings(ctx context.Context, by string, decide func(map[string]string) (map[string]string, error)) error {
	return s.within(ctx, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `lock table settings in share row exclusive mode`); err != nil {
				return err
			}
			now, err := settingsIn(ctx, tx)
			if err != nil {
				return err
			}
			fresh, err := decide(now)
			if err != nil {
				return err
			}
			var names, texts []string
			for name, text := range fresh {
				names, texts = append(names, name), append(texts, text)
			}
			_, err = tx.Exec(ctx, `insert into settings as s (name, value, updated_by)
				select name, value, $3 from unnest($1::text[], $2::text[]) as given (name, value)
				on conflict (name) do update set value = excluded.value, updated_by = excluded.updated_by, updated_at = now()
				where s.value <> excluded.value`, names, texts, by)
			return err
		})
	})
}

func settingsIn(ctx context.Context, q interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}) (map[string]string, error) {
	rows, err := q.Query(ctx, `select name, value from settings`)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		values[name] = value
		return nil
	})
	return values, err
}
