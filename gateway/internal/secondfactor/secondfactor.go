// Package secondfactor asks for more than a password: codes that an app makes from a secret and the time (RFC 6238), and recovery
// codes for who has lost it. It must never keep a secret or a code in clear, and lets none count twice.
package secondfactor

import (
	"context"
	"crypto/subtle"
	"time"

	"github.com/pquerna/otp"
	"github.com/pquerna/otp/hotp"
	"github.com/pquerna/otp/totp"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	// SetupLife is how long a new secret waits for its first code.
	SetupLife = 15 * time.Minute
	// MaxTries is how many codes may be tried within TriesWindow without a right one.
	MaxTries = 10
	// TriesWindow is how long a try counts.
	TriesWindow = 15 * time.Minute

	issuer = "KubeBYON"
	step   = 30 // seconds
	skew   = 1  // steps that a clock may be off
)

// State is what is known about an account's second factor.
type State struct {
	Sealed    []byte // its secret
	CreatedAt time.Time
	Confirmed bool // log-ins ask for it
}

// Store keeps second factors. Every method fails with unavailable while the database is away.
type Store interface {
	// SecondFactor gives the account's; not_found where there is none.
	SecondFactor(ctx context.Context, userID string) (State, error)
	// AddSecondFactor stores an unconfirmed one in place of another such; false: there is a confirmed one.
	AddSecondFactor(ctx context.Context, userID string, sealed []byte, now time.Time) (bool, error)
	// TrySecondFactor counts a try, before its outcome is known; false: there were most since then already.
	TrySecondFactor(ctx context.Context, userID string, now, since time.Time, most int) (bool, error)
	// UseStep spends the time step and every earlier one, to exactly one of any number of concurrent callers, and forgets the
	// tries.
	UseStep(ctx context.Context, userID string, step int64) (bool, error)
	// ConfirmSecondFactor spends the step, and makes an unconfirmed factor with that sealed secret count with these recovery
	// codes; false: there is none such.
	ConfirmSecondFactor(ctx context.Context, userID string, sealed []byte, step int64, recovery [][]byte, now time.Time) (bool, error)
	// UseRecovery spends the recovery code, to exactly one of any number of concurrent callers, and forgets the tries.
	UseRecovery(ctx context.Context, userID string, hash []byte) (bool, error)
	// ReplaceRecovery replaces all of them.
	ReplaceRecovery(ctx context.Context, userID string, hashes [][]byte) error
	// RemoveSecondFactor removes it with its recovery codes.
	RemoveSecondFactor(ctx context.Context, userID string) error
	// TakeSecondFactor removes it and ends all of the account's sessions, in one step; not_found where there is no such account.
	TakeSecondFactor(ctx context.Context, userID string) error
}

// Keyring seals secrets.
type Keyring interface {
	Seal(plain, place string) ([]byte, error)
	Open(sealed []byte, place string) (string, error)
}

// Service keeps and checks second factors.
type Service struct {
	store Store
	keys  Keyring
	now   func() time.Time
}

// NewService makes one. now is the clock.
func NewService(store Store, keys Keyring, now func() time.Time) *Service {
	return &Service{store: store, keys: keys, now: now}
}

// Begun is what an app is told, once.
type Begun struct {
	Secret string `json:"secret"` // base 32
	URI    string `json:"uri"`    // otpauth://
}

// Begin makes a secret that does not count before Confirm. It fails with second_factor_exists (conflict) and encryption_key_unset.
func (s *Service) Begin(ctx context.Context, userID, email string) (Begun, error) {
	key, err := totp.Generate(totp.GenerateOpts{Issuer: issuer, AccountName: email, Period: step, Digits: otp.DigitsSix, Algorithm: otp.AlgorithmSHA1})
	if err != nil {
		return Begun{}, err
	}
	sealed, err := s.keys.Seal(key.Secret(), place(userID))
	if err != nil {
		return Begun{}, err
	}
	added, err := s.store.AddSecondFactor(ctx, userID, sealed, s.now())
	if err != nil {
		return Begun{}, err
	}
	if !added {
		return Begun{}, fault.New(fault.Conflict, "second_factor_exists", "this account has a second factor").Do("remove it first")
	}
	return Begun{Secret: key.Secret(), URI: key.URL()}, nil
}

// Confirm makes the begun second factor count, and gives its recovery codes, which are shown nowhere again. It fails with
// second_factor_not_begun (precondition) and as Check does.
func (s *Service) Confirm(ctx context.Context, userID, code string) ([]string, error) {
	notBegun := fault.New(fault.Precondition, "second_factor_not_begun", "no second factor waits for its first code").Do("begin with POST /api/auth/second-factor")
	found, err := s.store.SecondFactor(ctx, userID)
	if fault.Is(err, fault.NotFound) || err == nil && (found.Confirmed || !s.now().Before(found.CreatedAt.Add(SetupLife))) {
		return nil, notBegun
	}
	if err != nil {
		return nil, err
	}
	if err := s.try(ctx, userID); err != nil {
		return nil, err
	}
	at, ok, err := s.matches(found, userID, read(code).time)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, wrong()
	}
	shown, hashes := newRecoveryCodes(userID)
	confirmed, err := s.store.ConfirmSecondFactor(ctx, userID, found.Sealed, at, hashes, s.now())
	if err != nil {
		return nil, err
	}
	if !confirmed {
		return nil, notBegun
	}
	return shown, nil
}

// Enabled says whether log-ins to the account ask for it.
func (s *Service) Enabled(ctx context.Context, userID string) (bool, error) {
	found, err := s.store.SecondFactor(ctx, userID)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return found.Confirmed, err
}

// Check spends a code where the account has a second factor, and does nothing where it has none. It fails with
// second_factor_required where no code is given, with second_factor_wrong where it is wrong or was used (both unauthenticated), and
// with second_factor_tries (rate_limited) after too many.
func (s *Service) Check(ctx context.Context, userID, code string) error {
	found, err := s.store.SecondFactor(ctx, userID)
	if fault.Is(err, fault.NotFound) || err == nil && !found.Confirmed {
		return nil
	}
	if err != nil {
		return err
	}
	if code == "" {
		return fault.New(fault.Unauthenticated, "second_factor_required", "this account needs a second factor").In("second_factor").
			Do("send second_factor with a code of your app, or a recovery code")
	}
	if err := s.try(ctx, userID); err != nil {
		return err
	}
	used := false
	switch g := read(code); {
	case g.time != "":
		at, ok, err := s.matches(found, userID, g.time)
		if err != nil {
			return err
		}
		if ok {
			if used, err = s.store.UseStep(ctx, userID, at); err != nil {
				return err
			}
		}
	case g.recovery != "":
		if used, err = s.store.UseRecovery(ctx, userID, hashRecovery(userID, g.recovery)); err != nil {
			return err
		}
	}
	if !used {
		return wrong()
	}
	return nil
}

// Remove removes the account's second factor, which a code must have been spent for. It fails with second_factor_unset
// (precondition).
func (s *Service) Remove(ctx context.Context, userID, code string) error {
	if err := s.prove(ctx, userID, code); err != nil {
		return err
	}
	return s.store.RemoveSecondFactor(ctx, userID)
}

// RenewRecovery replaces the recovery codes; the codes and failures are Remove's.
func (s *Service) RenewRecovery(ctx context.Context, userID, code string) ([]string, error) {
	if err := s.prove(ctx, userID, code); err != nil {
		return nil, err
	}
	shown, hashes := newRecoveryCodes(userID)
	return shown, s.store.ReplaceRecovery(ctx, userID, hashes)
}

// Take removes it from an account whose holder has lost everything, and ends the account's sessions. It fails with user_not_found.
func (s *Service) Take(ctx context.Context, userID string) error {
	err := s.store.TakeSecondFactor(ctx, userID)
	if fault.Is(err, fault.NotFound) {
		return fault.New(fault.NotFound, "user_not_found", "there is no such account")
	}
	return err
}

func (s *Service) prove(ctx context.Context, userID, code string) error {
	enabled, err := s.Enabled(ctx, userID)
	if err != nil {
		return err
	}
	if !enabled {
		return fault.New(fault.Precondition, "second_factor_unset", "this account has no second factor")
	}
	return s.Check(ctx, userID, code)
}

// try comes before every comparison, so that concurrent guesses count too.
func (s *Service) try(ctx context.Context, userID string) error {
	may, err := s.store.TrySecondFactor(ctx, userID, s.now(), s.now().Add(-TriesWindow), MaxTries)
	if err != nil {
		return err
	}
	if !may {
		return fault.New(fault.RateLimited, "second_factor_tries", "too many wrong codes were tried for this account").In("second_factor").
			Do("try again in %d minutes", TriesWindow/time.Minute)
	}
	return nil
}

// matches gives the time step whose code it is, if any, after the same work whichever it is.
func (s *Service) matches(found State, userID, code string) (at int64, ok bool, err error) {
	secret, err := s.keys.Open(found.Sealed, place(userID))
	if err != nil {
		return 0, false, err
	}
	now := s.now().Unix() / step
	for candidate := now - skew; candidate <= now+skew; candidate++ {
		right, err := hotp.GenerateCode(secret, uint64(candidate))
		if err != nil {
			return 0, false, err
		}
		if len(code) == timeDigits && subtle.ConstantTimeCompare([]byte(right), []byte(code)) == 1 {
			at, ok = candidate, true
		}
	}
	return at, ok, nil
}

func wrong() error {
	return fault.New(fault.Unauthenticated, "second_factor_wrong", "the second factor is wrong, or was used before").In("second_factor").
		Do("wait for your app's next code")
}

func place(userID string) string { return "second_factors.secret/" + userID }
