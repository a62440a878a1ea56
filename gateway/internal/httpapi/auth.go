package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/apitoken"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// sessionCookie is fixed: users' scripts name it.
const sessionCookie = "kubebyon_session"

type sessionBody struct {
	User      account.Account `json:"user"`
	ExpiresAt time.Time       `json:"expires_at"` // of the session or the API token
	SessionID string          `json:"session_id,omitempty"`
	APIToken  *apitoken.Token `json:"api_token,omitempty"`
	// SecondFactor says whether log-ins to the account ask for one.
	SecondFactor bool `json:"second_factor"`
}

// logIn opens a session. It fails with captcha_required and captcha_wrong after failed log-ins, wrong_credentials,
// second_factor_required, second_factor_wrong and second_factor_tries.
func (s *Server) logIn(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Email         string `json:"email"`
		Password      string `json:"password"`
		SecondFactor  string `json:"second_factor"`
		CaptchaID     string `json:"captcha_id"`
		CaptchaAnswer string `json:"captcha_answer"`
	}](w, r)
	if err != nil {
		return err
	}
	concernsEmail(r, body.Email)
	if err := required("email", body.Email); err != nil {
		return err
	}
	if err := required("password", body.Password); err != nil {
		return err
	}
	// The order tells no more than it must: a captcha before anything about the account, a second factor after the password.
	var found account.Account
	if err := s.attempt(r, id, body.Email, solution{body.CaptchaID, body.CaptchaAnswer}, func(ctx context.Context) error {
		var err error
		if found, err = id.Accounts.Authenticate(ctx, body.Email, body.Password); err != nil {
			return err
		}
		return id.SecondFactors.Check(ctx, found.ID, body.SecondFactor)
	}); err != nil {
		return err
	}
	return s.openSession(w, r, id, found, http.StatusOK)
}

func (s *Server) setup(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Token    string `json:"token"`
		Email    string `json:"email"`
		Password string `json:"password"`
	}](w, r)
	if err != nil {
		return err
	}
	concernsEmail(r, body.Email)
	if err := required("token", body.Token); err != nil {
		return err
	}
	made, err := id.Accounts.Setup(r.Context(), body.Token, body.Email, body.Password)
	if err != nil {
		return err
	}
	s.log.InfoContext(r.Context(), "first administrator made with the set-up link")
	return s.openSession(w, r, id, made, http.StatusCreated)
}

// openSession starts a session and shows it.
func (s *Server) openSession(w http.ResponseWriter, r *http.Request, id *Identity, a account.Account, status int) error {
	enabled, err := id.SecondFactors.Enabled(r.Context(), a.ID)
	if err != nil {
		return err
	}
	opened, err := s.startSession(w, r, id, a)
	if err != nil {
		return err
	}
	return writeJSON(w, status, sessionBody{User: a, ExpiresAt: opened.ExpiresAt, SessionID: opened.ID, SecondFactor: enabled})
}

// startSession starts a new session, whatever the request came with, and ends the one that it came with.
func (s *Server) startSession(w http.ResponseWriter, r *http.Request, id *Identity, a account.Account) (session.Session, error) {
	token, opened, err := id.Sessions.Open(r.Context(), a, session.Client{Address: clientAddress(r), UserAgent: r.UserAgent()})
	if err != nil {
		return session.Session{}, err
	}
	if old := sessionToken(r); old != "" {
		if err := id.Sessions.Close(r.Context(), old); err != nil {
			return session.Session{}, err
		}
	}
	if rec := recordOf(r); rec != nil {
		rec.user, rec.credential = a.ID, opened.ID
	}
	cookie := s.cookie(r, token)
	cookie.MaxAge = int(session.Absolute / time.Second)
	http.SetCookie(w, cookie)
	return opened, nil
}

// logOut succeeds without a session too. With an Authorization header the cookie and its session stay.
func (s *Server) logOut(w http.ResponseWriter, r *http.Request) error {
	if token := sessionToken(r); token != "" {
		id, err := s.withIdentity()
		if err != nil {
			return err
		}
		if err := id.Sessions.Close(r.Context(), token); err != nil {
			return err
		}
	}
	if !bearing(r) {
		s.dropCookie(w, r)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) dropCookie(w http.ResponseWriter, r *http.Request) {
	cookie := s.cookie(r, "")
	cookie.MaxAge = -1
	http.SetCookie(w, cookie)
}

func (s *Server) showSession(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	found := callerOf(r)
	enabled, err := id.SecondFactors.Enabled(r.Context(), found.account.ID)
	if err != nil {
		return err
	}
	body := sessionBody{User: found.account, ExpiresAt: found.session.ExpiresAt, SessionID: found.session.ID, SecondFactor: enabled}
	if found.byToken() {
		body.ExpiresAt, body.APIToken = found.token.ExpiresAt, &found.token
	}
	return writeJSON(w, http.StatusOK, body)
}

func (s *Server) cookie(r *http.Request, value string) *http.Cookie {
	return &http.Cookie{Name: sessionCookie, Value: value, Path: "/", HttpOnly: true, Secure: s.secureFor(r), SameSite: http.SameSiteLaxMode}
}

// secureFor says whether the browser has the request's cookies go over HTTPS alone.
func (s *Server) secureFor(r *http.Request) bool { return s.secure || r.TLS != nil }

// sessionToken is empty where the request has an Authorization header, and where it has the cookie twice: one of them may come from a neighbour
// on the same domain, and nobody can tell which.
func sessionToken(r *http.Request) string {
	cookies := r.CookiesNamed(sessionCookie)
	if bearing(r) || len(cookies) != 1 {
		return ""
	}
	return cookies[0].Value
}

func notLoggedIn() error { return session.Refused() }

func required(field, value string) error {
	if value == "" {
		return fault.New(fault.Invalid, "field_required", "%s is missing or empty", field).In(field)
	}
	return nil
}
