// Package apitoken keeps the credentials that machines use for an account. It must never store or log a token's value:
// only its hash is kept, and the value is given once.
package apitoken

import (
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/opaque"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Bounds of tokens.
const (
	MaxPerAccount = 50
	MaxName       = 100 // characters
	MinLife       = time.Hour
	MaxLife       = 365 * 24 * time.Hour
	// slack forgives the time that a request takes and clocks that are not quite together.
	slack = time.Minute
	// usedEvery bounds how often a token's last use is written: not with every request.
	usedEvery = time.Minute
)

// Token is a credential's record, without its value.
type Token struct {
	ID         string     `json:"id"` // pat_ + 20 of [a-z0-9]
	Name       string     `json:"name"`
	Scopes     Scopes     `json:"scopes"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"` // to the minute
}

// Store keeps tokens under the hash of their value. Every method fails with unavailable while the database is away.
type Store interface {
	// AddToken fails with NameTaken, and with TooMany where the account has most already, however many ask at once;
	// not_found where there is no such account.
	AddToken(ctx context.Context, userID string, hash []byte, t Token, most int) error
	// FindToken gives a token that ends after now, and its account; else not_found.
	FindToken(ctx context.Context, hash []byte, now time.Time) (Token, account.Account, error)
	// TokenUsed does nothing where a use after at-every is written already.
	TokenUsed(ctx context.Context, id string, at time.Time, every time.Duration) error
	// TokensOf gives an account's tokens, expired ones too, newest first.
	TokensOf(ctx context.Context, userID string) ([]Token, error)
	// DeleteToken says whether the account had it.
	DeleteToken(ctx context.Context, userID, id string) (bool, error)
	DeleteTokensOf(ctx context.Context, userID string) error
}

// Service makes, finds and revokes tokens.
type Service struct {
	store Store
	now   func() time.Time
}

// NewService makes one. now is the clock.
func NewService(store Store, now func() time.Time) *Service {
	return &Service{store: store, now: now}
}

// Wish is what a new token is to be. Exactly one of ExpiresAt and TTLSeconds is given.
type Wish struct {
	Name       string
	Scopes     []string
	ExpiresAt  *string // RFC 3339
	TTLSeconds *int64
}

// Make gives a new token's value, this once, and its record.
func (s *Service) Make(ctx context.Context, userID string, w Wish) (string, Token, error) {
	name, err := checkName(w.Name)
	if err != nil {
		return "", Token{}, err
	}
	scopes, err := NewScopes(w.Scopes)
	if err != nil {
		return "", Token{}, err
	}
	now := s.now().UTC()
	end, err := expiry(w, now)
	if err != nil {
		return "", Token{}, err
	}
	value := "kbt_" + opaque.Secret()
	made := Token{ID: opaque.ID("pat_"), Name: name, Scopes: scopes, CreatedAt: now, ExpiresAt: end}
	if err := s.store.AddToken(ctx, userID, opaque.Hash(value), made, MaxPerAccount); err != nil {
		return "", Token{}, err
	}
	return value, made, nil
}

// Find gives the token that has the value and its account, or Refused.
func (s *Service) Find(ctx context.Context, value string) (Token, account.Account, error) {
	now := s.now()
	found, owner, err := s.store.FindToken(ctx, opaque.Hash(value), now)
	if fault.Is(err, fault.NotFound) {
		return Token{}, account.Account{}, Refused()
	}
	if err != nil {
		return Token{}, account.Account{}, err
	}
	if found.LastUsedAt == nil || now.Sub(*found.LastUsedAt) >= usedEvery {
		if err := s.store.TokenUsed(ctx, found.ID, now, usedEvery); err != nil {
			return Token{}, account.Account{}, err
		}
	}
	return found, owner, nil
}

// Of lists an account's tokens, expired ones too, newest first.
func (s *Service) Of(ctx context.Context, userID string) ([]Token, error) {
	return s.store.TokensOf(ctx, userID)
}

// Revoke ends one of the account's tokens at once; not_found where it has no such one.
func (s *Service) Revoke(ctx context.Context, userID, id string) error {
	had, err := s.store.DeleteToken(ctx, userID, id)
	if err == nil && !had {
		err = fault.New(fault.NotFound, "api_token_not_found", "there is no such API token")
	}
	return err
}

// RevokeAllOf ends every token of an account.
func (s *Service) RevokeAllOf(ctx context.Context, userID string) error {
	return s.store.DeleteTokensOf(ctx, userID)
}

// Principal is what the services are told of an account that uses the token.
func (t Token) Principal(a account.Account) contract.Principal {
	p := a.Principal()
	p.ReadOnly, p.Clusters = !t.Scopes.Allow(Write), t.Scopes.Clusters()
	return p
}

// NameTaken is what a second token of one name meets.
func NameTaken() error {
	return fault.New(fault.Conflict, "api_token_name_taken", "this account has an API token of that name").In("name").
		Do("choose another name, or revoke the other one first")
}

// TooMany is what one token more than MaxPerAccount meets.
func TooMany() error {
	return fault.New(fault.Precondition, "api_token_limit", "this account has %d API tokens, which is the most", MaxPerAccount).
		Do("revoke one that is not needed any more; expired ones count too")
}

func checkName(name string) (string, error) {
	refused := func(text string) error {
		return fault.New(fault.Invalid, "api_token_name_invalid", "%s", text).In("name")
	}
	name = strings.TrimSpace(name)
	switch n := utf8.RuneCountInString(name); {
	case n == 0:
		return "", fault.New(fault.Invalid, "field_required", "name is missing or empty").In("name")
	case n > MaxName:
		return "", refused("the name has more than 100 characters")
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "", refused("the name has a character that cannot be printed")
	}
	return name, nil
}

func expiry(w Wish, now time.Time) (time.Time, error) {
	refused := func(field, text string) error {
		return fault.New(fault.Invalid, "expiry_invalid", "%s", text).In(field).
			Do("give expires_at (RFC 3339) or ttl_seconds: from one hour to 365 days from now")
	}
	switch {
	case w.ExpiresAt == nil && w.TTLSeconds == nil:
		return time.Time{}, refused("expires_at", "an API token needs an end")
	case w.ExpiresAt != nil && w.TTLSeconds != nil:
		return time.Time{}, refused("expires_at", "expires_at and ttl_seconds exclude one another")
	case w.TTLSeconds != nil:
		if n := *w.TTLSeconds; n < int64(MinLife/time.Second) || n > int64(MaxLife/time.Second) {
			return time.Time{}, refused("ttl_seconds", "that is too short or too long")
		}
		return now.Add(time.Duration(*w.TTLSeconds) * time.Second), nil
	}
	end, err := time.Parse(time.RFC3339, *w.ExpiresAt)
	switch {
	case err != nil:
		return time.Time{}, refused("expires_at", "this is no time of the form 2027-01-31T12:00:00Z")
	case end.Before(now.Add(MinLife-slack)) || end.After(now.Add(MaxLife+slack)):
		return time.Time{}, refused("expires_at", "that is too soon or too late")
	}
	return end.UTC(), nil
}
