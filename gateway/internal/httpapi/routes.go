package httpapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/apitoken"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/rpc"
)

// requestTime bounds a request that is not a download. It is longer than any one method's own deadline.
const requestTime = 25 * time.Second

// Route is a method and a path with {names}. Action is its name in the audit log, <object>.<verb>; empty: it is not kept there.
type Route struct {
	Method, Path, Action string
	Repeatable           bool // it takes an Idempotency-Key
}

// access is who may use a route.
type access int

const (
	public   access = iota // anybody
	signed                 // any account
	personal               // any account by its session, never by an API token: what is about the account itself
	admins                 // administrators
	machine                // anybody, and what it answers may be long
)

type route struct {
	Route
	access  access
	handle  func(http.ResponseWriter, *http.Request) error
	takes   []string                                        // the query's parameters; any other is refused
	scope   string                                          // what an API token needs
	alone   bool                                            // no API token will do, whatever its scopes
	limited limit                                           // the rate limit that counts it
	long    bool                                            // its answer may take longer than requestTime
	refuse  func(http.ResponseWriter, *http.Request, error) // answers its failures; nil: fail
}

// limit names a rate limit. Each counts by itself.
type limit string

const (
	unlimited limit = ""
	byAPI     limit = "api"    // the API in general
	byAuth    limit = "auth"   // what strangers may try passwords, codes and links with
	byJoin    limit = "join"   // join scripts
	byLookup  limit = "lookup" // what tells people with an account whether an address has one
)

func on(method, path string, who access, handle func(http.ResponseWriter, *http.Request) error) route {
	rt := route{Route: Route{Method: method, Path: path}, access: who, handle: handle, scope: apitoken.Write}
	if method == http.MethodGet {
		rt.scope = apitoken.Read
	}
	if strings.HasPrefix(path, "/api/") {
		rt.limited = byAPI
	}
	return rt
}

// query names the parameters that the route takes.
func (rt route) query(names ...string) route { rt.takes = names; return rt }

// credential says that the answer holds one: to read is not enough for it.
func (rt route) credential() route { rt.scope = apitoken.Write; return rt }

// inPerson keeps API tokens away from a route of administrators: a stolen one must not make or take accounts.
func (rt route) inPerson() route { rt.alone = true; return rt }

// audit names what the route does in the audit log.
func (rt route) audit(action string) route { rt.Action = action; return rt }

// unhurried lets the answer take as long as somebody reads it.
func (rt route) unhurried() route { rt.long = true; return rt }

// refusing answers the route's failures in another form than a problem.
func (rt route) refusing(answer func(http.ResponseWriter, *http.Request, error)) route {
	rt.refuse = answer
	return rt
}

// limit lets another rate limit than the general one count the route.
func (rt route) limit(l limit) route { rt.limited = l; return rt }

// table is the one list of what is served; whatever differs by route is said here.
func (s *Server) table() []route {
	const cluster = "/api/console/clusters/{cluster_id}"
	return []route{
		on("GET", "/healthz", public, s.healthz),
		on("GET", "/readyz", public, s.readyz),
		on("GET", "/api/openapi.yaml", public, s.openAPI),

		on("GET", "/setup", public, s.form(setupPage)),
		on("POST", "/api/auth/setup", public, s.setup).limit(byAuth).audit("account.setup"),
		on("POST", "/api/auth/login", public, s.logIn).limit(byAuth).audit("session.open"),
		on("POST", "/api/auth/logout", public, s.logOut).audit("session.close"),
		on("GET", "/api/auth/session", signed, s.showSession),
		on("POST", "/api/auth/captcha", public, s.createCaptcha).limit(byAuth).audit("captcha.create"),
		on("POST", "/api/auth/second-factor", personal, s.beginSecondFactor).limit(byAuth).audit("second_factor.begin"),
		on("POST", "/api/auth/second-factor/confirm", personal, s.confirmSecondFactor).limit(byAuth).audit("second_factor.enable"),
		on("DELETE", "/api/auth/second-factor", personal, s.removeSecondFactor).limit(byAuth).audit("second_factor.disable"),
		on("POST", "/api/auth/second-factor/recovery-codes", personal, s.renewRecoveryCodes).limit(byAuth).audit("recovery_codes.renew"),
		on("DELETE", "/api/admin/users/{user_id}/second-factor", admins, s.takeSecondFactor).inPerson().audit("second_factor.take"),

		on("GET", "/api/auth/methods", public, s.authMethods),
		on("GET", "/api/auth/oidc/login", public, s.openIDLogIn).refusing(s.refusePerson).query("return_to"),
		on("GET", callbackPath, public, s.openIDCallback).refusing(s.refusePerson).limit(byAuth).audit("session.open_openid").
			query("code", "state", "iss", "error", "error_description", "error_uri", "session_state", "scope", "authuser", "prompt", "hd"),

		on("GET", "/api/auth/sessions", personal, s.listSessions),
		on("DELETE", "/api/auth/sessions", personal, s.logOutEverywhere).audit("session.close_all"),
		on("DELETE", "/api/auth/sessions/{session_id}", personal, s.closeSession).audit("session.revoke"),
		on("DELETE", "/api/admin/users/{user_id}/sessions", admins, s.closeSessionsOf).audit("user_sessions.close_all"),
		on("POST", "/api/auth/tokens", personal, s.createAPIToken).audit("api_token.create"),
		on("GET", "/api/auth/tokens", personal, s.listAPITokens),
		on("DELETE", "/api/auth/tokens/{api_token_id}", personal, s.revokeAPIToken).audit("api_token.revoke"),
		on("GET", "/api/admin/users/{user_id}/tokens", admins, s.listAPITokensOf),
		on("DELETE", "/api/admin/users/{user_id}/tokens", admins, s.revokeAPITokensOf).audit("user_api_tokens.revoke_all"),
		on("DELETE", "/api/admin/users/{user_id}/tokens/{api_token_id}", admins, s.revokeAPITokenOf).audit("user_api_token.revoke"),

		on("GET", "/register", public, s.form(registerPage)),
		on("GET", "/reset", public, s.form(resetPage)),
		on("POST", "/api/auth/code", public, s.requestCode).limit(byAuth).audit("mail_code.request"),
		on("POST", "/api/auth/register", public, s.register).limit(byAuth).audit("account.register"),
		on("POST", "/api/auth/reset-password", public, s.resetPassword).limit(byAuth).audit("password.reset"),
		on("POST", "/api/auth/change-password", personal, s.changePassword).limit(byAuth).audit("password.change"),
		on("POST", "/api/admin/invitations", admins, s.createInvitation).inPerson().audit("invitation.create"),
		on("GET", "/api/admin/invitations", admins, s.listInvitations),
		on("DELETE", "/api/admin/invitations/{invitation_id}", admins, s.withdrawInvitation).inPerson().audit("invitation.withdraw"),
		on("GET", "/api/admin/users", admins, s.listUsers).query("q", "limit", "cursor"),
		on("GET", "/api/admin/users/{user_id}", admins, s.showUser),
		on("PATCH", "/api/admin/users/{user_id}", admins, s.changeUser).inPerson().audit("user.change"),
		on("DELETE", "/api/admin/users/{user_id}", admins, s.deleteUser).inPerson().audit("user.delete"),

		on("GET", "/api/admin/settings", admins, s.showSettings),
		on("PUT", "/api/admin/settings", admins, s.changeSettings).audit("settings.change"),
		on("POST", "/api/admin/settings/test-mail", admins, s.testMail).limit(byAuth).audit("mail.test"),

		on("GET", "/api/admin/audit", admins, s.searchAudit).query(append([]string{"limit", "cursor"}, auditFilters...)...),
		on("GET", "/api/admin/audit/export", admins, s.exportAudit).query(auditFilters...).unhurried().audit("audit.export"),

		on("GET", "/api/admin/edge", admins, s.edgeStatus).query("after"),

		on("POST", "/api/console/clusters", signed, s.createCluster).audit("cluster.create"),
		on("GET", "/api/console/clusters", signed, s.listClusters),
		on("GET", cluster, signed, s.showCluster),
		on("PATCH", cluster, signed, s.changeCluster).audit("cluster.change"),
		on("DELETE", cluster, signed, s.deleteCluster).audit("cluster.delete"),
		on("POST", cluster+"/retry", signed, s.retryCluster).audit("cluster.retry"),
		on("GET", cluster+"/events", signed, s.clusterEvents),
		on("GET", cluster+"/kubeconfig", signed, s.kubeconfig).credential().audit("kubeconfig.download"),
		on("GET", cluster+"/members", signed, s.listMembers),
		on("PUT", cluster+"/members", signed, s.setMember).limit(byLookup).audit("cluster.member_set"),
		on("DELETE", cluster+"/members/{user_id}", signed, s.removeMember).audit("cluster.member_remove"),
		on("POST", cluster+"/join-token", signed, s.createToken).audit("join_token.create"),
		on("GET", cluster+"/join-tokens", signed, s.listTokens),
		on("DELETE", cluster+"/join-tokens/{token_id}", signed, s.revokeToken).audit("join_token.revoke"),
		on("GET", "/api/console/nodes", signed, s.listNodes).query("cluster_id"),

		on("GET", "/node/join", public, s.joinScript).query("token").limit(byJoin).refusing(s.refuseScript).audit("join_script.download"),
		on("GET", "/node/mirror/{name...}", machine, s.mirrorFile),
	}
}

// serve counts and admits the request, and turns a handler's error into the answer. The limit comes first: what it refuses costs nothing
// more, and no entry in the audit log.
func (s *Server) serve(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nameRoute(r, rt)
		if rt.access != machine && !rt.long {
			ctx, cancel := context.WithTimeout(r.Context(), requestTime)
			defer cancel()
			r = r.WithContext(ctx)
		}
		w, end := s.audit(w, r, rt)
		defer end()
		err := s.countClient(w, r, rt)
		if err == nil {
			err = checkParameters(r, rt)
		}
		if err == nil {
			r, err = s.admit(r, rt)
		}
		if err == nil {
			err = s.once(w, r, rt)
		}
		if rec := recordOf(r); rec != nil {
			rec.returned = true
		}
		switch {
		case err != nil && rt.refuse != nil:
			rt.refuse(w, r, err)
		case err != nil:
			s.fail(w, r, err)
		}
	})
}

// admit refuses cross-site use of a cookie, and who may not use the route. What it returns carries the caller.
func (s *Server) admit(r *http.Request, rt route) (*http.Request, error) {
	if err := s.origins.check(r); err != nil {
		return r, err
	}
	if err := checkForm(r); err != nil {
		return r, err
	}
	if rt.access == public || rt.access == machine {
		return r, nil
	}
	found, err := s.identify(r)
	if err != nil {
		return r, err
	}
	if rec := recordOf(r); rec != nil {
		rec.user, rec.credential = found.account.ID, found.credential()
	}
	if err := permit(found, rt); err != nil {
		return r, err
	}
	return r.WithContext(rpc.WithPrincipal(withCaller(r.Context(), found), found.principal())), nil
}

// dispatch answers what no route serves in our own form, and leaves the rest to the mux.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	h, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	probe := &probe{header: http.Header{}}
	h.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", probe.header.Get("Allow"))
		writeProblem(w, r, http.StatusMethodNotAllowed, keep(r, fault.New(fault.Invalid, "method_not_allowed", "%.16q is not possible here", r.Method).
			Do("use one of: %s", probe.header.Get("Allow"))))
		return
	}
	s.fail(w, r, fault.New(fault.NotFound, "route_not_found", "there is nothing at this address").
		Do("see /api/openapi.yaml for what there is"))
}

// probe learns the status and the headers of an answer, and drops it.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }
func (p *probe) WriteHeader(status int)      { p.status = status }
