package account

import (
	"context"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// PasswordStore changes passwords. Every method fails with unavailable while the database is away.
type PasswordStore interface {
	// TryCode is RegistrationStore's.
	TryCode(ctx context.Context, p Purpose, email string, codeHash []byte, now time.Time) (bool, error)
	// ResetPassword spends the code, stores the hash and ends all of the account's sessions, in one step. False: the code
	// does not work any more, or no enabled account has the address.
	ResetPassword(ctx context.Context, email string, codeHash []byte, now time.Time, passwordHash string) (bool, error)
	// PasswordHash gives the hash of an enabled account's password, which is empty where it has none; else not_found.
	PasswordHash(ctx context.Context, id string) (string, error)
	// ChangePassword replaces the hash old by the hash fresh and ends the account's sessions but the one whose token has the
	// hash keep, in one step. False: the hash is not old any more.
	ChangePassword(ctx context.Context, id, old, fresh string, keep []byte) (bool, error)
}

// Passwords changes passwords.
type Passwords struct {
	store    PasswordStore
	hasher   *Hasher
	policies Policies
	outbox   *Outbox
	now      func() time.Time
}

// NewPasswords makes one. now is the clock.
func NewPasswords(store PasswordStore, hasher *Hasher, policies Policies, outbox *Outbox, now func() time.Time) *Passwords {
	return &Passwords{store: store, hasher: hasher, policies: policies, outbox: outbox, now: now}
}

// Reset sets the password of the account whose address its holder proves with a code, and ends the account's sessions. It
// fails with email_invalid, the codes of CheckPassword, password_is_email, and code_wrong, whether there is an account or not.
func (s *Passwords) Reset(ctx context.Context, email, code, password string) error {
	if err := CheckEmail(email); err != nil {
		return err
	}
	email = normalise(email)
	if err := checkPasswordOf(email, password); err != nil {
		return err
	}
	codeHash := hashCode(ToReset, email, readCode(code))
	// Before the costly hash, so that a stranger cannot make us do it.
	right, err := s.store.TryCode(ctx, ToReset, email, codeHash, s.now())
	if err != nil {
		return err
	}
	if !right {
		return codeWrong()
	}
	passwordHash, err := s.hasher.Hash(ctx, password)
	if err != nil {
		return err
	}
	done, err := s.store.ResetPassword(ctx, email, codeHash, s.now(), passwordHash)
	if err != nil {
		return err
	}
	if !done {
		return codeWrong()
	}
	s.tell(ctx, email)
	return nil
}

// Change replaces the account's password, and ends its sessions but the one whose token has the hash keep. It fails with
// current_password_wrong (forbidden), the codes of CheckPassword and password_is_email.
func (s *Passwords) Change(ctx context.Context, a Account, current, fresh string, keep []byte) error {
	refused := fault.New(fault.Forbidden, "current_password_wrong", "the current password is wrong").In("current_password")
	if err := checkPasswordOf(a.Email, fresh); err != nil {
		return in("new_password", err)
	}
	old, err := s.store.PasswordHash(ctx, a.ID)
	if fault.Is(err, fault.NotFound) {
		return refused
	}
	if err != nil {
		return err
	}
	if CheckPassword(current) != nil {
		old, current = "", "" // nobody's: it cannot be right, and long ones are not hashed
	}
	right, err := s.hasher.Verify(ctx, current, old)
	if err != nil {
		return err
	}
	if !right {
		return refused
	}
	hash, err := s.hasher.Hash(ctx, fresh)
	if err != nil {
		return err
	}
	done, err := s.store.ChangePassword(ctx, a.ID, old, hash, keep)
	if err != nil {
		return err
	}
	if !done {
		return refused
	}
	s.tell(ctx, a.Email)
	return nil
}

// tell notifies the account's holder. The password is changed by then: no failure here undoes it.
func (s *Passwords) tell(ctx context.Context, email string) {
	policy, err := s.policies.Policy(ctx)
	if err != nil || !policy.Mail {
		return
	}
	_ = s.outbox.put(changedLetter(email, policy))
}

// checkPasswordOf is CheckPassword for the account with that address, which is no password.
func checkPasswordOf(email, password string) error {
	if err := CheckPassword(password); err != nil {
		return err
	}
	if normalise(password) == email {
		return fault.New(fault.Invalid, "password_is_email", "the password is the e-mail address").In("password").Do("choose another one")
	}
	return nil
}

// in names the field as the request does.
func in(field string, err error) error {
	f := *fault.From(err)
	return f.In(field)
}
