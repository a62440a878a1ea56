package account

import (
	"context"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Mode says who may register.
type Mode string

// The modes. Anything else counts as Closed.
const (
	Closed Mode = "closed" // nobody
	Invite Mode = "invite" // who holds an invitation
	Open   Mode = "open"   // everybody with an address, too
)

// Policy is what an administrator has set.
type Policy struct {
	Registration  Mode
	PublicBaseURL string // where people reach the gateway; empty while it is unset
	Mail          bool   // whether there is a mail server
}

// Policies reads the policy as it is now.
type Policies interface {
	Policy(ctx context.Context) (Policy, error)
}

// admitsInvited fails with registration_closed (forbidden).
func (p Policy) admitsInvited() error {
	if p.Registration == Invite || p.Registration == Open {
		return nil
	}
	return registrationClosed()
}

// admitsAnybody fails with registration_closed or invitation_required (forbidden).
func (p Policy) admitsAnybody() error {
	switch p.Registration {
	case Open:
		return nil
	case Invite:
		return fault.New(fault.Forbidden, "invitation_required", "only who has an invitation may register").Do("ask an administrator for one")
	default:
		return registrationClosed()
	}
}

func registrationClosed() error {
	return fault.New(fault.Forbidden, "registration_closed", "nobody may register here").Do("ask an administrator to open registration")
}

// canMail fails with mail_unset (precondition).
func (p Policy) canMail() error {
	if p.Mail {
		return nil
	}
	return fault.New(fault.Precondition, "mail_unset", "no mail can be sent: there is no mail server in the settings").
		Do("ask an administrator to set one")
}
