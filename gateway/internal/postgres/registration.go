package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

var (
	_ account.RegistrationStore = (*Store)(nil)
	_ account.PasswordStore     = (*Store)(nil)
	_ account.InvitationStore   = (*Store)(nil)
)

// Address implements account.RegistrationStore.
func (s *Store) Address(ctx context.Context, email string) (known, enabled bool, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select exists (select from users where email = $1),
			exists (select from users where email = $1 and disabled_at is null)`, email).Scan(&known, &enabled)
	})
	return known, enabled, err
}

// PutCode implements account.RegistrationStore.
func (s *Store) PutCode(ctx context.Context, p account.Purpose, email string, codeHash []byte, now, expiresAt time.Time) error {
	return s.within(ctx, func(ctx context.Context) error {
		// By itself: together with the insert it could deadlock with another one.
		if _, err := s.pool.Exec(ctx, `delete from mail_codes where (email, purpose) in (
				select email, purpose from mail_codes where expires_at <= $1 limit 100 for update skip locked)`, now); err != nil {
			return err
		}
		_, err := s.pool.Exec(ctx, `insert into mail_codes (email, purpose, code_hash, expires_at) values ($1, $2, $3, $4)
			on conflict (email, purpose) do update set code_hash = excluded.code_hash, expires_at = excluded.expires_at, tries = 0`,
			email, p, codeHash, expiresAt)
		return err
	})
}

// TryCode implements account.RegistrationStore.
func (s *Store) TryCode(ctx context.Context, p account.Purpose, email string, codeHash []byte, now time.Time) (right bool, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		err := s.pool.QueryRow(ctx, `update mail_codes set tries = tries + 1
			where email = $1 and purpose = $2 and expires_at > $3 and tries < $4 returning code_hash = $5`,
			email, p, now, account.MaxCodeTries, codeHash).Scan(&right)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return right && err == nil, err
}

// RegisterByCode implements account.RegistrationStore.
func (s *Store) RegisterByCode(ctx context.Context, codeHash []byte, now time.Time, a account.Account, passwordHash string) (used bool, err error) {
	err = s.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if used, err = spendCode(ctx, tx, account.ToRegister, a.Email, codeHash, now); err != nil || !used {
			return err
		}
		return insertAccount(ctx, tx, a, passwordHash)
	})
	return used && err == nil, err
}

// InvitationByToken implements account.RegistrationStore.
func (s *Store) InvitationByToken(ctx context.Context, tokenHash []byte, now time.Time) (i account.Invitation, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, invitations+` and i.token_hash = $2`, now, tokenHash)
		if err != nil {
			return err
		}
		i, err = pgx.CollectExactlyOneRow(rows, scanInvitation)
		return err
	})
	return i, err
}

// RegisterByInvitation implements account.RegistrationStore.
func (s *Store) RegisterByInvitation(ctx context.Context, tokenHash []byte, now time.Time, a account.Account, passwordHash string) (used bool, err error) {
	err = s.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		// Who made it is locked, so that they are not disabled meanwhile.
		tag, err := tx.Exec(ctx, `delete from invitations where token_hash = $1 and email = $2 and role = $3 and expires_at > $4
			and exists (select from users where id = created_by and users.role = 'admin' and disabled_at is null for share)`,
			tokenHash, a.Email, a.Role, now)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		used = true
		return insertAccount(ctx, tx, a, passwordHash)
	})
	return used && err == nil, err
}

// ResetPassword implements account.PasswordStore.
func (s *Store) ResetPassword(ctx context.Context, email string, codeHash []byte, now time.Time, passwordHash string) (done bool, err error) {
	err = s.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		spent, err := spendCode(ctx, tx, account.ToReset, email, codeHash, now)
		if err != nil || !spent {
			return err
		}
		var id string
		err = tx.QueryRow(ctx, `update users set password_hash = $2, updated_at = now() where email = $1 and disabled_at is null returning id`,
			email, passwordHash).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		done = true
		_, err = tx.Exec(ctx, `delete from sessions where user_id = $1`, id)
		return err
	})
	return done && err == nil, err
}

// PasswordHash implements account.PasswordStore.
func (s *Store) PasswordHash(ctx context.Context, id string) (hash string, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select coalesce(password_hash, '') from users where id = $1 and disabled_at is null`, id).Scan(&hash)
	})
	return hash, err
}

// ChangePassword implements account.PasswordStore.
func (s *Store) ChangePassword(ctx context.Context, id, old, fresh string, keep []byte) (done bool, err error) {
	err = s.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `update users set password_hash = $3, updated_at = now()
			where id = $1 and password_hash = $2 and disabled_at is null`, id, old, fresh)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		done = true
		_, err = tx.Exec(ctx, `delete from sessions where user_id = $1 and token_hash <> $2`, id, keep)
		return err
	})
	return done && err == nil, err
}

// AddInvitation implements account.InvitationStore.
func (s *Store) AddInvitation(ctx context.Context, tokenHash []byte, i account.Invitation) error {
	return s.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var taken bool
		var others int
		if err := tx.QueryRow(ctx, `select exists (select from users where email = $1),
				(select count(*) from invitations where email <> $1 and expires_at > $2)`, i.Email, i.CreatedAt).Scan(&taken, &others); err != nil {
			return err
		}
		if taken {
			return emailTaken()
		}
		if others >= account.MaxInvitations {
			return fault.New(fault.Conflict, "too_many_invitations", "there are %d open invitations, which is the most", others).
				Do("withdraw some")
		}
		_, err := tx.Exec(ctx, `insert into invitations (id, email, role, token_hash, created_by, created_at, expires_at)
			values ($1, $2, $3, $4, $5, $6, $7)
			on conflict (email) do update set id = excluded.id, role = excluded.role, token_hash = excluded.token_hash,
				created_by = excluded.created_by, created_at = excluded.created_at, expires_at = excluded.expires_at`,
			i.ID, i.Email, i.Role, tokenHash, i.CreatedBy, i.CreatedAt, i.ExpiresAt)
		return err
	})
}

// ListInvitations implements account.InvitationStore.
func (s *Store) ListInvitations(ctx context.Context, now time.Time) (found []account.Invitation, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		if _, err := s.pool.Exec(ctx, `delete from invitations where expires_at <= $1`, now); err != nil {
			return err
		}
		rows, err := s.pool.Query(ctx, invitations+` order by i.email collate "C" limit $2`, now, account.MaxInvitations)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, scanInvitation)
		return err
	})
	return found, err
}

// DeleteInvitation implements account.InvitationStore.
func (s *Store) DeleteInvitation(ctx context.Context, id string) error {
	return s.within(ctx, func(ctx context.Context) error {
		tag, err := s.pool.Exec(ctx, `delete from invitations where id = $1`, id)
		if err == nil && tag.RowsAffected() == 0 {
			err = pgx.ErrNoRows
		}
		return err
	})
}

// invitations finds those that work at $1.
const invitations = `select i.id, i.email, i.role, i.created_by, i.created_at, i.expires_at
	from invitations i join users u on u.id = i.created_by
	where i.expires_at > $1 and u.role = 'admin' and u.disabled_at is null`

func scanInvitation(row pgx.CollectableRow) (i account.Invitation, err error) {
	err = row.Scan(&i.ID, &i.Email, (*string)(&i.Role), &i.CreatedBy, &i.CreatedAt, &i.ExpiresAt)
	i.CreatedAt, i.ExpiresAt = i.CreatedAt.UTC(), i.ExpiresAt.UTC()
	return i, err
}

// spendCode says whether it was this caller who did.
func spendCode(ctx context.Context, tx pgx.Tx, p account.Purpose, email string, codeHash []byte, now time.Time) (bool, error) {
	tag, err := tx.Exec(ctx, `delete from mail_codes where email = $1 and purpose = $2 and code_hash = $3 and expires_at > $4`, email, p, codeHash, now)
	return err == nil && tag.RowsAffected() == 1, err
}

// insertAccount fails with email_taken. What was mailed to the address before is void from now on.
func insertAccount(ctx context.Context, tx pgx.Tx, a account.Account, passwordHash string) error {
	tag, err := tx.Exec(ctx, `insert into users (id, email, password_hash, role, created_at) values ($1, $2, $3, $4, $5) on conflict (email) do nothing`,
		a.ID, a.Email, passwordHash, a.Role, a.CreatedAt)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return emailTaken()
	}
	if _, err := tx.Exec(ctx, `delete from mail_codes where email = $1`, a.Email); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `delete from invitations where email = $1`, a.Email)
	return err
}

func emailTaken() error {
	return fault.New(fault.Conflict, "email_taken", "an account with this address exists already").In("email")
}

// transact is within for what must happen in one step.
func (s *Store) transact(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	return s.within(ctx, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return do(ctx, tx) })
	})
}
