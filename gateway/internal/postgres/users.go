package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

var _ account.UserStore = (*Store)(nil)

// administrators is the advisory lock of what may leave fewer of them; the number is this lock's name.
const administrators = 0x6b62_7961_646d_696e

// ListUsers implements account.UserStore.
func (s *Store) ListUsers(ctx context.Context, prefix, after string, limit int) (found []account.User, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, `select `+userColumns+` from users
			where email collate "C" > $2 and starts_with(email collate "C", $1) order by email collate "C" limit $3`, prefix, after, limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, scanUser)
		return err
	})
	return found, err
}

// UserByID implements account.UserStore.
func (s *Store) UserByID(ctx context.Context, id string) (u account.User, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		u, err = oneUser(ctx, s.pool, `select `+userColumns+` from users where id = $1`, id)
		return err
	})
	return u, err
}

// ChangeUser implements account.UserStore.
func (s *Store) ChangeUser(ctx context.Context, id string, c account.UserChange, now time.Time) (u account.User, err error) {
	err = s.keepingAdmin(ctx, func(ctx context.Context, tx pgx.Tx) error {
		u, err = oneUser(ctx, tx, `update users set role = coalesce($2, role), updated_at = now(),
				disabled_at = case when $3::bool then coalesce(disabled_at, $4) when not $3::bool then null else disabled_at end
			where id = $1 returning `+userColumns, id, c.Role, c.Disabled, now)
		if err != nil {
			return err
		}
		if u.Disabled {
			if _, err := tx.Exec(ctx, `delete from sessions where user_id = $1`, id); err != nil {
				return err
			}
		}
		if u.Disabled || u.Role != contract.RoleAdmin {
			_, err = tx.Exec(ctx, `delete from invitations where created_by = $1`, id)
		}
		return err
	})
	return u, err
}

// DeleteUser implements account.UserStore.
func (s *Store) DeleteUser(ctx context.Context, id string) error {
	return s.keepingAdmin(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var email string
		if err := tx.QueryRow(ctx, `delete from users where id = $1 returning email`, id).Scan(&email); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `delete from mail_codes where email = $1`, email)
		return err
	})
}

// keepingAdmin runs do in a transaction, and undoes it with last_admin where no enabled administrator remains. No other
// caller's do runs meanwhile.
func (s *Store) keepingAdmin(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	return s.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(administrators)); err != nil {
			return err
		}
		if err := do(ctx, tx); err != nil {
			return err
		}
		var remain bool
		if err := tx.QueryRow(ctx, `select exists (select from users where role = 'admin' and disabled_at is null)`).Scan(&remain); err != nil {
			return err
		}
		if !remain {
			return fault.New(fault.Precondition, "last_admin", "this is the last enabled administrator").Do("make another administrator first")
		}
		return nil
	})
}

const userColumns = `id, email, role, created_at, disabled_at is not null`

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func oneUser(ctx context.Context, q querier, sql string, args ...any) (account.User, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return account.User{}, err
	}
	return pgx.CollectExactlyOneRow(rows, scanUser)
}

func scanUser(row pgx.CollectableRow) (u account.User, err error) {
	err = row.Scan(&u.ID, &u.Email, (*string)(&u.Role), &u.CreatedAt, &u.Disabled)
	return u, err
}
