package account

import (
	"context"
	"encoding/base64"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Pages of users.
const (
	DefaultUsers = 50
	MaxUsers     = 200
)

// User is an account as administrators see it. A disabled one cannot log in, and nothing that it holds works.
type User struct {
	Account
	Disabled bool `json:"disabled"`
}

// UserChange sets what is not nil.
type UserChange struct {
	Role     *contract.Role `json:"role"`
	Disabled *bool          `json:"disabled"`
}

// UserStore lists and changes accounts. Every method fails with unavailable while the database is away.
type UserStore interface {
	// ListUsers gives up to limit accounts whose address begins with prefix and comes after the address after, by address.
	ListUsers(ctx context.Context, prefix, after string, limit int) ([]User, error)
	// UserByID fails with not_found.
	UserByID(ctx context.Context, id string) (User, error)
	// ChangeUser stores the change and ends what it takes away: a disabled account's sessions, and the invitations of who is
	// no enabled administrator any more. It fails with not_found, and with last_admin (precondition) where no enabled
	// administrator would remain, whatever others change meanwhile.
	ChangeUser(ctx context.Context, id string, c UserChange, now time.Time) (User, error)
	// DeleteUser removes the account and all that it holds in the gateway. It fails as ChangeUser does.
	DeleteUser(ctx context.Context, id string) error
}

// Users lets administrators see and change accounts.
type Users struct {
	store UserStore
	now   func() time.Time
}

// NewUsers makes one. now is the clock.
func NewUsers(store UserStore, now func() time.Time) *Users { return &Users{store: store, now: now} }

// List gives up to limit users whose address begins with prefix, by address, and the cursor for the page after; it is empty
// at the end. It fails with cursor_invalid and limit_invalid.
func (s *Users) List(ctx context.Context, prefix, cursor string, limit int) (users []User, next string, err error) {
	after, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(after) > 254 || strings.ContainsFunc(string(after), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, "", fault.New(fault.Invalid, "cursor_invalid", "this is no cursor of a page before").In("cursor").Do("start without one")
	}
	if limit < 1 || limit > MaxUsers {
		return nil, "", fault.New(fault.Invalid, "limit_invalid", "limit must be 1 to %d", MaxUsers).In("limit")
	}
	prefix = normalise(prefix)
	if len(prefix) > 254 || strings.ContainsFunc(prefix, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return []User{}, "", nil // no address has such characters, and the database does not take all of them
	}
	users, err = s.store.ListUsers(ctx, prefix, string(after), limit+1)
	if err != nil {
		return nil, "", err
	}
	if len(users) > limit {
		users = users[:limit]
		next = base64.RawURLEncoding.EncodeToString([]byte(users[limit-1].Email))
	}
	return users, next, nil
}

// Get gives a user; user_not_found where there is none.
func (s *Users) Get(ctx context.Context, id string) (User, error) {
	found, err := s.store.UserByID(ctx, id)
	return found, noUser(err)
}

// Change counts at once: the account's next request is already judged by it. It fails with nothing_to_change, role_invalid,
// user_not_found and last_admin (precondition).
func (s *Users) Change(ctx context.Context, id string, c UserChange) (User, error) {
	if c.Role == nil && c.Disabled == nil {
		return User{}, fault.New(fault.Invalid, "nothing_to_change", "the body changes nothing").Do("give role or disabled")
	}
	if c.Role != nil {
		if err := checkRole(*c.Role); err != nil {
			return User{}, err
		}
	}
	changed, err := s.store.ChangeUser(ctx, id, c, s.now())
	return changed, noUser(err)
}

// Delete removes a user. Clusters stay, and administrators see them. It fails with user_not_found and last_admin
// (precondition).
func (s *Users) Delete(ctx context.Context, id string) error {
	return noUser(s.store.DeleteUser(ctx, id))
}

func noUser(err error) error {
	if fault.Is(err, fault.NotFound) {
		return fault.New(fault.NotFound, "user_not_found", "there is no such user")
	}
	return err
}
