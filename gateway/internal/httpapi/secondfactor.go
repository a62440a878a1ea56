package httpapi

import (
	"context"
	"net/http"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

type recoveryBody struct {
	RecoveryCodes []string `json:"recovery_codes"`
}

func (s *Server) beginSecondFactor(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Password      string `json:"password"`
		CaptchaID     string `json:"captcha_id"`
		CaptchaAnswer string `json:"captcha_answer"`
	}](w, r)
	if err != nil {
		return err
	}
	if err := required("password", body.Password); err != nil {
		return err
	}
	user := callerOf(r).account
	if err := s.attempt(r, id, user.Email, solution{body.CaptchaID, body.CaptchaAnswer}, func(ctx context.Context) error {
		_, err := id.Accounts.Authenticate(ctx, user.Email, body.Password)
		return err
	}); err != nil {
		return err
	}
	begun, err := id.SecondFactors.Begin(r.Context(), user.ID, user.Email)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, begun)
}

func (s *Server) confirmSecondFactor(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Code string `json:"code"`
	}](w, r)
	if err != nil {
		return err
	}
	if err := required("code", body.Code); err != nil {
		return err
	}
	codes, err := id.SecondFactors.Confirm(r.Context(), callerOf(r).account.ID, body.Code)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, recoveryBody{codes})
}

func (s *Server) removeSecondFactor(w http.ResponseWriter, r *http.Request) error {
	if err := s.withBoth(w, r, func(ctx context.Context, id *Identity, userID, code string) error {
		return id.SecondFactors.Remove(ctx, userID, code)
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) renewRecoveryCodes(w http.ResponseWriter, r *http.Request) error {
	var codes []string
	if err := s.withBoth(w, r, func(ctx context.Context, id *Identity, userID, code string) (err error) {
		codes, err = id.SecondFactors.RenewRecovery(ctx, userID, code)
		return err
	}); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, recoveryBody{codes})
}

// withBoth reads the password and a code of the caller, and does what needs both: a stolen session alone is not enough. do spends
// the code.
func (s *Server) withBoth(w http.ResponseWriter, r *http.Request, do func(ctx context.Context, id *Identity, userID, code string) error) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Password      string `json:"password"`
		Code          string `json:"code"`
		CaptchaID     string `json:"captcha_id"`
		CaptchaAnswer string `json:"captcha_answer"`
	}](w, r)
	if err != nil {
		return err
	}
	if err := required("password", body.Password); err != nil {
		return err
	}
	if err := required("code", body.Code); err != nil {
		return err
	}
	user := callerOf(r).account
	return s.attempt(r, id, user.Email, solution{body.CaptchaID, body.CaptchaAnswer}, func(ctx context.Context) error {
		if _, err := id.Accounts.Authenticate(ctx, user.Email, body.Password); err != nil {
			return err
		}
		return do(ctx, id, user.ID, body.Code)
	})
}

// takeSecondFactor is for people who have lost their app and their recovery codes.
func (s *Server) takeSecondFactor(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	userID := r.PathValue("user_id")
	if !userIDForm.MatchString(userID) {
		return fault.New(fault.NotFound, "user_not_found", "there is no such account")
	}
	concerns(r, userID)
	if err := id.SecondFactors.Take(r.Context(), userID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
