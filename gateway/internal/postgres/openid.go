package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/openid"
)

var _ openid.Store = (*Store)(nil)

// errLookAgain: somebody else stored the same person or address meanwhile.
var errLookAgain = errors.New("an account at an OpenID log-in keeps changing")

// EnterByOpenID implements openid.Store.
func (s *Store) EnterByOpenID(ctx context.Context, p openid.Person, fresh account.Account, create bool) (a account.Account, entry openid.Entry, err error) {
	err = s.within(ctx, func(ctx context.Context) (err error) {
		for range 5 {
			err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
				a, entry, err = enter(ctx, tx, p, fresh, create)
				return err
			})
			if !errors.Is(err, errLookAgain) {
				return err
			}
		}
		return err
	})
	return a, entry, err
}

func enter(ctx context.Context, tx pgx.Tx, p openid.Person, fresh account.Account, create bool) (a account.Account, entry openid.Entry, err error) {
	var disabled bool
	find := func(query string, args ...any) (bool, error) {
		err := tx.QueryRow(ctx, query, args...).Scan(&a.ID, &a.Email, &a.Role, &a.CreatedAt, &disabled)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	}
	found, err := find(`with used as (
			update openid_identities set last_used_at = now() where issuer = $1 and subject = $2 returning user_id
		) select u.id, u.email, u.role, u.created_at, u.disabled_at is not null from users u join used on u.id = used.user_id`, p.Issuer, p.Subject)
	if err != nil {
		return a, openid.Known, err
	}
	if disabled {
		return a, openid.Disabled, nil
	}
	if found {
		return a, openid.Known, nil
	}
	entry = openid.Linked
	if found, err = find(`select id, email, role, created_at, disabled_at is not null from users where email = $1 for update`, p.Email); err != nil {
		return a, entry, err
	}
	if disabled {
		return a, openid.Disabled, nil
	}
	if !found {
		if !create {
			return a, openid.Absent, nil
		}
		a, entry = fresh, openid.Made
		tag, err := tx.Exec(ctx, `insert into users (id, email, role, created_at) values ($1, $2, $3, $4) on conflict (email) do nothing`,
			a.ID, a.Email, a.Role, a.CreatedAt)
		if err != nil {
			return a, entry, err
		}
		if tag.RowsAffected() == 0 {
			return a, entry, errLookAgain
		}
	}
	tag, err := tx.Exec(ctx, `insert into openid_identities (issuer, subject, user_id) values ($1, $2, $3) on conflict do nothing`,
		p.Issuer, p.Subject, a.ID)
	if err != nil || tag.RowsAffected() == 1 {
		return a, entry, err
	}
	var other bool
	err = tx.QueryRow(ctx, `select exists (select from openid_identities where issuer = $1 and user_id = $2 and subject <> $3)`,
		p.Issuer, a.ID, p.Subject).Scan(&other)
	if err == nil && !other {
		err = errLookAgain
	}
	return a, openid.Taken, err
}
