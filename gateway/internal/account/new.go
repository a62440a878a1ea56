package account

import (
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
)

// New gives an account that is not stored yet, with an id of its own. The address has passed CheckEmail.
func New(email string, role contract.Role, at time.Time) Account {
	return Account{ID: newID(), Email: Normalise(email), Role: role, CreatedAt: at.UTC()}
}

// Normalise gives an address in the form that accounts are kept under.
func Normalise(email string) string { return normalise(email) }
