package account

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// InvitationLife is how long an invitation works.
const InvitationLife = 7 * 24 * time.Hour

// MaxInvitations bounds how many may be open at a time.
const MaxInvitations = 1000

// Invitation lets its holder make the account with that address and role.
type Invitation struct {
	ID        string        `json:"id"` // inv_ + 20 of [a-z0-9]
	Email     string        `json:"email"`
	Role      contract.Role `json:"role"`
	CreatedBy string        `json:"created_by"`
	CreatedAt time.Time     `json:"created_at"`
	ExpiresAt time.Time     `json:"expires_at"`
}

// InvitationStore keeps invitations. One works until it expires, and while who made it is an enabled administrator. Every
// method fails with unavailable while the database is away.
type InvitationStore interface {
	// AddInvitation stores it in place of an older one for the address. It fails with email_taken and too_many_invitations
	// (conflict).
	AddInvitation(ctx context.Context, tokenHash []byte, i Invitation) error
	// ListInvitations gives those that work at now, by address.
	ListInvitations(ctx context.Context, now time.Time) ([]Invitation, error)
	// DeleteInvitation fails with not_found.
	DeleteInvitation(ctx context.Context, id string) error
}

// Invitations lets administrators invite people.
type Invitations struct {
	store    InvitationStore
	policies Policies
	outbox   *Outbox
	now      func() time.Time
}

// NewInvitations makes one. now is the clock.
func NewInvitations(store InvitationStore, policies Policies, outbox *Outbox, now func() time.Time) *Invitations {
	return &Invitations{store: store, policies: policies, outbox: outbox, now: now}
}

// Create makes an invitation by the account by, and the link for it, which nothing gives again. Where there is a mail server
// the link is mailed too. It fails with email_invalid, role_invalid, registration_closed (forbidden), email_taken and
// too_many_invitations (conflict), and public_base_url_unset (precondition).
func (s *Invitations) Create(ctx context.Context, by Account, email string, role contract.Role) (Invitation, string, error) {
	if err := CheckEmail(email); err != nil {
		return Invitation{}, "", err
	}
	if err := checkRole(role); err != nil {
		return Invitation{}, "", err
	}
	policy, err := s.policies.Policy(ctx)
	if err != nil {
		return Invitation{}, "", err
	}
	if err := policy.admitsInvited(); err != nil {
		return Invitation{}, "", err
	}
	if policy.PublicBaseURL == "" {
		return Invitation{}, "", fault.New(fault.Precondition, "public_base_url_unset", "the address for people is not set, so there is no link to give").
			Do("set public_base_url in the settings")
	}
	now := s.now().UTC().Truncate(time.Microsecond) // as it is stored
	made := Invitation{ID: newIDOf("inv_"), Email: normalise(email), Role: role, CreatedBy: by.ID, CreatedAt: now, ExpiresAt: now.Add(InvitationLife)}
	token := base64.RawURLEncoding.EncodeToString(random(32))
	hash := sha256.Sum256([]byte(token))
	if err := s.store.AddInvitation(ctx, hash[:], made); err != nil {
		return Invitation{}, "", err
	}
	link := policy.PublicBaseURL + "/register#invitation=" + token
	if policy.Mail {
		if err := s.outbox.put(invitationLetter(made.Email, link)); err != nil {
			return Invitation{}, "", err
		}
	}
	return made, link, nil
}

// List gives the invitations that still work, by address.
func (s *Invitations) List(ctx context.Context) ([]Invitation, error) {
	return s.store.ListInvitations(ctx, s.now())
}

// Withdraw ends an invitation; invitation_not_found where there is none.
func (s *Invitations) Withdraw(ctx context.Context, id string) error {
	err := s.store.DeleteInvitation(ctx, id)
	if fault.Is(err, fault.NotFound) {
		return fault.New(fault.NotFound, "invitation_not_found", "there is no such invitation")
	}
	return err
}

func checkRole(role contract.Role) error {
	if role != contract.RoleAdmin && role != contract.RoleUser {
		return fault.New(fault.Invalid, "role_invalid", "role must be admin or user").In("role")
	}
	return nil
}
