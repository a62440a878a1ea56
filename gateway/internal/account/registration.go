package account

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// RegistrationStore keeps codes, and makes accounts. Every method fails with unavailable while the database is away.
type RegistrationStore interface {
	// Address says whether an account has the address, and whether that account is enabled.
	Address(ctx context.Context, email string) (known, enabled bool, err error)
	// PutCode stores a code's hash in place of the address's older one for that purpose.
	PutCode(ctx context.Context, p Purpose, email string, codeHash []byte, now, expiresAt time.Time) error
	// TryCode says whether the code is right, and counts the try. An expired or used-up code is wrong.
	TryCode(ctx context.Context, p Purpose, email string, codeHash []byte, now time.Time) (bool, error)
	// RegisterByCode spends the code and stores the account, in one step. False: the code does not work any more. It
	// fails with email_taken (conflict).
	RegisterByCode(ctx context.Context, codeHash []byte, now time.Time, a Account, passwordHash string) (bool, error)
	// InvitationByToken gives an invitation that works at now; else not_found.
	InvitationByToken(ctx context.Context, tokenHash []byte, now time.Time) (Invitation, error)
	// RegisterByInvitation spends the invitation and stores the account, in one step. False: the invitation does not work
	// any more. It fails with email_taken (conflict).
	RegisterByInvitation(ctx context.Context, tokenHash []byte, now time.Time, a Account, passwordHash string) (bool, error)
}

// Gate decides whether a mail may be asked for: it tells people from programs, and many requests from few.
type Gate interface {
	// Admit fails with a fault that says what is missing.
	Admit(ctx context.Context, r CodeRequest) error
}

// Registration lets people in: it mails codes and makes accounts.
type Registration struct {
	store    RegistrationStore
	hasher   *Hasher
	policies Policies
	outbox   *Outbox
	gate     Gate // nil: open
	now      func() time.Time
}

// NewRegistration makes one. A nil gate is open; now is the clock.
func NewRegistration(store RegistrationStore, hasher *Hasher, policies Policies, outbox *Outbox, gate Gate, now func() time.Time) *Registration {
	return &Registration{store: store, hasher: hasher, policies: policies, outbox: outbox, gate: gate, now: now}
}

// CodeRequest asks for a code by mail.
type CodeRequest struct {
	Email         string  `json:"email"`
	Purpose       Purpose `json:"purpose"`
	CaptchaID     string  `json:"captcha_id"`
	CaptchaAnswer string  `json:"captcha_answer"`
}

// RequestCode makes a code and mails it. For an address with an account and for one without it does the same work with the
// same result; what differs is the mail, which is sent later:
//
//	register, no account:   the code
//	register, an account:   that there is one, and how to reset its password
//	reset, an account:      the code
//	reset, none or disabled: nothing
//
// It fails with email_invalid, purpose_invalid, mail_unset (precondition), registration_closed and invitation_required
// (forbidden), and as the gate does.
func (s *Registration) RequestCode(ctx context.Context, r CodeRequest) error {
	if err := CheckEmail(r.Email); err != nil {
		return err
	}
	if r.Purpose != ToRegister && r.Purpose != ToReset {
		return fault.New(fault.Invalid, "purpose_invalid", "purpose must be register or reset_password").In("purpose")
	}
	policy, err := s.policies.Policy(ctx)
	if err != nil {
		return err
	}
	if r.Purpose == ToRegister {
		if err := policy.admitsAnybody(); err != nil {
			return err
		}
	}
	if err := policy.canMail(); err != nil {
		return err
	}
	if s.gate != nil {
		if err := s.gate.Admit(ctx, r); err != nil {
			return err
		}
	}
	email, code, now := normalise(r.Email), newCode(), s.now()
	known, enabled, err := s.store.Address(ctx, email)
	if err != nil {
		return err
	}
	out, stored := letter{}, code
	switch {
	case r.Purpose == ToRegister && !known:
		out = registerLetter(email, code)
	case r.Purpose == ToRegister:
		out, stored = knownLetter(email, policy), newCode() // which nobody learns
	case enabled:
		out = resetLetter(email, code)
	default:
		stored = newCode()
	}
	if err := s.store.PutCode(ctx, r.Purpose, email, hashCode(r.Purpose, email, stored), now, now.Add(CodeLife)); err != nil {
		return err
	}
	return s.outbox.put(out)
}

// Register makes an account for an address that its holder proves with a code. It fails with email_invalid, the codes of
// CheckPassword, password_is_email, registration_closed and invitation_required (forbidden), code_wrong, and email_taken
// (conflict), which only a holder of a right code can be told.
func (s *Registration) Register(ctx context.Context, email, password, code string) (Account, error) {
	if err := CheckEmail(email); err != nil {
		return Account{}, err
	}
	email = normalise(email)
	if err := checkPasswordOf(email, password); err != nil {
		return Account{}, err
	}
	policy, err := s.policies.Policy(ctx)
	if err != nil {
		return Account{}, err
	}
	if err := policy.admitsAnybody(); err != nil {
		return Account{}, err
	}
	codeHash := hashCode(ToRegister, email, readCode(code))
	// Before the costly hash, so that a stranger cannot make us do it.
	right, err := s.store.TryCode(ctx, ToRegister, email, codeHash, s.now())
	if err != nil {
		return Account{}, err
	}
	if !right {
		return Account{}, codeWrong()
	}
	passwordHash, err := s.hasher.Hash(ctx, password)
	if err != nil {
		return Account{}, err
	}
	a := Account{ID: newID(), Email: email, Role: contract.RoleUser, CreatedAt: s.now().UTC()}
	used, err := s.store.RegisterByCode(ctx, codeHash, s.now(), a, passwordHash)
	if err != nil {
		return Account{}, err
	}
	if !used {
		return Account{}, codeWrong()
	}
	return a, nil
}

// RegisterInvited makes the account that an invitation is for, once. A dead invitation is forbidden, invitation_invalid;
// a wrong password leaves it usable. While registration is closed no invitation works: registration_closed.
func (s *Registration) RegisterInvited(ctx context.Context, token, password string) (Account, error) {
	refused := fault.New(fault.Forbidden, "invitation_invalid", "this invitation is unknown, used, withdrawn or expired").In("invitation").
		Do("ask an administrator for a new one")
	if err := CheckPassword(password); err != nil {
		return Account{}, err
	}
	policy, err := s.policies.Policy(ctx)
	if err != nil {
		return Account{}, err
	}
	if err := policy.admitsInvited(); err != nil {
		return Account{}, err
	}
	hash := sha256.Sum256([]byte(token))
	found, err := s.store.InvitationByToken(ctx, hash[:], s.now())
	if fault.Is(err, fault.NotFound) {
		return Account{}, refused
	}
	if err != nil {
		return Account{}, err
	}
	if err := checkPasswordOf(found.Email, password); err != nil {
		return Account{}, err
	}
	passwordHash, err := s.hasher.Hash(ctx, password)
	if err != nil {
		return Account{}, err
	}
	a := Account{ID: newID(), Email: found.Email, Role: found.Role, CreatedAt: s.now().UTC()}
	used, err := s.store.RegisterByInvitation(ctx, hash[:], s.now(), a, passwordHash)
	if err != nil {
		return Account{}, err
	}
	if !used {
		return Account{}, refused
	}
	return a, nil
}
