// Package session keeps who is logged in. It must never store or log a session's token: only its hash is kept.
package session

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// How long a session lasts.
const (
	Idle     = 24 * time.Hour     // without a request
	Absolute = 7 * 24 * time.Hour // whatever happens
	// seenEvery bounds how often a session's last use is written: not with every request.
	seenEvery = time.Minute
)

// Session is a log-in that still counts.
type Session struct {
	Account    account.Account
	CreatedAt  time.Time
	LastSeenAt time.Time
	ExpiresAt  time.Time
}

// Store keeps sessions under the hash of their token. Every method fails with unavailable while the database is away.
type Store interface {
	// AddSession stores it and removes the account's dead ones.
	AddSession(ctx context.Context, tokenHash []byte, s Session) error
	// FindSession gives a session that ends after now and was seen after seenAfter; else not_found.
	FindSession(ctx context.Context, tokenHash []byte, now, seenAfter time.Time) (Session, error)
	SessionSeen(ctx context.Context, tokenHash []byte, at time.Time) error
	// DeleteSession does nothing where there is none.
	DeleteSession(ctx context.Context, tokenHash []byte) error
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
func (s *Service) Open(ctx context.Context, a account.Account) (string, Session, error) {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	token := base64.RawURLEncoding.EncodeToString(b)
	now := s.now().UTC()
	opened := Session{Account: a, CreatedAt: now, LastSeenAt: now, ExpiresAt: now.Add(Absolute)}
	if err := s.store.AddSession(ctx, hash(token), opened); err != nil {
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
	found, err := s.store.FindSession(ctx, hash(token), now, now.Add(-Idle))
	if fault.Is(err, fault.NotFound) {
		return Session{}, Refused()
	}
	if err != nil {
		return Session{}, err
	}
	if now.Sub(found.LastSeenAt) >= seenEvery {
		if err := s.store.SessionSeen(ctx, hash(token), now); err != nil {
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
	return s.store.DeleteSession(ctx, hash(token))
}

// Refused is the answer to a request that needs a session and has none.
func Refused() error {
	return fault.New(fault.Unauthenticated, "not_logged_in", "this needs a log-in, or the session has ended").Do("log in again")
}

// A token is 32 bytes in 43 characters; anything else is not worth a query.
func wellFormed(token string) bool { return len(token) == 43 }

func hash(token string) []byte {
	h := sha256.Sum256([]byte(token))
	return h[:]
}
