package account

import (
	"context"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// DirectoryStore looks accounts up. Every method fails with unavailable while the database is away.
type DirectoryStore interface {
	// IDByEmail gives an enabled account's id; not_found where there is none.
	IDByEmail(ctx context.Context, email string) (string, error)
	// EmailsByID gives the addresses of those accounts that exist.
	EmailsByID(ctx context.Context, ids []string) (map[string]string, error)
}

// Directory lets accounts find one another, to share what is theirs. Unlike all else here it tells whether an address has
// an account: whoever asks it must have said who they are, and be held to few questions.
type Directory struct{ store DirectoryStore }

// NewDirectory makes one.
func NewDirectory(store DirectoryStore) *Directory { return &Directory{store: store} }

// ID gives the account of an address. It fails with email_invalid, and with account_not_found where no enabled account has it.
func (d *Directory) ID(ctx context.Context, email string) (string, error) {
	if err := CheckEmail(email); err != nil {
		return "", err
	}
	id, err := d.store.IDByEmail(ctx, normalise(email))
	if fault.Is(err, fault.NotFound) {
		return "", fault.New(fault.NotFound, "account_not_found", "there is no account with this e-mail address").In("email").
			Do("ask for an invitation for it first, and for the address as it was registered")
	}
	return id, err
}

// Emails gives the addresses of those accounts that still exist.
func (d *Directory) Emails(ctx context.Context, ids []string) (map[string]string, error) {
	return d.store.EmailsByID(ctx, ids)
}
