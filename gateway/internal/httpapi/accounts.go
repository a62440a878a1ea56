package httpapi

import (
	"context"
	"net/http"
	"regexp"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/captcha"
	"github.com/kubebyon/kubebyon/gateway/internal/opaque"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

var invitationIDForm = regexp.MustCompile(`^inv_[a-z0-9]{20}$`)

// CodeGate lets whoever solved a captcha ask for a code, as often as limit allows for one address, so that nobody's mailbox is
// flooded. Who solved none uses nothing of that up.
type CodeGate struct {
	Captchas *captcha.Service
	Limit    Limiter
}

// Admit implements account.Gate.
func (g CodeGate) Admit(ctx context.Context, r account.CodeRequest) error {
	if err := g.Captchas.Check(ctx, r.CaptchaID, r.CaptchaAnswer); err != nil {
		return err
	}
	return countAccount(ctx, g.Limit, r.Email)
}

// requestCode answers alike whether there is an account with the address or not.
func (s *Server) requestCode(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[account.CodeRequest](w, r)
	if err != nil {
		return err
	}
	concernsEmail(r, body.Email)
	if err := required("email", body.Email); err != nil {
		return err
	}
	if err := required("purpose", string(body.Purpose)); err != nil {
		return err
	}
	if err := id.Registration.RequestCode(r.Context(), body); err != nil {
		return err
	}
	return writeJSON(w, http.StatusAccepted, struct {
		ExpiresInSeconds int `json:"expires_in_seconds"`
	}{int(account.CodeLife.Seconds())})
}

// register takes either an invitation, or an address with the code that was mailed to it.
func (s *Server) register(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Email      string `json:"email"`
		Code       string `json:"code"`
		Invitation string `json:"invitation"`
		Password   string `json:"password"`
	}](w, r)
	if err != nil {
		return err
	}
	concernsEmail(r, body.Email)
	if err := required("password", body.Password); err != nil {
		return err
	}
	var made account.Account
	switch {
	case body.Invitation != "" && (body.Email != "" || body.Code != ""):
		return fault.New(fault.Invalid, "invitation_alone", "an invitation names the address already").In("invitation").
			Do("leave out email and code, or the invitation")
	case body.Invitation != "":
		made, err = id.Registration.RegisterInvited(r.Context(), body.Invitation, body.Password)
	default:
		if err := required("email", body.Email); err != nil {
			return err
		}
		if err := required("code", body.Code); err != nil {
			return err
		}
		made, err = id.Registration.Register(r.Context(), body.Email, body.Password, body.Code)
	}
	if err != nil {
		return err
	}
	return s.openSession(w, r, id, made, http.StatusCreated)
}

// resetPassword opens no session: who has the code has the mailbox, and may still lack the second factor.
func (s *Server) resetPassword(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Email    string `json:"email"`
		Code     string `json:"code"`
		Password string `json:"password"`
	}](w, r)
	if err != nil {
		return err
	}
	concernsEmail(r, body.Email)
	for _, field := range [][2]string{{"email", body.Email}, {"code", body.Code}, {"password", body.Password}} {
		if err := required(field[0], field[1]); err != nil {
			return err
		}
	}
	if err := id.Passwords.Reset(r.Context(), body.Email, body.Code, body.Password); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) changePassword(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Current       string `json:"current_password"`
		New           string `json:"new_password"`
		CaptchaID     string `json:"captcha_id"`
		CaptchaAnswer string `json:"captcha_answer"`
	}](w, r)
	if err != nil {
		return err
	}
	if err := required("current_password", body.Current); err != nil {
		return err
	}
	if err := required("new_password", body.New); err != nil {
		return err
	}
	user := callerOf(r).account
	// Who has the session alone must not find the password out here.
	if err := s.attempt(r, id, user.Email, solution{body.CaptchaID, body.CaptchaAnswer}, func(ctx context.Context) error {
		return id.Passwords.Change(ctx, user, body.Current, body.New, opaque.Hash(sessionToken(r)))
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) createInvitation(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Email string        `json:"email"`
		Role  contract.Role `json:"role"`
	}](w, r)
	if err != nil {
		return err
	}
	concernsEmail(r, body.Email)
	if err := required("email", body.Email); err != nil {
		return err
	}
	if err := required("role", string(body.Role)); err != nil {
		return err
	}
	made, link, err := id.Invitations.Create(r.Context(), callerOf(r).account, body.Email, body.Role)
	if err != nil {
		return err
	}
	concerns(r, made.ID)
	return writeJSON(w, http.StatusCreated, struct {
		Invitation account.Invitation `json:"invitation"`
		Link       string             `json:"link"`
	}{made, link})
}

func (s *Server) listInvitations(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	found, err := id.Invitations.List(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Invitations []account.Invitation `json:"invitations"`
	}{append([]account.Invitation{}, found...)})
}

func (s *Server) withdrawInvitation(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	invitation := r.PathValue("invitation_id")
	if !invitationIDForm.MatchString(invitation) {
		return fault.New(fault.NotFound, "invitation_not_found", "there is no such invitation")
	}
	if err := id.Invitations.Withdraw(r.Context(), invitation); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
