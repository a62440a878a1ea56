package app_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/contract"
)

const (
	anybody = iota
	account
	admin
)

// use is a request that a role may make; fill and body are as in world.call.
type use struct {
	who        int
	fill, body string
	inPerson   bool // a session is needed, no token will do
	writes     bool // a token needs the scope write; every method but GET does
	ends       bool // it may end the session that it is made with
}

// What each area of the API may be used for, by whom. A route that is missing here fails the test.
var usesOfSystem = map[string]use{
	"GET /healthz": {}, "GET /readyz": {}, "GET /api/openapi.yaml": {}, "GET /setup": {}, "POST /api/auth/logout": {ends: true},
	"POST /api/auth/setup": {body: `{"token":"x","email":"a@b","password":"twelve chars"}`}, // 403 for anybody: the link is none
	"POST /api/auth/login": {body: `{"email":"nobody@example.com","password":"x"}`},         // 401 for anybody
	"GET /node/join":       {fill: "?token=" + joinToken}, "GET /node/mirror/{name}": {fill: "absent"},

	"GET /api/auth/session": {who: account},
	"GET " + settings:       {who: admin}, "PUT " + settings: {who: admin, body: `{"settings":{}}`},
	"POST " + settings + "/test-mail": {who: admin, body: `{"to":"a@example.com"}`}, // 409 for an administrator: there is no server
}

var usesOfClusters = map[string]use{
	"POST " + clusters: {who: account, body: `{"name":"demo"}`}, "GET " + clusters: {who: account},
	"GET " + cluster: {who: account, fill: clusterID}, "PATCH " + cluster: {who: account, fill: clusterID, body: `{"name":"x"}`},
	"DELETE " + cluster: {who: account, fill: clusterID}, "GET " + cluster + "/events": {who: account, fill: clusterID},
	"POST " + cluster + "/retry":                    {who: account, fill: clusterID},
	"GET " + cluster + "/kubeconfig":                {who: account, fill: clusterID, writes: true},
	"POST " + cluster + "/join-token":               {who: account, fill: clusterID, body: `{}`},
	"GET " + cluster + "/join-tokens":               {who: account, fill: clusterID},
	"DELETE " + cluster + "/join-tokens/{token_id}": {who: account, fill: clusterID + " " + tokenID},
	"GET /api/console/nodes":                        {who: account, fill: "?cluster_id=" + clusterID},
}

func allUses() map[string]use {
	uses := map[string]use{}
	for _, area := range []map[string]use{usesOfSystem, usesOfClusters, usesOfAudit, usesOfProtection, usesOfOpenID, usesOfSessions, usesOfMembers, usesOfAccounts, usesOfEdge} {
		maps.Copy(uses, area)
	}
	return uses
}

// credential is what a request shows, of which role, and how narrow it is.
type credential struct {
	name   string
	role   int
	userID string
	// Either a browser with a session or none, or a token.
	client   *http.Client
	token    string
	dead     bool // expired or revoked
	readOnly bool
	clusters []string
}

// want is the refusal that a credential meets on a route; empty: it is let through.
func (c credential) want(u use) (status int, code string) {
	switch {
	case u.who == anybody:
		return 0, ""
	case c.dead:
		return http.StatusUnauthorized, "token_invalid"
	case c.role == anybody:
		return http.StatusUnauthorized, "not_logged_in"
	case u.inPerson && c.token != "":
		return http.StatusForbidden, "session_required"
	case u.who == admin && c.role != admin:
		return http.StatusForbidden, "admin_only"
	case c.readOnly && u.writes, c.clusters != nil && u.who == admin:
		return http.StatusForbidden, "scope_insufficient"
	}
	return 0, ""
}

// Every route by every role and every kind of credential. What one may not do answers 401 or 403 and reaches no service;
// what one may do reaches the services as that very account, as narrow as the token is.
func TestEveryRouteByEveryRole(t *testing.T) {
	w := start(t)
	const plainID, plainEmail = "usr_plainplainplainplain", "plain@example.com"
	w.execute(t, `insert into users (id, email, password_hash, role)
		select '`+plainID+`', '`+plainEmail+`', password_hash, 'user' from users where email = '`+adminEmail+`'`)
	w.execute(t, `insert into users (id, email, password_hash, role) values ('`+bystanderID+`', 'bystander@example.com', '', 'user')`)
	w.call("PUT", settings, "", `{"settings":{"join_base_url":"https://join.example.com"}}`)
	plain := w.newBrowser()
	logIn := map[int]func(){
		account: func() {
			w.callAs(plain, "POST", "/api/auth/login", "", `{"email":"`+plainEmail+`","password":"`+adminPassword+`"}`).expect(t, http.StatusOK, "")
		},
		admin: w.logIn,
	}
	relog := func(role int) {
		t.Helper()
		w.execute(t, `delete from login_failures`) // the table's own log-ins fail, and from this address
		logIn[role]()
	}
	logIn[account]()

	bare := w.newBrowser()
	credentials := []credential{
		{name: "nothing", client: w.newBrowser()},
		{name: "a session", role: account, userID: plainID, client: plain},
		{name: "an administrator's session", role: admin, client: w.browser},
	}
	for role, owner := range map[int]*http.Client{account: plain, admin: w.browser} {
		of := map[int]string{account: "an account's ", admin: "an administrator's "}[role]
		id := map[int]string{account: plainID}[role]
		token := func(name, scopes string) string { value, _ := w.makeToken(owner, name, scopes); return value }
		expired := token("expired", `"write"`)
		w.execute(t, `update api_tokens set expires_at = now() - interval '1 second' where name = 'expired'`)
		revoked, revokedID := w.makeToken(owner, "revoked", `"write"`)
		w.callAs(owner, "DELETE", apiToken, revokedID, "").expect(t, http.StatusNoContent, "")
		credentials = append(credentials,
			credential{name: of + "read token", role: role, userID: id, client: bare, token: token("r", `"read"`), readOnly: true},
			credential{name: of + "write token", role: role, userID: id, client: bare, token: token("w", `"write"`)},
			credential{name: of + "narrow token", role: role, userID: id, client: bare, token: token("n", `"write","cluster:`+clusterID+`"`), clusters: []string{clusterID}},
			credential{name: of + "expired token", role: role, client: bare, token: expired, dead: true},
			credential{name: of + "revoked token", role: role, client: bare, token: revoked, dead: true},
		)
	}

	uses := allUses()
	routes := served(t)
	if len(uses) != len(routes) {
		t.Errorf("the table has %d routes, the gateway %d", len(uses), len(routes))
	}
	for _, route := range routes {
		u, ok := uses[route]
		if !ok {
			t.Errorf("%s is not in the table", route)
			continue
		}
		method, path, _ := strings.Cut(route, " ")
		u.writes = u.writes || method != "GET"
		for _, c := range credentials {
			if u.ends && c.token == "" && c.role != anybody {
				relog(c.role) // in case the request before has ended it
			}
			var headers []string
			if c.token != "" {
				headers = []string{"Authorization", "Bearer " + c.token}
			}
			var before, after int
			w.backend.set(func(b *backend) { before = len(b.principals) })
			a := w.callAs(c.client, method, path, u.fill, u.body, headers...)
			w.backend.set(func(b *backend) {
				after = len(b.principals)
				for _, p := range b.principals[before:] {
					if (c.role == account) != (p.UserID == plainID) || (c.role == admin) != (p.Role == contract.RoleAdmin) ||
						p.ReadOnly != c.readOnly || !slices.Equal(p.Clusters, c.clusters) {
						t.Errorf("%s by %s reaches the services as %+v", route, c.name, p)
					}
				}
			})
			if u.ends && c.token == "" && c.role != anybody {
				relog(c.role)
			}
			status, code := c.want(u)
			switch {
			case code != "" && (a.status != status || a.problem.Code != code):
				t.Errorf("%s by %s: %d %s, want %d %s", route, c.name, a.status, a.problem.Code, status, code)
			case code != "" && after != before:
				t.Errorf("%s by %s reached a service", route, c.name)
			case code == "" && slices.Contains([]string{"not_logged_in", "admin_only", "token_invalid", "session_required", "scope_insufficient"}, a.problem.Code):
				t.Errorf("%s by %s: %d %s", route, c.name, a.status, a.problem.Code)
			}
			if a.status == http.StatusUnauthorized && a.header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s by %s: %v", route, c.name, a.header)
			}
		}
	}
}
