package app_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

const (
	clusters = "/api/console/clusters"
	cluster  = clusters + "/{cluster_id}"
	settings = "/api/admin/settings"
	auditLog = "/api/admin/audit"
)

// Every route answers as it is described, well and badly; call holds each answer against the description.
func TestEveryRoute(t *testing.T) {
	spans := recordSpans(t)
	w := prepare(t)
	if err := os.WriteFile(filepath.Join(w.mirror, "kubelet-linux-amd64"), []byte("kubelet"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.logIn()
	w.eventually(func() bool { return w.call("GET", "/node/mirror/{name}", "kubelet-linux-amd64", "").status == 200 })
	w.execute(t, `insert into users (id, email, password_hash, role) values ('usr_otherotherotherother', 'other@example.com', '', 'user')`)
	stranger := w.newBrowser()
	untested := map[string]bool{}
	for _, r := range served(t) {
		untested[r+" well"], untested[r+" badly"] = true, true
	}
	// These cannot fail.
	for _, r := range []string{"GET /healthz", "GET /api/openapi.yaml", "GET /setup", "POST /api/auth/captcha", "GET /api/auth/methods", "GET /register", "GET /reset"} {
		delete(untested, r+" badly")
	}
	delete(untested, "POST /api/admin/settings/test-mail well") // TestMailSettings
	// With one account there is no set-up; TestSetupLink does it.
	delete(untested, "POST /api/auth/setup well")
	delete(untested, "GET /readyz badly") // TestReadiness
	for _, r := range []string{"POST " + codes, "POST " + register, "POST " + reset, "POST " + change, "POST " + invitations, "DELETE " + oneInvite} {
		delete(untested, r+" well") // TestRegisterWithACode, TestResetPassword, TestChangePassword, TestInvitations
	}
	for _, r := range []string{"GET /api/auth/oidc/login", "GET /api/auth/oidc/callback"} {
		delete(untested, r+" well") // TestOpenIDLogIn
	}
	// TestOwnSessions, TestLogOutEverywhere and TestAPITokens do these.
	for _, r := range []string{"DELETE " + sessions, "DELETE " + oneSession, "DELETE " + apiToken, "DELETE " + userToken} {
		delete(untested, r+" well")
	}
	w.execute(t, `insert into users (id, email, password_hash, role) values ('`+bystanderID+`', 'bystander@example.com', '', 'user')`)
	for _, r := range []string{"POST " + secondFactor, "POST " + secondFactor + "/confirm", "POST " + secondFactor + "/recovery-codes", "DELETE " + secondFactor, "DELETE " + takeSecondFactor} {
		delete(untested, r+" well") // TestSecondFactor, TestAdministratorTakesSecondFactor
	}

	const wrongID = "cl_zzzzzzzzzzzzzzzzzzzz"
	for _, c := range []struct {
		client             *http.Client
		method, path, fill string
		body               string
		status             int
		code               string
	}{
		{stranger, "GET", "/healthz", "", "", 200, ""},
		{stranger, "GET", "/readyz", "", "", 200, ""},
		{stranger, "GET", "/api/openapi.yaml", "", "", 200, ""},
		{stranger, "GET", "/setup", "", "", 200, ""},
		{stranger, "GET", "/api/auth/methods", "", "", 200, ""},
		{stranger, "GET", "/register", "", "", 200, ""},
		{stranger, "GET", "/reset", "", "", 200, ""},
		{stranger, "POST", codes, "", `{"email":"x@example.com","purpose":"register"}`, 403, "registration_closed"},
		{stranger, "POST", register, "", `{"invitation":"x","password":"twelve chars"}`, 403, "registration_closed"},
		{stranger, "POST", reset, "", withCode("x@example.com", "AAAAA-AAAAA", "twelve chars"), 400, "code_wrong"},
		{stranger, "GET", "/api/auth/oidc/login", "?return_to=/x", "", 404, "openid_unset"},
		{stranger, "GET", "/api/auth/oidc/callback", "?code=x&state=y", "", 404, "openid_unset"},
		{stranger, "POST", "/api/auth/setup", "", `{"token":"x","email":"a@b","password":"twelve chars"}`, 403, "setup_link_invalid"},
		{stranger, "POST", "/api/auth/login", "", `{"email":"nobody@example.com","password":"x"}`, 401, "wrong_credentials"},
		{stranger, "POST", "/api/auth/login", "", `{"email":"admin@kubebyon.local","password":"x"}`, 401, "wrong_credentials"},
		{stranger, "POST", "/api/auth/logout", "", "", 204, ""},
		{w.browser, "POST", "/api/auth/login", "", `{"email":"Admin@KubeBYON.local ","password":"` + adminPassword + `"}`, 200, ""},
		{w.browser, "GET", "/api/auth/session", "", "", 200, ""},
		{stranger, "GET", "/api/auth/session", "", "", 401, "not_logged_in"},
		{stranger, "POST", "/api/auth/captcha", "", "", 201, ""},
		{stranger, "POST", secondFactor, "", `{"password":"x"}`, 401, "not_logged_in"},
		{stranger, "POST", secondFactor + "/confirm", "", `{"code":"x"}`, 401, "not_logged_in"},
		{stranger, "POST", secondFactor + "/recovery-codes", "", `{"password":"x","code":"x"}`, 401, "not_logged_in"},
		{stranger, "DELETE", secondFactor, "", `{"password":"x","code":"x"}`, 401, "not_logged_in"},
		{stranger, "DELETE", takeSecondFactor, "usr_zzzzzzzzzzzzzzzzzzzz", "", 401, "not_logged_in"},

		{stranger, "POST", change, "", `{"current_password":"x","new_password":"x"}`, 401, "not_logged_in"},
		{w.browser, "POST", invitations, "", `{"email":"x@example.com","role":"user"}`, 403, "registration_closed"},
		{w.browser, "GET", invitations, "", "", 200, ""},
		{stranger, "GET", invitations, "", "", 401, "not_logged_in"},
		{w.browser, "DELETE", oneInvite, "x", "", 404, "invitation_not_found"},
		{w.browser, "GET", users, "?limit=10", "", 200, ""},
		{w.browser, "GET", users, "?limit=0", "", 400, "limit_invalid"},
		{w.browser, "GET", oneUser, "usr_otherotherotherother", "", 200, ""},
		{w.browser, "GET", oneUser, nobodysID, "", 404, "user_not_found"},
		{w.browser, "PATCH", oneUser, "usr_otherotherotherother", `{"disabled":true}`, 200, ""},
		{w.browser, "PATCH", oneUser, "usr_otherotherotherother", `{}`, 400, "nothing_to_change"},
		{w.browser, "DELETE", oneUser, "usr_otherotherotherother", "", 204, ""},
		{w.browser, "DELETE", oneUser, "usr_otherotherotherother", "", 404, "user_not_found"},

		{w.browser, "GET", sessions, "", "", 200, ""},
		{stranger, "GET", sessions, "", "", 401, "not_logged_in"},
		{stranger, "DELETE", sessions, "", "", 401, "not_logged_in"}, // TestLogOutEverywhere does it
		{w.browser, "DELETE", oneSession, noSession, "", 404, "session_not_found"},
		{w.browser, "POST", apiTokens, "", `{"name":"ci","scopes":["read"],"ttl_seconds":3600}`, 201, ""},
		{w.browser, "POST", apiTokens, "", `{"name":"ci","scopes":["read"],"ttl_seconds":3600}`, 409, "api_token_name_taken"},
		{w.browser, "GET", apiTokens, "", "", 200, ""},
		{stranger, "GET", apiTokens, "", "", 401, "not_logged_in"},
		{w.browser, "DELETE", apiToken, noToken, "", 404, "api_token_not_found"},
		{w.browser, "DELETE", userSessions, bystanderID, "", 204, ""},
		{w.browser, "DELETE", userSessions, "usr_x", "", 404, "user_not_found"},
		{w.browser, "GET", userTokens, bystanderID, "", 200, ""},
		{w.browser, "GET", userTokens, "usr_zzzzzzzzzzzzzzzzzzzz", "", 404, "user_not_found"},
		{w.browser, "DELETE", userTokens, bystanderID, "", 204, ""},
		{w.browser, "DELETE", userTokens, "x", "", 404, "user_not_found"},
		{w.browser, "DELETE", userToken, bystanderID + " " + noToken, "", 404, "api_token_not_found"},

		{stranger, "GET", settings, "", "", 401, "not_logged_in"},
		{stranger, "PUT", settings, "", `{"settings":{}}`, 401, "not_logged_in"},
		{w.browser, "POST", cluster + "/join-token", clusterID, `{}`, 409, "join_base_url_unset"},
		{w.browser, "PUT", settings, "", `{"settings":{"join_base_url":"http://198.18.0.1:8080/"}}`, 200, ""},
		{w.browser, "GET", settings, "", "", 200, ""},
		{w.browser, "POST", settings + "/test-mail", "", `{"to":"a@example.com"}`, 409, "mail_unset"},

		{w.browser, "GET", auditLog, "?action=settings.change&limit=1", "", 200, ""},
		{stranger, "GET", auditLog, "", "", 401, "not_logged_in"},
		{w.browser, "GET", auditLog + "/export", "?action=settings.", "", 200, ""},
		{w.browser, "GET", auditLog + "/export", "?since=yesterday", "", 400, "parameter_invalid"},
		{w.browser, "GET", edgeStatus, "?after=demo.example.com", "", 200, ""},
		{stranger, "GET", edgeStatus, "", "", 401, "not_logged_in"},

		{stranger, "POST", clusters, "", `{"name":"demo"}`, 401, "not_logged_in"},
		{w.browser, "POST", clusters, "", `{"name":"demo","vcluster_name":"demo","namespace":"demo","control_plane_host":"198.18.0.2","control_plane":"upstream","public_access_mode":"nodeport","deletion_protection":true}`, 201, ""},
		{stranger, "GET", clusters, "", "", 401, "not_logged_in"},
		{w.browser, "GET", clusters, "", "", 200, ""},
		{w.browser, "GET", cluster, clusterID, "", 200, ""},
		{w.browser, "GET", cluster, wrongID, "", 404, "cluster_not_found"},
		{w.browser, "PATCH", cluster, clusterID, `{"control_plane_host":"demo.example.com"}`, 200, ""},
		{w.browser, "PATCH", cluster, clusterID, `{}`, 400, "nothing_to_change"},
		{w.browser, "PATCH", cluster, clusterID, `{"deletion_protection":false}`, 200, ""},
		{w.browser, "POST", cluster + "/retry", clusterID, "", 202, ""},
		{w.browser, "POST", cluster + "/retry", wrongID, "", 404, "cluster_not_found"},
		{w.browser, "DELETE", cluster, clusterID, "", 202, ""},
		{stranger, "DELETE", cluster, clusterID, "", 401, "not_logged_in"},
		{w.browser, "GET", cluster + "/events", clusterID, "", 200, ""},
		{stranger, "GET", cluster + "/events", clusterID, "", 401, "not_logged_in"},
		{w.browser, "GET", cluster + "/kubeconfig", clusterID, "", 200, ""},
		{stranger, "GET", cluster + "/kubeconfig", clusterID, "", 401, "not_logged_in"},
		{w.browser, "GET", members, clusterID, "", 200, ""},
		{stranger, "GET", members, clusterID, "", 401, "not_logged_in"},
		{w.browser, "PUT", members, clusterID, `{"email":"` + adminEmail + `","access":"editor"}`, 200, ""},
		{w.browser, "PUT", members, clusterID, `{"email":"nobody@example.com","access":"editor"}`, 404, "account_not_found"},
		{w.browser, "DELETE", members + "/{user_id}", clusterID + " " + w.idOf(adminEmail), "", 204, ""},
		{w.browser, "DELETE", members + "/{user_id}", clusterID + " " + w.idOf(adminEmail), "", 404, "member_not_found"},
		{w.browser, "POST", cluster + "/join-token", clusterID, `{"ttl_seconds":7200}`, 201, ""},
		{w.browser, "POST", cluster + "/join-token", clusterID, "", 201, ""},
		{w.browser, "GET", cluster + "/join-tokens", clusterID, "", 200, ""},
		{stranger, "GET", cluster + "/join-tokens", clusterID, "", 401, "not_logged_in"},
		{w.browser, "DELETE", cluster + "/join-tokens/{token_id}", clusterID + " " + tokenID, "", 200, ""},
		{stranger, "DELETE", cluster + "/join-tokens/{token_id}", clusterID + " " + tokenID, "", 401, "not_logged_in"},
		{w.browser, "GET", "/api/console/nodes", "?cluster_id=" + clusterID, "", 200, ""},
		{w.browser, "GET", "/api/console/nodes", "", "", 400, "field_required"},

		{stranger, "GET", "/node/join", "?token=" + joinToken, "", 200, ""},
		{stranger, "GET", "/node/mirror/{name}", "kubelet-linux-amd64", "", 200, ""},
		{stranger, "GET", "/node/mirror/{name}", "absent", "", 404, "mirror_file_not_found"},
	} {
		a := w.callAs(c.client, c.method, c.path, c.fill, c.body)
		if a.status != c.status || a.problem.Code != c.code {
			t.Errorf("%s %s %s: %d %q, want %d %q: %.300q", c.method, c.path, c.fill, a.status, a.problem.Code, c.status, c.code, a.text)
		}
		if a.status < 400 {
			delete(untested, c.method+" "+c.path+" well")
		} else {
			delete(untested, c.method+" "+c.path+" badly")
		}
	}
	if w.callAs(stranger, "GET", "/node/join", "?token=aaaaaa.aaaaaaaaaaaaaaaa", "", "Accept", "application/json").status == 404 {
		delete(untested, "GET /node/join badly")
	}
	if w.call("POST", "/api/auth/logout", "", "", "Sec-Fetch-Site", "cross-site").status == 403 {
		delete(untested, "POST /api/auth/logout badly")
	}
	for what := range untested {
		t.Errorf("no test of %s", what)
	}

	w.leakedNothing(spans)

	w.backend.set(func(b *backend) {
		host, open := "demo.example.com", false
		if diff := cmp.Diff([]clusterv1.UpdateRequest{{ID: clusterID, ControlPlaneHost: &host}, {ID: clusterID, DeletionProtection: &open}}, b.updates); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]clusterv1.CreateRequest{{Name: "demo", VClusterName: "demo", Namespace: "demo", ControlPlaneHost: "198.18.0.2", ControlPlane: "upstream", PublicAccessMode: "nodeport", DeletionProtection: true}}, b.creates); diff != "" {
			t.Error(diff)
		}
		for _, p := range b.principals {
			if p.Role != contract.RoleAdmin || !strings.HasPrefix(p.UserID, "usr_") {
				t.Errorf("principal %+v", p)
			}
		}
		if n := len(b.tokens); n != 3 || *b.tokens[1].TTLSeconds != 7200 || b.tokens[2].TTLSeconds != nil || b.tokens[1].JoinBaseURL != "http://198.18.0.1:8080" {
			t.Errorf("%+v", b.tokens)
		}
		script := b.scripts[0]
		if script.JoinBaseURL != "http://198.18.0.1:8080" || len(script.Mirror) != 1 || script.Mirror[0].Name != "kubelet-linux-amd64" || len(script.Mirror[0].SHA256) != 64 || script.Mirror[0].Size != 7 {
			t.Errorf("%+v", script)
		}
	})
}

func TestBodies(t *testing.T) {
	w := start(t)
	a := w.call("POST", clusters, "", `{"name":"demo"}`)
	if a.header.Get("Location") != "/api/console/clusters/"+clusterID || !strings.HasPrefix(a.text, `{"cluster":{"id":"`+clusterID+`"`) {
		t.Errorf("%v %s", a.header, a.text)
	}
	if a = w.call("GET", cluster+"/join-tokens", clusterID, ""); a.text != "{\"tokens\":[]}\n" {
		t.Errorf("none is not an empty list: %s", a.text)
	}
	a = w.call("GET", cluster+"/kubeconfig", clusterID, "")
	if a.header.Get("Content-Type") != "application/yaml" || a.header.Get("Content-Disposition") != "attachment; filename=demo.kubeconfig.yaml" || !strings.Contains(a.text, kubeCanary) {
		t.Errorf("%v %s", a.header, a.text)
	}
	w.call("PUT", settings, "", `{"settings":{"join_base_url":"https://join.example.com"}}`)
	a = w.call("POST", cluster+"/join-token", clusterID, `{"ttl_seconds":60}`)
	var made struct {
		Token       map[string]any
		JoinCommand string `json:"join_command"`
	}
	a.json(t, &made)
	if made.JoinCommand != `curl -fsSL --retry 10 "https://join.example.com/node/join?token=`+joinToken+`" | sh -` || made.Token["id"] != tokenID {
		t.Errorf("%+v", made)
	}
	if a = w.call("HEAD", clusters, "", ""); a.status != 200 || a.text != "" {
		t.Errorf("HEAD: %d %q", a.status, a.text)
	}
}

func TestNodesComeInPages(t *testing.T) {
	w := start(t)
	for n, pages := range map[int]int{0: 1, 1: 1, 1000: 1, 1001: 2, 2345: 3} {
		w.backend.set(func(b *backend) { b.nodes, b.pages = n, nil })
		a := w.call("GET", "/api/console/nodes", "?cluster_id="+clusterID, "")
		var got struct {
			Nodes     []struct{ Name string }
			Truncated bool
		}
		a.json(t, &got)
		w.backend.set(func(b *backend) {
			if a.status != 200 || len(got.Nodes) != n || got.Truncated || len(b.pages) != pages {
				t.Errorf("%d nodes: %d came in %d pages (status %d)", n, len(got.Nodes), len(b.pages), a.status)
			}
		})
		if n > 0 && got.Nodes[n-1].Name != "node-"+pad(n-1) {
			t.Errorf("the last is %s", got.Nodes[n-1].Name)
		}
	}
	w.backend.set(func(b *backend) { b.nodes = 10001 })
	if a := w.call("GET", "/api/console/nodes", "?cluster_id="+clusterID, ""); !strings.Contains(a.text, `"truncated":true`) {
		t.Errorf("cut without a word: %d bytes", len(a.text))
	}
}

func pad(n int) string {
	digits := []byte("00000")
	for i := len(digits) - 1; i >= 0; i, n = i-1, n/10 {
		digits[i] += byte(n % 10)
	}
	return string(digits)
}

func TestSessionCookie(t *testing.T) {
	for _, secure := range []string{"false", "true"} {
		w := prepare(t, with("KUBEBYON_SESSION_COOKIE_SECURE", secure))
		var a answer
		body := `{"email":"` + adminEmail + `","password":"` + adminPassword + `"}`
		w.eventually(func() bool { a = w.call("POST", "/api/auth/login", "", body); return a.status == 200 })
		cookie := a.header.Get("Set-Cookie")
		for _, part := range []string{"kubebyon_session=", "; Path=/", "; HttpOnly", "; SameSite=Lax", "; Max-Age=604800"} {
			if !strings.Contains(cookie, part) {
				t.Errorf("%q lacks %q", cookie, part)
			}
		}
		if strings.Contains(cookie, "; Secure") != (secure == "true") || strings.Contains(a.text, "password") {
			t.Errorf("%q, %s", cookie, a.text)
		}
	}
}

func TestSessionsAreNewAndEnd(t *testing.T) {
	w := start(t)
	body := `{"email":"` + adminEmail + `","password":"` + adminPassword + `"}`
	anonymous := &http.Client{Transport: w.browser.Transport}
	logIn := func(cookie string) string {
		t.Helper()
		a := w.callAs(anonymous, "POST", "/api/auth/login", "", body, "Cookie", cookie)
		value, _, _ := strings.Cut(a.header.Get("Set-Cookie"), ";")
		if a.status != 200 || value == "" {
			t.Fatalf("%d %s", a.status, a.text)
		}
		return value
	}
	status := func(cookie string) int {
		return w.callAs(anonymous, "GET", "/api/auth/session", "", "", "Cookie", cookie).status
	}
	fixed := "kubebyon_session=" + strings.Repeat("A", 43)
	first := logIn(fixed)
	if first == fixed || status(fixed) != 401 || status(first) != 200 {
		t.Error("a session id from outside was taken over")
	}
	second := logIn(first)
	if second == first || status(first) != 401 || status(second) != 200 {
		t.Error("a log-in keeps the session before it")
	}
	if a := w.callAs(anonymous, "POST", "/api/auth/logout", "", "", "Cookie", second); a.status != 204 || !strings.Contains(a.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("%d %v", a.status, a.header)
	}
	if status(second) != 401 {
		t.Error("a stolen cookie works after log-out")
	}
	for _, junk := range []string{"kubebyon_session=", "kubebyon_session=x", "kubebyon_session=" + strings.Repeat("x", 5000), "kubebyon_session='; drop table users", "other=" + second[17:]} {
		if got := status(junk); got != 401 {
			t.Errorf("%.60q: %d", junk, got)
		}
	}
}

func TestSetupLink(t *testing.T) {
	w := prepare(t, with("KUBEBYON_ADMIN_PASSWORD_FILE", ""))
	var token string
	w.eventually(func() bool {
		_, rest, found := strings.Cut(w.log.String(), "/setup#token=")
		if found && len(rest) > 43 {
			token = rest[:43]
		}
		return token != ""
	})
	if !strings.Contains(w.log.String(), "link="+w.url+"/setup#token=") && !strings.Contains(w.log.String(), `link="`+w.url+"/setup#token=") {
		t.Errorf("the link does not lead here: %s", w.log)
	}
	w.eventually(func() bool { return w.call("GET", "/readyz", "", "").status == 200 })
	body := `{"token":"` + token + `","email":"first@example.com","password":"` + adminPassword + `"}`
	w.call("POST", "/api/auth/setup", "", strings.Replace(body, adminPassword, "short", 1)).expect(t, 400, "password_too_short")
	if a := w.call("POST", "/api/auth/setup", "", body); a.status != 201 {
		t.Fatalf("%d %s", a.status, a.text)
	}
	if a := w.call("GET", "/api/auth/session", "", ""); a.status != 200 || !strings.Contains(a.text, "first@example.com") || !strings.Contains(a.text, `"role":"admin"`) {
		t.Errorf("%d %s", a.status, a.text)
	}
	w.call("POST", "/api/auth/setup", "", body).expect(t, 403, "setup_link_invalid")
	page := w.call("GET", "/setup", "", "")
	if policy := page.header.Get("Content-Security-Policy"); !strings.Contains(policy, "script-src 'nonce-") || strings.Contains(policy, "unsafe") || page.header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("%v", page.header)
	}
	if again := w.call("GET", "/setup", "", ""); again.text == page.text {
		t.Error("the nonce is the same twice")
	}
}

func TestNoSecondAdminAtTheNextStart(t *testing.T) {
	first := start(t)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := prepare(t, with("KUBEBYON_DATABASE_DSN", first.dsn), with("KUBEBYON_NATS_URL", first.nats), withoutServices,
		with("KUBEBYON_ADMIN_PASSWORD_FILE", ""))
	second.logIn()
	if strings.Contains(second.log.String(), "/setup#") {
		t.Error("a set-up link beside an administrator")
	}
}

func TestTwoGatewaysStartAtOnce(t *testing.T) {
	first := prepare(t)
	second := prepare(t, with("KUBEBYON_DATABASE_DSN", first.dsn), with("KUBEBYON_NATS_URL", first.nats), withoutServices)
	first.logIn()
	second.logIn()
	if n := strings.Count(first.log.String()+second.log.String(), "first administrator made"); n != 1 {
		t.Errorf("the administrator was made %d times", n)
	}
	// A session and a setting count on both.
	for _, c := range first.browser.Jar.Cookies(request(t, first.url).URL) {
		if a := second.callAs(&http.Client{Transport: first.browser.Transport}, "GET", "/api/auth/session", "", "", "Cookie", c.String()); a.status != 200 {
			t.Errorf("%d", a.status)
		}
	}
	first.call("PUT", settings, "", `{"settings":{"public_base_url":"https://kubebyon.example.com"}}`)
	if a := second.call("GET", settings, "", ""); !strings.Contains(a.text, "https://kubebyon.example.com") {
		t.Errorf("%s", a.text)
	}
}

func request(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMirror(t *testing.T) {
	w := prepare(t)
	content := strings.Repeat("0123456789", 200_000)
	if err := os.MkdirAll(filepath.Join(w.mirror, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.mirror, "images", "pause.tar"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	get := func(headers ...string) answer {
		return w.call("GET", "/node/mirror/{name}", "images/pause.tar", "", headers...)
	}
	var whole answer
	w.eventually(func() bool { whole = get(); return whole.status == 200 })
	if whole.text != content || whole.header.Get("Content-Type") != "application/octet-stream" || whole.header.Get("Content-Length") != "2000000" {
		t.Fatalf("%v", whole.header)
	}
	etag := whole.header.Get("ETag")
	if a := get("Range", "bytes=5-14"); a.status != 206 || a.text != "5678901234" || a.header.Get("ETag") != etag {
		t.Errorf("%d %q %v", a.status, a.text, a.header)
	}
	if a := get("Range", "bytes=1999990-", "If-Range", etag); a.status != 206 || a.text != "0123456789" {
		t.Errorf("%d %.40q", a.status, a.text)
	}
	if a := get("Range", "bytes=0-9", "If-Range", `"other"`); a.status != 200 {
		t.Errorf("a part of another file: %d", a.status)
	}
	get("Range", "bytes=3000000-").expect(t, 416, "range_invalid")
	if a := get("If-None-Match", etag); a.status != 304 || a.text != "" {
		t.Errorf("%d", a.status)
	}
	if a := w.call("HEAD", "/node/mirror/{name}", "images/pause.tar", ""); a.status != 200 || a.header.Get("Content-Length") != "2000000" {
		t.Errorf("%d %v", a.status, a.header)
	}
	for _, path := range []string{"images%2fpause.tar/", "..%2f..%2fetc%2fpasswd", "%2e%2e/x", "images", "images/", "images%00", "pause.tar"} {
		if a := w.call("GET", "/node/mirror/{name}", path, ""); a.status != 404 && a.status != 307 && a.status != 301 {
			t.Errorf("%s: %d", path, a.status)
		}
	}
}

func TestStopLetsRequestsFinish(t *testing.T) {
	w := start(t)
	w.backend.set(func(b *backend) { b.wait = time.Second })
	status := make(chan int)
	go func() {
		response, err := w.browser.Do(request(t, w.url+clusters))
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		_ = response.Body.Close()
		status <- response.StatusCode
	}()
	time.Sleep(200 * time.Millisecond)
	stopped := make(chan error)
	go func() { stopped <- w.stop() }()
	if got := <-status; got != 200 {
		t.Errorf("a request under way got %d", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
