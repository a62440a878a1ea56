package app_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kubebyon/kubebyon/gateway/app"
	"github.com/kubebyon/kubebyon/gateway/internal/openid/openidtest"
)

// startOpenID is a gateway whose administrator the provider knows too, and who is logged out.
func startOpenID(t *testing.T, wishes ...wish) (*world, *openidtest.Provider) {
	t.Helper()
	p, known := withProvider(t)
	w := start(t, append(wishes, known)...)
	w.call("PUT", settings, "", `{"settings":{"public_base_url":"`+w.url+`"}}`).expect(t, 200, "")
	p.Set(func(p *openidtest.Provider) {
		p.RedirectURIs = []string{w.url + oidcCallback}
		p.Person = openidtest.Person{Subject: "subject-1", Email: adminEmail}
	})
	w.browser = w.newBrowser()
	return w, p
}

func (w *world) cookie(client *http.Client, name string) string {
	w.t.Helper()
	at, err := url.Parse(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range client.Jar.Cookies(at) {
		if c.Name == name {
			return c.Value
		}
	}
	return ""
}

func TestOpenIDSession(t *testing.T) {
	w, p := startOpenID(t)
	var methods struct {
		Password     bool
		Registration string
		OpenID       struct{ Name string }
	}
	w.call("GET", "/api/auth/methods", "", "").json(t, &methods)
	if !methods.Password || methods.Registration != "closed" || methods.OpenID.Name != "Example & Co" {
		t.Errorf("%+v", methods)
	}
	// A session that the browser has already, by an attacker's hand perhaps, is not the one that it gets.
	w.logIn()
	old := w.cookie(w.browser, "kubebyon_session")
	back := w.atProvider(w.browser, w.url+oidcCallback, "?return_to=%2Fclusters%3Ftab%3Dnodes")
	a := w.call("GET", oidcCallback, back, "", "Sec-Fetch-Site", "cross-site", "Accept", "text/html")
	if a.status != http.StatusFound || a.header.Get("Location") != "/clusters?tab=nodes" {
		t.Fatalf("%d %v %s", a.status, a.header, a.text)
	}
	if now := w.cookie(w.browser, "kubebyon_session"); now == "" || now == old || w.cookie(w.browser, "kubebyon_openid") != "" {
		t.Errorf("the session's cookie is the old one, or the log-in's is left")
	}
	if a := w.callAs(w.newBrowser(), "GET", "/api/auth/session", "", "", "Cookie", "kubebyon_session="+old); a.status != 401 {
		t.Errorf("the old session goes on: %d", a.status)
	}
	if a := w.call("GET", "/api/auth/session", "", ""); !strings.Contains(a.text, adminEmail) {
		t.Errorf("%d %s", a.status, a.text)
	}
	w.call("GET", oidcCallback, back, "").expect(t, 400, "openid_state_wrong") // the answer again

	// Known by the subject from now on, whatever the address is; and nobody else comes in by the address.
	p.Set(func(p *openidtest.Provider) { p.Person.Email = "renamed@example.com" })
	renamed := w.newBrowser()
	if a := w.callAs(renamed, "GET", oidcCallback, w.atProvider(renamed, w.url+oidcCallback, ""), ""); a.status != http.StatusFound || a.header.Get("Location") != "/" {
		t.Errorf("%d %v %s", a.status, a.header, a.text)
	}
	if a := w.callAs(renamed, "GET", "/api/auth/session", "", ""); !strings.Contains(a.text, adminEmail) {
		t.Errorf("%d %s", a.status, a.text)
	}
	p.Set(func(p *openidtest.Provider) { p.Person = openidtest.Person{Subject: "subject-2", Email: adminEmail} })
	other := w.newBrowser()
	w.callAs(other, "GET", oidcCallback, w.atProvider(other, w.url+oidcCallback, ""), "").expect(t, 403, "openid_account_linked")

	p.Set(func(p *openidtest.Provider) {
		p.Person = openidtest.Person{Subject: "subject-3", Email: "stranger@example.com"}
	})
	w.callAs(other, "GET", oidcCallback, w.atProvider(other, w.url+oidcCallback, ""), "").expect(t, 403, "registration_closed")
	w.callAs(other, "GET", "/api/auth/session", "", "").expect(t, 401, "not_logged_in")

	p.Set(func(p *openidtest.Provider) { p.Person = openidtest.Person{Subject: "subject-1", Email: adminEmail} })
	w.execute(t, `update users set disabled_at = now() where email = $1`, adminEmail)
	w.callAs(other, "GET", oidcCallback, w.atProvider(other, w.url+oidcCallback, ""), "").expect(t, 403, "account_disabled")
	w.callAs(other, "GET", "/api/auth/session", "", "").expect(t, 401, "not_logged_in")
	w.execute(t, `update users set disabled_at = null where email = $1`, adminEmail)

	w.browser = renamed
	for _, c := range []struct{ outcome, code string }{{"ok", ""}, {"refused", "openid_state_wrong"}, {"refused", "account_disabled"}} {
		if a := w.call("GET", auditLog, "?action=session.open_openid&outcome="+c.outcome, ""); !strings.Contains(a.text, `"code":"`+c.code) && c.code != "" || !strings.Contains(a.text, "session.open_openid") {
			t.Errorf("the audit log lacks %v: %s", c, a.text)
		}
	}
}

// A link of somebody else's making logs nobody in.
func TestOpenIDLogInOfAnother(t *testing.T) {
	w, _ := startOpenID(t)
	attacker, victim := w.newBrowser(), w.newBrowser()
	back := w.atProvider(attacker, w.url+oidcCallback, "")
	w.callAs(victim, "GET", oidcCallback, back, "").expect(t, 400, "openid_state_wrong")
	_ = w.atProvider(victim, w.url+oidcCallback, "") // a log-in of the victim's own is under way
	w.callAs(victim, "GET", oidcCallback, back, "").expect(t, 400, "openid_state_wrong")
	flow := "kubebyon_openid=" + w.cookie(attacker, "kubebyon_openid")
	w.callAs(w.newBrowser(), "GET", oidcCallback, back, "", "Cookie", flow+"; "+flow).expect(t, 400, "openid_state_wrong")
	w.callAs(attacker, "GET", oidcCallback, back+"&state=x", "").expect(t, 400, "openid_state_wrong")
	w.callAs(attacker, "GET", oidcCallback, back+"&iss=https://evil.example.com", "").expect(t, 400, "openid_issuer_wrong")
	if w.cookie(victim, "kubebyon_session") != "" {
		t.Error("the victim is logged in")
	}
	if a := w.callAs(attacker, "GET", oidcCallback, back, ""); a.status != http.StatusFound {
		t.Errorf("whose it is: %d %s", a.status, a.text)
	}
}

func TestOpenIDReturnsHome(t *testing.T) {
	w, _ := startOpenID(t)
	for _, to := range []string{"https://evil.example.com", "//evil.example.com", `/\evil.example.com`, "/\t/evil.example.com", "javascript:alert(1)", "/x\r\nSet-Cookie: a=b", ""} {
		browser := w.newBrowser()
		a := w.callAs(browser, "GET", oidcCallback, w.atProvider(browser, w.url+oidcCallback, "?return_to="+url.QueryEscape(to)), "")
		if a.status != http.StatusFound || a.header.Get("Location") != "/" {
			t.Errorf("%q: %d %v", to, a.status, a.header)
		}
	}
	w.logIn()
	w.call("PUT", settings, "", `{"settings":{"public_base_url":"`+w.url+`/behind/a/path"}}`).expect(t, 200, "")
	if a := w.call("GET", oidcLogIn, "", ""); !strings.Contains(a.header.Get("Location"), url.QueryEscape(w.url+"/behind/a/path"+oidcCallback)) {
		t.Errorf("%d %v", a.status, a.header)
	}
	w.call("PUT", settings, "", `{"settings":{"public_base_url":""}}`).expect(t, 200, "")
	w.call("GET", oidcLogIn, "", "").expect(t, 409, "public_base_url_unset")
}

// The provider sends nobody to an address that it was not told.
func TestOpenIDRedirectURIMismatch(t *testing.T) {
	w, p := startOpenID(t)
	p.Set(func(p *openidtest.Provider) {
		p.RedirectURIs = []string{"https://elsewhere.example.com" + oidcCallback}
	})
	a := w.call("GET", oidcLogIn, "", "")
	response, err := w.browser.Get(a.header.Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("%d %v", response.StatusCode, response.Header)
	}
}

func TestOpenIDProviderAway(t *testing.T) {
	p, known := withProvider(t)
	p.Stop()
	w := start(t, known) // the gateway starts, and passwords do
	w.call("PUT", settings, "", `{"settings":{"public_base_url":"`+w.url+`"}}`).expect(t, 200, "")
	if a := w.call("GET", "/api/auth/methods", "", ""); !strings.Contains(a.text, "Example & Co") {
		t.Errorf("%d %s", a.status, a.text)
	}
	a := w.call("GET", oidcLogIn, "", "")
	a.expect(t, 503, "openid_unavailable")
	if a.header.Get("Retry-After") == "" {
		t.Errorf("%v", a.header)
	}
	p.Restart(t)
	w.eventually(func() bool { return w.call("GET", oidcLogIn, "", "").status == http.StatusFound })
}

// People see a page, programs a problem; neither shows what came from outside.
func TestOpenIDErrorPage(t *testing.T) {
	w, p := startOpenID(t)
	p.Set(func(p *openidtest.Provider) { p.Refuse = "access_denied" })
	const browserAccept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	get := func(query, accept string) (*http.Response, string) {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+oidcCallback+query, http.NoBody)
		request.Header.Set("Accept", accept)
		response, err := w.browser.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		return response, string(text)
	}
	response, text := get(w.atProvider(w.browser, w.url+oidcCallback, ""), browserAccept)
	csp := response.Header.Get("Content-Security-Policy")
	nonce := regexp.MustCompile(`'nonce-([A-Z2-7]+)'`).FindStringSubmatch(csp)
	if response.StatusCode != http.StatusForbidden || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/html") || len(nonce) != 2 || strings.Contains(csp, "unsafe") ||
		!strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") || !strings.Contains(text, `nonce="`+nonce[1]+`"`) {
		t.Errorf("%d %v %s", response.StatusCode, response.Header, text)
	}
	for _, part := range []string{"the log-in was not completed at the provider (access_denied).", "What to do: start the log-in again.", `href="login"`, `href="../../../"`, "openid_denied"} {
		if !strings.Contains(text, part) {
			t.Errorf("the page lacks %q:\n%s", part, text)
		}
	}
	if strings.Contains(text, "canary") || strings.Contains(text, "<script") || response.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v %s", response.Header, text)
	}
	if response, text := get("?error=%3Cscript%3Ealert(1)%3C/script%3E&state=x", browserAccept); response.StatusCode != http.StatusBadRequest || strings.Contains(text, "alert(1)") {
		t.Errorf("%d %s", response.StatusCode, text)
	}
	for _, accept := range []string{"*/*", "", "application/json", "application/json, text/html;q=0.5", "text/html;q=0, application/json", "text/html;q=x"} {
		if response, _ := get("?state=x", accept); !strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json") {
			t.Errorf("%q gets %s", accept, response.Header.Get("Content-Type"))
		}
	}
}

// With HTTPS alone the cookie has a name that no other host of the domain can set.
func TestOpenIDSecureCookie(t *testing.T) {
	w, _ := startOpenID(t, with("KUBEBYON_SESSION_COOKIE_SECURE", "true"))
	a := w.call("GET", oidcLogIn, "", "")
	set := a.header.Get("Set-Cookie")
	for _, part := range []string{"__Host-kubebyon_openid=", "Path=/", "Max-Age=600", "HttpOnly", "Secure", "SameSite=Lax"} {
		if !strings.Contains(set, part) || strings.Contains(set, "Domain") {
			t.Errorf("%s lacks %s", set, part)
		}
	}
}

// Who came in at the provider alone has no password, and it shows nowhere.
func TestAccountWithoutPassword(t *testing.T) {
	w := start(t)
	w.execute(t, `insert into users (id, email, role) values ('usr_openopenopenopenopen', 'open@example.com', 'user')`)
	try := func(email string) answer {
		a := w.callAs(w.newBrowser(), "POST", "/api/auth/login", "", `{"email":"`+email+`","password":"`+adminPassword+`"}`)
		a.expect(t, 401, "wrong_credentials")
		return a
	}
	if a, unknown := try("open@example.com"), try("nobody@example.com"); a.problem.Detail != unknown.problem.Detail || a.problem.Action != unknown.problem.Action {
		t.Errorf("%s, not %s", a.text, unknown.text)
	}
}

// Nothing of a log-in that must stay secret is in a log, a span or the database, well or badly.
func TestOpenIDCanaries(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	before := otel.GetTracerProvider()
	traces := trace.NewTracerProvider(trace.WithSyncer(spans))
	otel.SetTracerProvider(traces)
	t.Cleanup(func() {
		otel.SetTracerProvider(before)
		_ = traces.Shutdown(context.Background())
	})
	w, p := startOpenID(t)
	secrets := []string{openidtest.Secret, "canary"}
	remember := func(back string) {
		values, err := url.ParseQuery(strings.TrimPrefix(back, "?"))
		if err != nil || values.Get("code") == "" {
			t.Fatal(back, err)
		}
		cookie := w.cookie(w.browser, "kubebyon_openid")
		seed, _, _ := strings.Cut(cookie, ".")
		secrets = append(secrets, values.Get("code"), values.Get("state"), cookie, seed)
	}
	forge := func(change func(claims map[string]any)) {
		p.Set(func(p *openidtest.Provider) {
			p.Forge = func(claims map[string]any, k openidtest.Key) string {
				change(claims)
				token := k.Sign(claims)
				p.Set(func(*openidtest.Provider) { secrets = append(secrets, token, fmt.Sprint(claims["nonce"])) })
				return token
			}
		})
	}
	forge(func(map[string]any) {})
	for _, change := range []func(){
		func() {},
		func() { forge(func(c map[string]any) { c["aud"] = "another" }) },
		func() { forge(func(c map[string]any) { c["email_verified"] = false }) },
		func() { // it echoes what it was sent, as some do
			p.Set(func(p *openidtest.Provider) {
				p.Answer = func(out http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != "/oauth/token" {
						return false
					}
					body, _ := io.ReadAll(r.Body)
					out.Header().Set("Content-Type", "application/json")
					out.WriteHeader(http.StatusBadRequest)
					_, _ = fmt.Fprintf(out, `{"error":"invalid_request","error_description":%q}`, body)
					return true
				}
			})
		},
		func() {
			p.Set(func(p *openidtest.Provider) {
				p.Answer = func(out http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != "/oauth/token" {
						return false
					}
					body, _ := io.ReadAll(r.Body)
					http.Error(out, string(body), http.StatusInternalServerError)
					return true
				}
			})
		},
	} {
		change()
		back := w.atProvider(w.browser, w.url+oidcCallback, "")
		remember(back)
		w.call("GET", oidcCallback, back, "", "Referer", w.url+oidcCallback+back)
		w.call("GET", oidcCallback, back, "")
		w.callAs(w.newBrowser(), "GET", oidcCallback, back, "")
		w.call("POST", oidcCallback, back, "{}")
	}
	if session := w.cookie(w.browser, "kubebyon_session"); session != "" {
		secrets = append(secrets, session)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	var traced strings.Builder
	for _, span := range spans.GetSpans() {
		if !strings.Contains(span.InstrumentationScope.Name, "zitadel") { // the provider's own
			fmt.Fprintln(&traced, span.Name, span.Attributes, span.Events, span.Links, span.Status)
		}
	}
	log := w.log.String()
	for where, part := range map[string]string{"/oauth/token": traced.String(), "openid_token_invalid": log, "expected audience": log, "openid_code_refused": log, "the provider answered 500": log} {
		if !strings.Contains(part, where) {
			t.Errorf("the log or the spans are not what this test takes them for: %s is not there", where)
		}
	}
	if len(secrets) < 20 {
		t.Errorf("too few secrets were seen: %d", len(secrets))
	}
	for _, secret := range secrets {
		for where, text := range map[string]string{"the log": log, "the spans": traced.String(), "the database": dump(t, w.dsn)} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%q is in %s: …%s…", secret, where, text[max(0, i-150):min(len(text), i+150)])
			}
		}
	}
}

func TestWrongOpenIDConfigIsOneLine(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good", "a-secret\n")
	const issuer, id, secret, name = "KUBEBYON_OIDC_ISSUER_URL", "KUBEBYON_OIDC_CLIENT_ID", "KUBEBYON_OIDC_CLIENT_SECRET_FILE", "KUBEBYON_OIDC_NAME"
	for _, c := range []struct{ name, value string }{
		{issuer, ""}, {id, ""}, {secret, ""},
		{issuer, "id.example.com"}, {issuer, "http://id.example.com"}, {issuer, "https://user:canary@id.example.com"}, {issuer, "https://id.example.com/?canary=x"},
		{issuer, "https://id.example.com/#canary"}, {issuer, "https://id.example.com/\x01"}, {issuer, "ftp://127.0.0.1"},
		{id, "line\nline"}, {id, strings.Repeat("x", 256)},
		{secret, filepath.Join(dir, "absent")}, {secret, dir}, {secret, file("empty", "\n")}, {secret, file("lines", "canary\ncanary\n")}, {secret, file("huge", strings.Repeat("x", 10000))},
		{name, strings.Repeat("x", 61)}, {name, "a\nb"}, {name, " x"},
	} {
		env := map[string]string{issuer: "https://id.example.com", id: "kubebyon", secret: good, c.name: c.value}
		var stderr bytes.Buffer
		status := app.Main(t.Context(), nil, lookup(env), &stderr)
		line := strings.TrimSuffix(stderr.String(), "\n")
		if status == 0 || !strings.HasPrefix(line, "kubebyon-gateway: "+c.name) && !strings.Contains(line, c.name+":") || !strings.Contains(line, "accepts ") || strings.Contains(line, "\n") || strings.Contains(line, "canary") {
			t.Errorf("%s=%q: status %d, %q", c.name, c.value, status, line)
		}
	}
	for _, env := range []map[string]string{
		{issuer: "https://id.example.com/realms/x", id: "kubebyon", secret: good}, {issuer: "http://127.0.0.1:5556/dex", id: "kubebyon", secret: good, name: "Ünïcode ID"}, {},
	} {
		if _, err := app.LoadConfig(lookup(env)); err != nil {
			t.Errorf("%v: %v", env, err)
		}
	}
	if _, err := app.LoadConfig(lookup(map[string]string{name: "x"})); err == nil || !strings.Contains(err.Error(), issuer) {
		t.Errorf("a name alone: %v", err)
	}
}
