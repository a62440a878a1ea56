package app_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// makeToken gives a new API token's value and id; scopes is the inside of a JSON array.
func (w *world) makeToken(owner *http.Client, name, scopes string) (value, id string) {
	w.t.Helper()
	a := w.callAs(owner, "POST", apiTokens, "", fmt.Sprintf(`{"name":%q,"scopes":[%s],"ttl_seconds":3600}`, name, scopes))
	var made struct {
		Token    string
		APIToken struct{ ID string } `json:"api_token"`
	}
	if a.status != http.StatusCreated {
		w.t.Fatalf("%d %s", a.status, a.text)
	}
	a.json(w.t, &made)
	return made.Token, made.APIToken.ID
}

// bare is a client that keeps no cookie.
func (w *world) bare() *http.Client { return &http.Client{Transport: w.browser.Transport} }

// sessionOf is the Cookie header that the client would send.
func (w *world) sessionOf(client *http.Client) string {
	return "kubebyon_session=" + w.cookie(client, "kubebyon_session")
}

// plain makes an account that is no administrator's and logs it in.
func (w *world) plain(t *testing.T) *http.Client {
	t.Helper()
	return w.addPlain(t, "usr_plainplainplainplain", "plain@example.com")
}

type listedSession struct {
	ID, UserAgent, ClientAddress string
	Current                      bool
}

func (w *world) listSessions(t *testing.T, client *http.Client) (all []listedSession) {
	t.Helper()
	var body struct {
		Sessions []struct {
			ID            string
			ClientAddress string `json:"client_address"`
			UserAgent     string `json:"user_agent"`
			Current       bool
		}
	}
	w.callAs(client, "GET", sessions, "", "").json(t, &body)
	for _, s := range body.Sessions {
		all = append(all, listedSession{s.ID, s.UserAgent, s.ClientAddress, s.Current})
	}
	return all
}

func TestOwnSessions(t *testing.T) {
	w := start(t)
	plain := w.plain(t)
	body := `{"email":"` + adminEmail + `","password":"` + adminPassword + `"}`
	phone := w.newBrowser()
	w.callAs(phone, "POST", "/api/auth/login", "", body, "User-Agent", "phone\u202e é"+strings.Repeat("x", 300)).expect(t, 200, "")
	mine := w.listSessions(t, w.browser)
	if len(mine) != 2 || len(w.listSessions(t, plain)) != 1 {
		t.Fatalf("%+v", mine)
	}
	var other string
	current := 0
	for _, s := range mine {
		if s.ClientAddress != "127.0.0.1" {
			t.Errorf("%+v", s)
		}
		if s.Current {
			current++
			continue
		}
		if other = s.ID; s.UserAgent != "phone é"+strings.Repeat("x", 193) {
			t.Errorf("user agent %q", s.UserAgent)
		}
	}
	if current != 1 {
		t.Fatalf("%+v", mine)
	}
	// Another account's is not there.
	w.callAs(plain, "DELETE", oneSession, other, "").expect(t, 404, "session_not_found")
	w.callAs(phone, "GET", "/api/auth/session", "", "").expect(t, 200, "")
	if a := w.call("DELETE", oneSession, other, ""); a.status != 204 || a.header.Get("Set-Cookie") != "" {
		t.Errorf("%d %v", a.status, a.header)
	}
	w.call("DELETE", oneSession, other, "").expect(t, 404, "session_not_found")
	w.callAs(phone, "GET", "/api/auth/session", "", "").expect(t, 401, "not_logged_in")
	// One's own current one.
	stolen := w.sessionOf(w.browser)
	if a := w.call("DELETE", oneSession, w.listSessions(t, w.browser)[0].ID, ""); a.status != 204 || !strings.Contains(a.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("%d %v", a.status, a.header)
	}
	w.callAs(w.bare(), "GET", "/api/auth/session", "", "", "Cookie", stolen).expect(t, 401, "not_logged_in")
	w.callAs(plain, "GET", "/api/auth/session", "", "").expect(t, 200, "")
}

func TestLogOutEverywhere(t *testing.T) {
	w := start(t)
	plain := w.plain(t)
	there := prepare(t, with("KUBEBYON_DATABASE_DSN", w.dsn), with("KUBEBYON_NATS_URL", w.nats), withoutServices)
	there.logIn()
	token, _ := w.makeToken(w.browser, "stays", `"read"`)
	bearer := func(status int, code string) {
		t.Helper()
		w.callAs(w.bare(), "GET", "/api/auth/session", "", "", "Authorization", "Bearer "+token).expect(t, status, code)
	}
	stolen := w.sessionOf(w.browser)
	w.call("DELETE", sessions, "", `{"api_token":true}`).expect(t, 400, "unknown_field")
	if a := w.call("DELETE", sessions, "", ""); a.status != 204 || !strings.Contains(a.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("%d %v", a.status, a.header)
	}
	there.call("GET", "/api/auth/session", "", "").expect(t, 401, "not_logged_in")
	w.callAs(w.bare(), "GET", "/api/auth/session", "", "", "Cookie", stolen).expect(t, 401, "not_logged_in")
	w.callAs(plain, "GET", "/api/auth/session", "", "").expect(t, 200, "")
	bearer(200, "")
	w.logIn()
	w.call("DELETE", sessions, "", `{"api_tokens":true}`).expect(t, 204, "")
	bearer(401, "token_invalid")

	// By an administrator.
	w.logIn()
	plainToken, _ := w.makeToken(plain, "of plain", `"read"`)
	w.call("DELETE", userSessions, "usr_plainplainplainplain", "").expect(t, 204, "")
	w.callAs(plain, "GET", "/api/auth/session", "", "").expect(t, 401, "not_logged_in")
	w.call("GET", "/api/auth/session", "", "").expect(t, 200, "")
	if a := w.call("GET", userTokens, "usr_plainplainplainplain", ""); !strings.Contains(a.text, `"of plain"`) {
		t.Error(a.text)
	}
	w.call("DELETE", userTokens, "usr_plainplainplainplain", "").expect(t, 204, "")
	w.callAs(w.bare(), "GET", "/api/auth/session", "", "", "Authorization", "Bearer "+plainToken).expect(t, 401, "token_invalid")
}

func TestAPITokens(t *testing.T) {
	w := start(t)
	plain := w.plain(t)
	for body, code := range map[string]string{
		`{"scopes":["read"],"ttl_seconds":3600}`:                                                 "field_required",
		`{"name":" ","scopes":["read"],"ttl_seconds":3600}`:                                      "field_required",
		`{"name":"a\u0007","scopes":["read"],"ttl_seconds":3600}`:                                "api_token_name_invalid",
		`{"name":"a\u202eb","scopes":["read"],"ttl_seconds":3600}`:                               "api_token_name_invalid",
		`{"name":"` + strings.Repeat("é", 101) + `","scopes":["read"],"ttl_seconds":3600}`:       "api_token_name_invalid",
		`{"name":"a","scopes":[],"ttl_seconds":3600}`:                                            "scopes_invalid",
		`{"name":"a","scopes":["admin"],"ttl_seconds":3600}`:                                     "scopes_invalid",
		`{"name":"a","scopes":["read","cluster:*"],"ttl_seconds":3600}`:                          "scopes_invalid",
		`{"name":"a","scopes":["cluster:` + clusterID + `"],"ttl_seconds":3600}`:                 "scopes_invalid",
		`{"name":"a","scopes":["read"]}`:                                                         "expiry_invalid",
		`{"name":"a","scopes":["read"],"ttl_seconds":3599}`:                                      "expiry_invalid",
		`{"name":"a","scopes":["read"],"ttl_seconds":9223372036854775807}`:                       "expiry_invalid",
		`{"name":"a","scopes":["read"],"expires_at":"tomorrow"}`:                                 "expiry_invalid",
		`{"name":"a","scopes":["read"],"expires_at":"2000-01-01T00:00:00Z"}`:                     "expiry_invalid",
		`{"name":"a","scopes":["read"],"expires_at":"9999-01-01T00:00:00Z"}`:                     "expiry_invalid",
		`{"name":"a","scopes":["read"],"ttl_seconds":3600,"expires_at":"2000-01-01T00:00:00Z"}`:  "expiry_invalid",
		`{"name":"a","scopes":["read"],"ttl_seconds":3600,"user_id":"usr_zzzzzzzzzzzzzzzzzzzz"}`: "unknown_field",
	} {
		w.call("POST", apiTokens, "", body).expect(t, 400, code)
	}
	longest := strings.Repeat("é", 100)
	value, id := w.makeToken(w.browser, longest, `"write","read","read","cluster:`+clusterID+`"`)
	if !regexp.MustCompile(`^kbt_[A-Za-z0-9_-]{43}$`).MatchString(value) {
		t.Errorf("%q", value)
	}
	w.callAs(plain, "DELETE", apiToken, id, "").expect(t, 404, "api_token_not_found")
	if _, theirs := w.makeToken(plain, longest, `"read"`); theirs == id {
		t.Error("the same id twice")
	}
	a := w.call("GET", apiTokens, "", "")
	if strings.Contains(a.text, value) || strings.Contains(a.text, "last_used_at") || !strings.Contains(a.text, `"scopes":["cluster:`+clusterID+`","read","write"]`) {
		t.Error(a.text)
	}
	// It shows itself, and that it was used.
	a = w.callAs(w.bare(), "GET", "/api/auth/session", "", "", "Authorization", "bEARER "+value)
	var shown struct {
		User      struct{ Email string }
		ExpiresAt time.Time `json:"expires_at"`
		SessionID string    `json:"session_id"`
		APIToken  struct {
			ID        string
			ExpiresAt time.Time `json:"expires_at"`
		} `json:"api_token"`
	}
	a.json(t, &shown)
	if a.status != 200 || shown.User.Email != adminEmail || shown.APIToken.ID != id || shown.SessionID != "" || !shown.ExpiresAt.Equal(shown.APIToken.ExpiresAt) || a.header.Get("Set-Cookie") != "" {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a = w.call("GET", apiTokens, "", ""); !strings.Contains(a.text, "last_used_at") {
		t.Error(a.text)
	}
	w.call("DELETE", apiToken, id, "").expect(t, 204, "")
	w.call("DELETE", apiToken, id, "").expect(t, 404, "api_token_not_found")
	w.callAs(w.bare(), "GET", clusters, "", "", "Authorization", "Bearer "+value).expect(t, 401, "token_invalid")
	// By an administrator, and of a disabled account.
	value, id = w.makeToken(plain, "second", `"read"`)
	stolen := w.sessionOf(plain)
	w.call("DELETE", userToken, bystanderID+" "+id, "").expect(t, 404, "user_not_found")
	w.callAs(w.bare(), "GET", clusters, "", "", "Authorization", "Bearer "+value).expect(t, 200, "")
	w.execute(t, `update users set disabled_at = now() where email = 'plain@example.com'`)
	w.callAs(w.bare(), "GET", clusters, "", "", "Authorization", "Bearer "+value).expect(t, 401, "token_invalid")
	w.callAs(w.bare(), "GET", clusters, "", "", "Cookie", stolen).expect(t, 401, "not_logged_in")
	w.execute(t, `update users set disabled_at = null`)
	w.call("DELETE", userToken, "usr_plainplainplainplain "+id, "").expect(t, 204, "")
	w.callAs(w.bare(), "GET", clusters, "", "", "Authorization", "Bearer "+value).expect(t, 401, "token_invalid")
}

// Where there is an Authorization header, whatever it holds, the cookie is not read.
func TestCookieIsNotReadBesideABearer(t *testing.T) {
	w := start(t)
	value, _ := w.makeToken(w.browser, "a", `"write"`)
	cookie := w.sessionOf(w.browser)
	send := func(method, path string, headers ...string) *http.Response {
		t.Helper()
		r := request(t, w.url+path)
		r.Method = method
		r.Header.Set("Cookie", cookie)
		r.Header["Authorization"] = headers
		response, err := w.bare().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response
	}
	for name, headers := range map[string][]string{
		"empty": {""}, "scheme alone": {"Bearer"}, "basic": {"Basic YTpi"}, "unknown": {"Bearer kbt_" + strings.Repeat("A", 43)}, "short": {"Bearer " + value[:46]},
		"long": {"Bearer " + value + "A"}, "two blanks": {"Bearer  " + value}, "tab": {"Bearer\t" + value}, "comma": {"Bearer " + value + ", Bearer " + value},
		"two": {"Bearer " + value, "Bearer " + value}, "two, one empty": {"", "Bearer " + value}, "the session's": {"Bearer " + strings.TrimPrefix(cookie, "kubebyon_session=")},
		"quoted": {`Bearer "` + value + `"`}, "no scheme": {value},
	} {
		if r := send("GET", "/api/auth/session", headers...); r.StatusCode != http.StatusUnauthorized || r.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: %d %v", name, r.StatusCode, r.Header)
		}
		// Nor does logging out with both end the session.
		if r := send("POST", "/api/auth/logout", headers...); r.StatusCode != http.StatusNoContent || r.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d %v", name, r.StatusCode, r.Header)
		}
	}
	if r := send("GET", "/api/auth/session", "Bearer "+value); r.StatusCode != http.StatusOK {
		t.Errorf("%d", r.StatusCode)
	}
	send("POST", "/api/auth/logout", "Bearer "+value)
	w.call("GET", "/api/auth/session", "", "").expect(t, 200, "")

	// A page of another site cannot send a token by itself; it can send a cookie, and a password that the browser keeps.
	w.callAs(w.bare(), "POST", clusters, "", `{"name":"demo"}`, "Authorization", "Bearer "+value, "Sec-Fetch-Site", "cross-site", "Origin", "https://front.example").expect(t, 201, "")
	w.call("POST", clusters, "", `{"name":"demo"}`, "Authorization", "Basic YTpi", "Sec-Fetch-Site", "cross-site").expect(t, 403, "cross_origin")
}

// Every Set-Cookie has every attribute, whatever a proxy claims.
func TestCookieAttributes(t *testing.T) {
	for _, secure := range []string{"false", "true"} {
		w := prepare(t, with("KUBEBYON_SESSION_COOKIE_SECURE", secure))
		flag := map[string]string{"true": "; Secure", "false": ""}[secure]
		set := regexp.MustCompile(`^kubebyon_session=[A-Za-z0-9_-]{43}; Path=/; Max-Age=604800; HttpOnly` + flag + `; SameSite=Lax$`)
		unset := regexp.MustCompile(`^kubebyon_session=; Path=/; Max-Age=0; HttpOnly` + flag + `; SameSite=Lax$`)
		var cookie string
		call := func(method, path, fill, body string, want *regexp.Regexp) answer {
			t.Helper()
			a := w.callAs(w.bare(), method, path, fill, body, "Cookie", cookie, "X-Forwarded-Proto", "https", "X-Forwarded-Host", "evil.example")
			if got := a.header.Values("Set-Cookie"); a.status < 300 && (len(got) != 1 || !want.MatchString(got[0])) {
				t.Errorf("%s %s: %q", method, path, got)
			}
			return a
		}
		logIn := func() bool {
			a := call("POST", "/api/auth/login", "", `{"email":"`+adminEmail+`","password":"`+adminPassword+`"}`, set)
			cookie, _, _ = strings.Cut(a.header.Get("Set-Cookie"), ";")
			return a.status == 200
		}
		w.eventually(logIn)
		call("POST", "/api/auth/logout", "", "", unset).expect(t, 204, "")
		logIn()
		call("DELETE", sessions, "", "", unset).expect(t, 204, "")
		logIn()
		var shown struct {
			SessionID string `json:"session_id"`
		}
		w.callAs(w.bare(), "GET", "/api/auth/session", "", "", "Cookie", cookie).json(t, &shown)
		call("DELETE", oneSession, shown.SessionID, "", unset).expect(t, 204, "")
	}
}

// No value of a token or a session is in the log, in an error or in any table.
func TestNoCredentialIsKept(t *testing.T) {
	w := start(t)
	value, id := w.makeToken(w.browser, "canary", `"read"`)
	cookie := strings.TrimPrefix(w.sessionOf(w.browser), "kubebyon_session=")
	var seen strings.Builder
	for _, header := range []string{"Bearer " + value, "Bearer  " + value, "Basic " + value, value} {
		for _, c := range []struct{ method, path, body string }{
			{"GET", clusters, ""}, {"POST", clusters, `{"name":"demo"}`}, {"GET", "/api/auth/tokens", ""}, {"GET", "/absent/" + value, ""}, {"GET", clusters + "?access_token=" + value, ""},
			{"DELETE", "/api/auth/tokens/" + value, ""}, {"POST", "/api/auth/login", `{"email":"` + value + `","password":"` + value + `"}`},
		} {
			seen.WriteString(w.callAs(w.bare(), c.method, c.path, "", c.body, "Authorization", header).text)
			seen.WriteString(w.call(c.method, c.path, "", c.body).text)
		}
	}
	rows := dump(t, w.dsn)
	if !strings.Contains(rows, id) || !strings.Contains(w.log.String(), "POST /api/auth/login") {
		t.Fatal("the dump or the log has not what it is searched for")
	}
	for place, text := range map[string]string{"the log": w.log.String(), "an answer": seen.String(), "the database": rows} {
		for _, secret := range []string{value, value[4:], cookie} {
			if strings.Contains(text, secret) {
				t.Errorf("a credential is in %s", place)
			}
		}
	}
}

// A token that is revoked at one gateway counts at none from then on, however busy it is.
func TestRevokedWhileUsed(t *testing.T) {
	w := start(t)
	there := prepare(t, with("KUBEBYON_DATABASE_DSN", w.dsn), with("KUBEBYON_NATS_URL", w.nats), withoutServices)
	there.logIn()
	value, id := w.makeToken(w.browser, "busy", `"read"`)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var early sync.WaitGroup
	for i := range 8 {
		gateway := []*world{w, there}[i%2]
		early.Add(1)
		wg.Go(func() {
			for n := 0; ; n++ {
				a := gateway.callAs(gateway.bare(), "GET", "/api/auth/session", "", "", "Authorization", "Bearer "+value)
				if a.status != 200 && a.problem.Code != "token_invalid" {
					t.Errorf("%d %s", a.status, a.text)
				}
				if n == 2 {
					early.Done()
				}
				select {
				case <-stop:
					if n >= 2 {
						return
					}
				default:
				}
			}
		})
	}
	early.Wait()
	w.call("DELETE", apiToken, id, "").expect(t, 204, "")
	for _, gateway := range []*world{w, there} {
		gateway.callAs(gateway.bare(), "GET", "/api/auth/session", "", "", "Authorization", "Bearer "+value).expect(t, 401, "token_invalid")
	}
	close(stop)
	wg.Wait()
}
