package httpapi

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/apitoken"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

type (
	callerKey  struct{}
	addressKey struct{}
)

// caller is who a request is made by, for routes that need an account.
type caller struct {
	account account.Account
	session session.Session // zero where an API token is used
	token   apitoken.Token  // zero where a session is used
}

func (c caller) byToken() bool { return c.token.ID != "" }

// credential is the id of what the caller showed: ses_… or pat_….
func (c caller) credential() string {
	if c.byToken() {
		return c.token.ID
	}
	return c.session.ID
}

// principal is what the services are told.
func (c caller) principal() contract.Principal {
	if c.byToken() {
		return c.token.Principal(c.account)
	}
	return c.account.Principal()
}

// bearing reports whether the request has an Authorization header, whatever it holds: then its cookie is not read.
func bearing(r *http.Request) bool {
	_, given := r.Header["Authorization"]
	return given
}

// shown is the very credential that identify finds the caller by.
func shown(r *http.Request) string {
	if bearing(r) {
		value, _ := apitoken.FromHeader(r.Header["Authorization"])
		return value
	}
	return sessionToken(r)
}

// identify gives who makes the request, by the one credential that counts.
func (s *Server) identify(r *http.Request) (caller, error) {
	if bearing(r) {
		value, err := apitoken.FromHeader(r.Header["Authorization"])
		if err != nil {
			return caller{}, err
		}
		id, err := s.withIdentity()
		if err != nil {
			return caller{}, err
		}
		found, owner, err := id.Tokens.Find(r.Context(), value)
		return caller{account: owner, token: found}, err
	}
	token := sessionToken(r)
	if token == "" {
		return caller{}, notLoggedIn()
	}
	if crossSite(r) {
		return caller{}, otherSite()
	}
	id, err := s.withIdentity()
	if err != nil {
		return caller{}, err
	}
	found, err := id.Sessions.Find(r.Context(), token)
	return caller{account: found.Account, session: found}, err
}

// permit says what the caller lacks for the route.
func permit(c caller, rt route) error {
	switch {
	case (rt.access == personal || rt.alone) && c.byToken():
		return fault.New(fault.Forbidden, "session_required", "an API token may not do this").Do("log in, and do it with the session")
	case rt.access == admins && c.account.Role != contract.RoleAdmin:
		return fault.New(fault.Forbidden, "admin_only", "this is for administrators")
	case !c.byToken():
		return nil
	case !c.token.Scopes.Allow(rt.scope):
		return fault.New(fault.Forbidden, "scope_insufficient", "this API token lacks the scope %s", rt.scope).
			Do("use a token that has the scope %s", rt.scope)
	case rt.access == admins && len(c.token.Scopes.Clusters()) > 0:
		return fault.New(fault.Forbidden, "scope_insufficient", "this API token is narrowed to clusters").
			Do("use a token without a scope cluster:…")
	}
	return nil
}

// bearer reports whether the request shows an API token, which no browser adds by itself, unlike a password for Basic.
func bearer(r *http.Request) bool {
	_, err := apitoken.FromHeader(r.Header["Authorization"])
	return err == nil
}

func withCaller(ctx context.Context, c caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf is for routes that need an account; admit put it there.
func callerOf(r *http.Request) caller {
	c, _ := r.Context().Value(callerKey{}).(caller)
	return c
}

// locate finds the client's address once, for the log, the limits and the audit log.
func (s *Server) locate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), addressKey{}, s.proxies.Client(r.RemoteAddr, r.Header))))
	})
}

// clientAddress is who the request comes from; the zero address where that is not known.
func clientAddress(r *http.Request) netip.Addr {
	address, _ := r.Context().Value(addressKey{}).(netip.Addr)
	return address
}
