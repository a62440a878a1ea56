package httpapi

import (
	_ "embed"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/openid"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// callbackPath is what the provider must know as the client's redirect URI, after public_base_url.
const callbackPath = "/api/auth/oidc/callback"

type methodsBody struct {
	Password     bool         `json:"password"`
	Registration account.Mode `json:"registration"` // closed, invite or open
	OpenID       *openIDEntry `json:"openid"`       // null: there is no provider
}

type openIDEntry struct {
	Name string `json:"name"`
}

// authMethods tells front ends which ways in to offer.
func (s *Server) authMethods(w http.ResponseWriter, r *http.Request) error {
	mode, err := s.registration(r)
	if err != nil {
		return err
	}
	body := methodsBody{Password: true, Registration: mode}
	if s.openID != nil {
		body.OpenID = &openIDEntry{Name: s.openID.Name()}
	}
	return writeJSON(w, http.StatusOK, body)
}

// openIDLogIn sends the browser to the provider.
func (s *Server) openIDLogIn(w http.ResponseWriter, r *http.Request) error {
	base, err := s.openIDBase(r)
	if err != nil {
		return err
	}
	values, err := query(r)
	if err != nil {
		return err
	}
	returnTo := values.Get("return_to")
	if !openid.LocalPath(returnTo) {
		returnTo = base.EscapedPath() + "/"
	}
	address, cookie, err := s.openID.Begin(r.Context(), base.String()+callbackPath, returnTo)
	if err != nil {
		return err
	}
	http.SetCookie(w, s.flowCookie(r, cookie, int(openid.FlowLife/time.Second)))
	redirect(w, address)
	return nil
}

// openIDCallback is where the provider sends the browser back to. What was verified opens a session as any log-in does.
func (s *Server) openIDCallback(w http.ResponseWriter, r *http.Request) error {
	base, err := s.openIDBase(r)
	if err != nil {
		return err
	}
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	values, err := query(r)
	if err != nil {
		return err
	}
	mode, err := s.registration(r)
	if err != nil {
		return err
	}
	// Two cookies of the name, or two values of a parameter, are somebody's trick: none counts.
	var cookie string
	if given := r.CookiesNamed(s.flowName(r)); len(given) == 1 {
		cookie = given[0].Value
	}
	who, returnTo, err := s.openID.Finish(r.Context(), base.String()+callbackPath, cookie, openid.Answer{
		Code: only(values, "code"), State: only(values, "state"), Issuer: strings.Join(values["iss"], " "), Error: strings.Join(values["error"], " "),
	})
	if err != nil {
		return err
	}
	concernsEmail(r, who.Email)
	found, entry, err := id.OpenID.Enter(r.Context(), who, mode == account.Open)
	if err != nil {
		return err
	}
	if entry != openid.Known {
		s.log.InfoContext(r.Context(), "account joined to a person at the OpenID provider", slog.String("account", found.ID), slog.Bool("made", entry == openid.Made))
	}
	if _, err := s.startSession(w, r, id, found); err != nil {
		return err
	}
	http.SetCookie(w, s.flowCookie(r, "", -1))
	redirect(w, returnTo)
	return nil
}

// registration is who may register now.
func (s *Server) registration(r *http.Request) (account.Mode, error) {
	id, err := s.withIdentity()
	if err != nil {
		return "", err
	}
	now, err := id.Settings.Read(r.Context())
	return account.Mode(now.RegistrationMode), err
}

// openIDBase is where people reach the gateway: the provider sends them nowhere else.
func (s *Server) openIDBase(r *http.Request) (*url.URL, error) {
	if s.openID == nil {
		return nil, fault.New(fault.NotFound, "openid_unset", "this gateway has no OpenID provider").Do("log in with a password")
	}
	id, err := s.withIdentity()
	if err != nil {
		return nil, err
	}
	now, err := id.Settings.Read(r.Context())
	if err != nil {
		return nil, err
	}
	base, err := url.Parse(now.PublicBaseURL)
	if err != nil || base.Host == "" {
		return nil, fault.New(fault.Precondition, "public_base_url_unset", "the address to come back to from the OpenID provider is not set").
			Do("have an administrator log in with a password and set public_base_url in the settings")
	}
	return base, nil
}

// flowName is of a form that no other host of the domain can set, where cookies go over HTTPS alone.
func (s *Server) flowName(r *http.Request) string {
	if s.secureFor(r) {
		return "__Host-kubebyon_openid"
	}
	return "kubebyon_openid"
}

// flowCookie must be SameSite=Lax: the browser comes back from the provider's site.
func (s *Server) flowCookie(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{Name: s.flowName(r), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, Secure: s.secureFor(r), SameSite: http.SameSiteLaxMode}
}

func only(values url.Values, name string) string {
	if given := values[name]; len(given) == 1 {
		return given[0]
	}
	return ""
}

func redirect(w http.ResponseWriter, address string) {
	w.Header().Set("Location", address)
	w.WriteHeader(http.StatusFound)
}

// refusePerson lets a browser show a failure as a page; who prefers JSON gets the problem.
func (s *Server) refusePerson(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Add("Vary", "Accept")
	if f := fault.From(err); statusOf(f.Kind) < http.StatusInternalServerError {
		// The operator needs the cause, which the person is not told.
		s.log.WarnContext(r.Context(), "log-in at the OpenID provider refused", slog.String("code", f.Code), slog.String("error", f.Error()))
	}
	if !prefersHTML(r.Header.Values("Accept")) {
		s.fail(w, r, err)
		return
	}
	f := keep(r, err)
	status := statusOf(f.Kind)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	showRefusal(w.Header(), err)
	if err := writePage(w, status, openIDPage, map[string]any{"Message": f.Message, "Action": f.Action, "Code": f.Code, "Trace": traceID(r.Context())}); err != nil {
		s.fail(w, r, err)
	}
}

// prefersHTML says whether HTML is named, and liked at least as much as JSON.
func prefersHTML(accept []string) bool {
	var html, plain float64
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, _ := strings.Cut(part, ";")
		weight := 1.0
		for param := range strings.SplitSeq(params, ";") {
			if q, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(param)), "q="); ok {
				weight, _ = strconv.ParseFloat(q, 64)
			}
		}
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case "text/html", "application/xhtml+xml":
			html = max(html, weight)
		case "application/json", "application/problem+json":
			plain = max(plain, weight)
		}
	}
	return html > 0 && html >= plain
}
