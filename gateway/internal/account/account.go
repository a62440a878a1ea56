// Package account knows who may log in: accounts, their passwords and how the first administrator comes to be. It
// must never keep or log a password, nor say whether an address is known.
package account

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Limits of a password, in characters. The upper one keeps hashing cheap to refuse.
const (
	MinPassword = 12
	MaxPassword = 1024
)

// SetupLinkLife is how long a set-up link works.
const SetupLinkLife = 24 * time.Hour

// Account is a person who can log in. It holds no credential.
type Account struct {
	ID        string        `json:"id"` // usr_ + 20 of [a-z0-9]
	Email     string        `json:"email"`
	Role      contract.Role `json:"role"`
	CreatedAt time.Time     `json:"created_at"`
}

// Principal is what the services are told.
func (a Account) Principal() contract.Principal {
	return contract.Principal{UserID: a.ID, Role: a.Role}
}

// Store keeps accounts. Every method fails with unavailable while the database is away.
type Store interface {
	// AccountByEmail gives an enabled account and its password hash; not_found where there is none.
	AccountByEmail(ctx context.Context, email string) (Account, string, error)
	// AnyAccount says whether an account exists.
	AnyAccount(ctx context.Context) (bool, error)
	// CreateFirst stores the account only if there is none yet, and says whether it did. Exactly one of any number
	// of concurrent callers is told true.
	CreateFirst(ctx context.Context, a Account, passwordHash string) (bool, error)
	// AddSetupLink stores a link's hash, unless an account exists; it says whether it did.
	AddSetupLink(ctx context.Context, tokenHash []byte, expiresAt time.Time) (bool, error)
	// HasSetupLink says whether the link would work at now.
	HasSetupLink(ctx context.Context, tokenHash []byte, now time.Time) (bool, error)
	// UseSetupLink makes the first account and spends every link, in one step. False: the link does not work, or
	// an account exists.
	UseSetupLink(ctx context.Context, tokenHash []byte, now time.Time, a Account, passwordHash string) (bool, error)
}

// Service answers for accounts.
type Service struct {
	store  Store
	hasher *Hasher
	now    func() time.Time
}

// NewService makes one. now is the clock.
func NewService(store Store, hasher *Hasher, now func() time.Time) *Service {
	return &Service{store: store, hasher: hasher, now: now}
}

// Authenticate gives the account whose address and password these are. A wrong address and a wrong password fail
// alike, unauthenticated, after the same work.
func (s *Service) Authenticate(ctx context.Context, email, password string) (Account, error) {
	refused := fault.New(fault.Unauthenticated, "wrong_credentials", "the e-mail address or the password is wrong")
	var found Account
	var hash string // while it is empty the hasher works on a hash of nobody's
	if CheckEmail(email) == nil {
		var err error
		if found, hash, err = s.store.AccountByEmail(ctx, normalise(email)); err != nil && !fault.Is(err, fault.NotFound) {
			return Account{}, err
		}
	}
	if utf8.RuneCountInString(password) > MaxPassword {
		hash, password = "", ""
	}
	ok, err := s.hasher.Verify(ctx, password, hash)
	if err != nil {
		return Account{}, err
	}
	if !ok {
		return Account{}, refused
	}
	return found, nil
}

// EnsureAdmin makes the first administrator where there is no account at all, and says whether it did. Any number
// of replicas may call it at once.
func (s *Service) EnsureAdmin(ctx context.Context, email, password string) (bool, error) {
	exists, err := s.store.AnyAccount(ctx)
	if err != nil || exists {
		return false, err
	}
	a, hash, err := s.newAdmin(ctx, email, password)
	if err != nil {
		return false, err
	}
	return s.store.CreateFirst(ctx, a, hash)
}

// NewSetupToken makes a token for a set-up link. It is empty where an account exists already.
func (s *Service) NewSetupToken(ctx context.Context) (string, error) {
	token := base64.RawURLEncoding.EncodeToString(random(32))
	hash := sha256.Sum256([]byte(token))
	stored, err := s.store.AddSetupLink(ctx, hash[:], s.now().Add(SetupLinkLife))
	if err != nil || !stored {
		return "", err
	}
	return token, nil
}

// Setup makes the first administrator with a set-up link's token, once. A dead link is forbidden; a wrong address or
// password is invalid and leaves the link usable.
func (s *Service) Setup(ctx context.Context, token, email, password string) (Account, error) {
	refused := fault.New(fault.Forbidden, "setup_link_invalid", "this set-up link is unknown, used or expired").In("token").
		Do("while no account exists, restarting the gateway writes a new link to its log")
	if err := CheckEmail(email); err != nil {
		return Account{}, err
	}
	if err := checkPasswordOf(normalise(email), password); err != nil {
		return Account{}, err
	}
	hash := sha256.Sum256([]byte(token))
	// Before the costly hash, so that a stranger cannot make us do it.
	works, err := s.store.HasSetupLink(ctx, hash[:], s.now())
	if err != nil {
		return Account{}, err
	}
	if !works {
		return Account{}, refused
	}
	a, passwordHash, err := s.newAdmin(ctx, email, password)
	if err != nil {
		return Account{}, err
	}
	used, err := s.store.UseSetupLink(ctx, hash[:], s.now(), a, passwordHash)
	if err != nil {
		return Account{}, err
	}
	if !used {
		return Account{}, refused
	}
	return a, nil
}

func (s *Service) newAdmin(ctx context.Context, email, password string) (Account, string, error) {
	if err := CheckEmail(email); err != nil {
		return Account{}, "", err
	}
	if err := CheckPassword(password); err != nil {
		return Account{}, "", err
	}
	hash, err := s.hasher.Hash(ctx, password)
	if err != nil {
		return Account{}, "", err
	}
	return Account{ID: newID(), Email: normalise(email), Role: contract.RoleAdmin, CreatedAt: s.now().UTC()}, hash, nil
}

// One plain ASCII address, so that look-alikes and header tricks have no way in.
var addressForm = regexp.MustCompile(`^[a-z0-9.!#$%&'*+/=?^_{|}~-]{1,64}@[a-z0-9]([a-z0-9-]{0,62})(\.[a-z0-9]([a-z0-9-]{0,62}))*$`)

// CheckEmail says what is wrong with an address.
func CheckEmail(email string) error {
	// Before it becomes lower case: that makes plain letters of some that are none, such as the Kelvin sign.
	plain := !strings.ContainsFunc(email, func(r rune) bool { return r >= utf8.RuneSelf })
	if e := normalise(email); !plain || len(e) > 254 || !addressForm.MatchString(e) {
		return fault.New(fault.Invalid, "email_invalid", "this is no e-mail address of the form name@example.com").In("email")
	}
	return nil
}

// CheckPassword says what is wrong with a new password.
func CheckPassword(password string) error {
	switch n := utf8.RuneCountInString(password); {
	case !utf8.ValidString(password):
		return fault.New(fault.Invalid, "password_invalid", "the password is not valid UTF-8").In("password")
	case n < MinPassword:
		return fault.New(fault.Invalid, "password_too_short", "the password has fewer than %d characters", MinPassword).In("password")
	case n > MaxPassword:
		return fault.New(fault.Invalid, "password_too_long", "the password has more than %d characters", MaxPassword).In("password")
	}
	return nil
}

func normalise(email string) string { return strings.ToLower(strings.TrimSpace(email)) }

func newID() string { return newIDOf("usr_") }

func newIDOf(prefix string) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	id := make([]byte, 0, 20)
	for len(id) < cap(id) {
		for _, b := range random(32) {
			// 252 is the largest multiple of 36 in a byte: no letter is likelier than another.
			if b < 252 && len(id) < cap(id) {
				id = append(id, alphabet[b%36])
			}
		}
	}
	return prefix + string(id)
}

// random never fails: crypto/rand ends the process where the system has no randomness.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}
