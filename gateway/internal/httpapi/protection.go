package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/kubebyon/kubebyon/gateway/internal/captcha"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

func (s *Server) createCaptcha(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	made, err := id.Captchas.New(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, made)
}

// solution is the answer to a captcha, where one was given.
type solution struct{ id, answer string }

// attempt runs check, which holds credentials of the account with that address against what is kept, unless the account or the
// client has failed too often lately: then it needs a captcha first. It fails with captcha_required, captcha_wrong (both
// unauthenticated), rate_limited and as check does.
func (s *Server) attempt(r *http.Request, id *Identity, email string, given solution, check func(context.Context) error) error {
	solved := given != solution{}
	if solved {
		if err := id.Captchas.Check(r.Context(), given.id, given.answer); err != nil {
			return unauthenticated(err)
		}
	}
	counted, may, err := id.Attempts.Begin(r.Context(), email, clientAddress(r), solved)
	if err != nil {
		return err
	}
	if !may {
		return unauthenticated(captcha.Required())
	}
	// The account's limit comes after the captcha: to use it up and keep its owner out takes a person.
	if err = countAccount(r.Context(), id.LogInLimit, email); err == nil {
		err = check(r.Context())
	}
	// A client that leaves now does not keep its attempt from being counted right.
	settled := context.WithoutCancel(r.Context())
	if err == nil {
		return counted.Passed(settled)
	}
	switch fault.From(err).Code {
	case "wrong_credentials", "second_factor_wrong", "current_password_wrong", "rate_limited":
		return err // it stays counted; many that are refused at once must not take the count of those that were wrong with them
	}
	return errors.Join(err, counted.Withdraw(settled))
}

// unauthenticated makes a captcha's refusal one of a log-in.
func unauthenticated(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Invalid {
		return err
	}
	refused := *f
	refused.Kind = fault.Unauthenticated
	return &refused
}
