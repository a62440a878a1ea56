// Package session keeps who is logged in. It must never store or log a session's token: only its hash is kept.
package session

import (
	"context"
	"net/netip"
	"strings"
	"time"
	"unicode"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/opaque"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// How long a session lasts.
const (
	Idle     = 24 * time.Hour     // without a request
	Absolute = 7 * 24 * time.Hour // whatever happens
	// seenEvery bounds how often a session's last use is written: not with every request.
	seenEvery = time.Minute
	// MaxListed bounds a list; who has more ends all at once.
	MaxListed = 200
	maxAgent  = 200 // characters
)

// Session is a log-in that still counts.
type Session struct {
	ID         string // ses_ + 20 of [a-z0-9]; no credential
	Account    account.Account
	Client     Client
	CreatedAt  time.Time
	LastSeenAt time.Time
	ExpiresAt  time.Time
}

// Client is where a log-in came from, for its owner to recognise. Nothing is decided by it.
type Client struct {
	Address   netip.Addr
	UserAgent string
}

// Store keeps sessions under the hash of their token. Every method fails with unavailable while the database is away.
type Store interface {
	// AddSession stores it and removes some of the dead ones, whoever's: more than one, so that they do not pile up.
	AddSession(ctx context.Context, tokenHash []byte, s Session) error
	// FindSession gives a session that ends after now and was seen after seenAfter; else not_found.
	FindSession(ctx context.Context, tokenHash []byte, now, seenAfter time.Time) (Session, error)
	SessionSeen(ctx context.Context, tokenHash []byte, at time.Time) error
	// DeleteSession does nothing where there is none.
	DeleteSession(ctx context.Context, tokenHash []byte) error
	// SessionsOf gives an account's sessions, without the account: those that FindSession would find, the last used first,
	// most at most.
	SessionsOf(ctx context.Context, userID string, now, seenAfter time.Time, most int) ([]Session, error)
	// DeleteSessionOf says whether the account had it.
	DeleteSessionOf(ctx context.Context, userID, id string) (bool, error)
	// DeleteSessionsOf spares the one with the id except, which may be empty.
	DeleteSessionsOf(ctx context.Context, userID, except string) error
}

// Service opens, finds and ends sessions.
type Service struct {
	store Store
	now   func() time.Time
}

// NewService makes one. now is the clock.
func NewService(store Store, now func() time.Time) *Service {
	return &Service{store: store, now: now}
}

// Open starts a session and gives its token, which is new every time.
func (s *Service) Open(ctx context.Context, a account.Account, from Client) (string, Session, error) {
	token := opaque.Secret()
	now := s.now().UTC()
	from.UserAgent = printable(from.UserAgent)
	opened := Session{ID: opaque.ID("ses_"), Account: a, Client: from, CreatedAt: now, LastSeenAt: now, ExpiresAt: now.Add(Absolute)}
	if err := s.store.AddSession(ctx, opaque.Hash(token), opened); err != nil {
		return "", Session{}, err
	}
	return token, opened, nil
}

// Find gives the token's session, or unauthenticated.
func (s *Service) Find(ctx context.Context, token string) (Session, error) {
	if !wellFormed(token) {
		return Session{}, Refused()
	}
	now := s.now()
	found, err := s.store.FindSession(ctx, opaque.Hash(token), now, now.Add(-Idle))
	if fault.Is(err, fault.NotFound) {
		return Session{}, Refused()
	}
	if err != nil {
		return Session{}, err
	}
	if now.Sub(found.LastSeenAt) >= seenEvery {
		if err := s.store.SessionSeen(ctx, opaque.Hash(token), now); err != nil {
			return Session{}, err
		}
	}
	return found, nil
}

// Close ends the token's session, if it is one.
func (s *Service) Close(ctx context.Context, token string) error {
	if !wellFormed(token) {
		return nil
	}
	return s.store.DeleteSession(ctx, opaque.Hash(token))
}

// Of lists an account's sessions, the last used first, at most MaxListed.
func (s *Service) Of(ctx context.Context, userID string) ([]Session, error) {
	now := s.now()
	return s.store.SessionsOf(ctx, userID, now, now.Add(-Idle), MaxListed)
}

// CloseOneOf ends one of the account's sessions; not_found where it has no such one.
func (s *Service) CloseOneOf(ctx context.Context, userID, id string) error {
	had, err := s.store.DeleteSessionOf(ctx, userID, id)
	if err == nil && !had {
		err = fault.New(fault.NotFound, "session_not_found", "there is no such session")
	}
	return err
}

// CloseAllOf ends every session of an account but the one with the id except, which may be empty.
func (s *Service) CloseAllOf(ctx context.Context, userID, except string) error {
	return s.store.DeleteSessionsOf(ctx, userID, except)
}

// Refused is the answer to a request that needs a session and has none.
func Refused() error {
	return fault.New(fault.Unauthenticated, "not_logged_in", "this needs a log-in, or the session has ended").Do("log in again")
}

// A token is 32 bytes in 43 characters; anything else is not worth a query.
func wellFormed(token string) bool { return len(token) == 43 }

// printable keeps what can be shown of a text from outside, and not more than maxAgent characters.
func printable(text string) string {
	kept := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, text))
	return string(kept[:min(len(kept), maxAgent)])
}
