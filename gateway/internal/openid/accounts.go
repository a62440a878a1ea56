package openid

import (
	"context"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Entry is how a person came to an account.
type Entry int

// The entries. The last three give no account.
const (
	Known    Entry = iota // by the provider's subject
	Linked                // by the verified address, from now on by the subject
	Made                  // a new account
	Absent                // there is none, and none was to be made
	Taken                 // the address's account belongs to another subject of the provider
	Disabled              // the account is disabled
)

// Store keeps which subject of a provider an account belongs to. It fails with unavailable while the database is away.
type Store interface {
	// EnterByOpenID finds the account by issuer and subject, else links the one with the address, else stores fresh where
	// create is true; all in one step, whatever others do meanwhile. An account has one subject of a provider.
	EnterByOpenID(ctx context.Context, p Person, fresh account.Account, create bool) (account.Account, Entry, error)
}

// Accounts finds or makes the accounts of persons.
type Accounts struct {
	store Store
	now   func() time.Time
}

// NewAccounts makes one. now is the clock.
func NewAccounts(store Store, now func() time.Time) *Accounts {
	return &Accounts{store: store, now: now}
}

// Enter gives the person's account; where there is none it makes one without a password if create is true. It fails with forbidden:
// registration_closed, openid_account_linked, account_disabled.
func (s *Accounts) Enter(ctx context.Context, p Person, create bool) (account.Account, Entry, error) {
	a, entry, err := s.store.EnterByOpenID(ctx, p, account.New(p.Email, contract.RoleUser, s.now()), create)
	switch {
	case err != nil:
		return account.Account{}, entry, err
	case entry == Absent:
		return account.Account{}, entry, fault.New(fault.Forbidden, "registration_closed", "there is no account for your e-mail address, and nobody may register").
			Do("ask an administrator for an account with the address that the provider knows")
	case entry == Taken:
		return account.Account{}, entry, fault.New(fault.Forbidden, "openid_account_linked", "the account with your e-mail address belongs to another person at the provider").
			Do("ask an administrator")
	case entry == Disabled:
		return account.Account{}, entry, fault.New(fault.Forbidden, "account_disabled", "your account is disabled").Do("ask an administrator")
	}
	return a, entry, nil
}
