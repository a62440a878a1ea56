package app_test

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

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
}

// What each area of the API may be used for, by whom. A route that is missing here fails the test.
var usesOfSystem = map[string]use{
	"GET /healthz": {}, "GET /readyz": {}, "GET /api/openapi.yaml": {}, "GET /setup": {}, "POST /api/auth/logout": {},
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
	"GET " + cluster + "/kubeconfig":                {who: account, fill: clusterID},
	"POST " + cluster + "/join-token":               {who: account, fill: clusterID, body: `{}`},
	"GET " + cluster + "/join-tokens":               {who: account, fill: clusterID},
	"DELETE " + cluster + "/join-tokens/{token_id}": {who: account, fill: clusterID + " " + tokenID},
	"GET /api/console/nodes":                        {who: account, fill: "?cluster_id=" + clusterID},
}

// Every route by every role. What a role may not do answers 401 or 403 and reaches no service; what it may do reaches the
// services as that very account.
func TestEveryRouteByEveryRole(t *testing.T) {
	w := start(t)
	conn, err := pgx.Connect(t.Context(), w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	const plainID, plainEmail = "usr_plainplainplainplain", "plain@example.com"
	if _, err := conn.Exec(t.Context(), `insert into users (id, email, password_hash, role)
		select $1, $2, password_hash, 'user' from users where email = $3`, plainID, plainEmail, adminEmail); err != nil {
		t.Fatal(err)
	}
	w.call("PUT", settings, "", `{"settings":{"join_base_url":"https://join.example.com"}}`)
	plain, stranger := w.newBrowser(), w.newBrowser()
	w.callAs(plain, "POST", "/api/auth/login", "", `{"email":"`+plainEmail+`","password":"`+adminPassword+`"}`).expect(t, http.StatusOK, "")

	uses := map[string]use{}
	for _, area := range []map[string]use{usesOfSystem, usesOfClusters, usesOfAudit, usesOfProtection, usesOfOpenID} {
		maps.Copy(uses, area)
	}
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
		for role, client := range map[int]*http.Client{anybody: stranger, account: plain, admin: w.browser} {
			if path == "/api/auth/logout" && role != anybody {
				continue // the sessions are still needed
			}
			var before, after int
			w.backend.set(func(b *backend) { before = len(b.principals) })
			a := w.callAs(client, method, path, u.fill, u.body)
			w.backend.set(func(b *backend) {
				after = len(b.principals)
				for _, p := range b.principals[before:] {
					if role == account && (p.UserID != plainID || p.Role != contract.RoleUser) || role == admin && p.Role != contract.RoleAdmin {
						t.Errorf("%s by role %d reaches the services as %+v", route, role, p)
					}
				}
			})
			switch {
			case u.who == account && role == anybody, u.who == admin && role == anybody:
				a.expect(t, http.StatusUnauthorized, "not_logged_in")
			case u.who == admin && role == account:
				a.expect(t, http.StatusForbidden, "admin_only")
			case a.problem.Code == "not_logged_in" || a.problem.Code == "admin_only":
				t.Errorf("%s by role %d: %d %s", route, role, a.status, a.problem.Code)
			}
			if role < u.who && after != before {
				t.Errorf("%s by role %d reached a service", route, role)
			}
		}
	}
}
