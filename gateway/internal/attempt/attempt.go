// Package attempt counts failed log-ins and says when the next one needs a captcha. It must never keep an address in clear, nor
// tell known from unknown accounts.
package attempt

import (
	"context"
	"crypto/sha256"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// Free is how many failures within Window go without a captcha.
	Free = 3
	// Window is how long a failure counts.
	Window = 15 * time.Minute
	// Most is how many addresses are remembered; those longest without a failure make room.
	Most = 100_000

	sweepEvery = 64 // attempts: rows may exceed Most by as many for each replica
)

// Store counts. Every method fails with unavailable while the database is away.
type Store interface {
	// Attempt counts an attempt at now as failed for every key, before its outcome is known, so that no number of concurrent
	// ones is too many. Unless solved it does nothing and says false where a key has free failures after since.
	Attempt(ctx context.Context, keys [][]byte, now, since time.Time, free int, solved bool) (bool, error)
	// Withdraw uncounts one attempt at that time for every key.
	Withdraw(ctx context.Context, keys [][]byte, at time.Time) error
	// Forget removes what was counted for the key.
	Forget(ctx context.Context, key []byte) error
	// SweepAttempts removes the keys without a failure after since, and the oldest beyond most.
	SweepAttempts(ctx context.Context, since time.Time, most int) error
}

// Service counts for accounts' addresses and for clients' addresses.
type Service struct {
	store Store
	now   func() time.Time
	begun atomic.Uint64
}

// NewService makes one. now is the clock.
func NewService(store Store, now func() time.Time) *Service { return &Service{store: store, now: now} }

// Attempt is a log-in that was counted as failed and may turn out better.
type Attempt struct {
	service *Service
	account []byte
	client  []byte
	at      time.Time
}

// Begin counts an attempt for the account's address, whether there is one or not, and for the client. Where either has failed too
// often and solved is false it counts nothing and gives false: the attempt must not be made.
func (s *Service) Begin(ctx context.Context, email string, client netip.Addr, solved bool) (*Attempt, bool, error) {
	// PostgreSQL keeps microseconds; Withdraw looks for what was kept.
	a := &Attempt{service: s, account: accountKey(email), client: clientKey(client), at: s.now().UTC().Truncate(time.Microsecond)}
	since := a.at.Add(-Window)
	if s.begun.Add(1)%sweepEvery == 0 {
		if err := s.store.SweepAttempts(ctx, since, Most); err != nil {
			return nil, false, err
		}
	}
	may, err := s.store.Attempt(ctx, [][]byte{a.account, a.client}, a.at, since, Free, solved)
	if err != nil || !may {
		return nil, false, err
	}
	return a, true, nil
}

// Passed forgets the account's failures. The client's stay: whoever has one account must not buy guesses at others with it.
func (a *Attempt) Passed(ctx context.Context) error {
	if err := a.service.store.Withdraw(ctx, [][]byte{a.client}, a.at); err != nil {
		return err
	}
	return a.service.store.Forget(ctx, a.account)
}

// Withdraw is for an attempt that told nobody whether it was right.
func (a *Attempt) Withdraw(ctx context.Context) error {
	return a.service.store.Withdraw(ctx, [][]byte{a.account, a.client}, a.at)
}

func accountKey(email string) []byte {
	h := sha256.Sum256([]byte("account\n" + strings.ToLower(strings.TrimSpace(email))))
	return h[:]
}

// clientKey takes an IPv6 network for one client: its holder has 2^64 addresses.
func clientKey(client netip.Addr) []byte {
	client = client.Unmap().WithZone("")
	text := client.String()
	if client.Is6() {
		network, _ := client.Prefix(64) // 64 bits are always possible
		text = network.String()
	}
	h := sha256.Sum256([]byte("client\n" + text))
	return h[:]
}
