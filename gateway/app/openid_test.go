package app_test

import (
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/openid/openidtest"
)

const oidcLogIn, oidcCallback = "/api/auth/oidc/login", "/api/auth/oidc/callback"

// withProvider lets the gateway use a real provider, and gives it.
func withProvider(t *testing.T) (*openidtest.Provider, wish) {
	t.Helper()
	provider := openidtest.Start(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(openidtest.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return provider, func(env map[string]string, _ *world) {
		env["KUBEBYON_OIDC_ISSUER_URL"], env["KUBEBYON_OIDC_CLIENT_ID"] = provider.URL, openidtest.ClientID
		env["KUBEBYON_OIDC_CLIENT_SECRET_FILE"], env["KUBEBYON_OIDC_NAME"] = secret, "Example & Co"
	}
}

// atProvider follows the browser from our log-in route through the provider, and gives the query that it comes back with.
func (w *world) atProvider(browser *http.Client, back string, query string) string {
	w.t.Helper()
	a := w.callAs(browser, "GET", oidcLogIn, query, "")
	if a.status != http.StatusFound {
		w.t.Fatalf("%d %s", a.status, a.text)
	}
	address := a.header.Get("Location")
	jar, _ := cookiejar.New(nil)
	person := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for range 5 {
		response, err := person.Get(address)
		if err != nil {
			w.t.Fatal(err)
		}
		_ = response.Body.Close()
		next, err := response.Location()
		if err != nil {
			w.t.Fatalf("the provider answered %d", response.StatusCode)
		}
		if strings.HasPrefix(next.String(), back+"?") {
			return "?" + next.RawQuery
		}
		address = next.String()
	}
	w.t.Fatal("the provider never sent the browser back")
	return ""
}

// A person of the provider logs in on one replica and comes back on another; whoever else comes back gets nothing.
func TestOpenIDLogIn(t *testing.T) {
	provider, wish := withProvider(t)
	w := start(t, wish)
	other := prepare(t, wish, with("KUBEBYON_DATABASE_DSN", w.dsn), with("KUBEBYON_NATS_URL", w.nats), withoutServices)
	other.logIn()
	w.call("GET", oidcLogIn, "", "").expect(t, http.StatusConflict, "public_base_url_unset")
	w.call("PUT", settings, "", `{"settings":{"public_base_url":"https://kubebyon.example.com"}}`).expect(t, http.StatusOK, "")
	const back = "https://kubebyon.example.com" + oidcCallback
	provider.Set(func(p *openidtest.Provider) {
		p.RedirectURIs = []string{back}
		p.Person = openidtest.Person{Subject: "subject-of-admin", Email: adminEmail}
	})
	var ways struct {
		Registration string
		OpenID       *struct{ Name string }
	}
	w.call("GET", "/api/auth/methods", "", "").json(t, &ways)
	if ways.OpenID == nil || ways.OpenID.Name != "Example & Co" || ways.Registration != "closed" {
		t.Errorf("%+v", ways)
	}

	browser := w.newBrowser()
	answer := w.atProvider(browser, back, "?return_to=/clusters")
	thief := w.newBrowser()
	if a := w.callAs(thief, "GET", oidcCallback, answer, ""); a.status < 400 || len(a.header.Values("Set-Cookie")) > 0 && strings.Contains(a.header.Get("Set-Cookie"), "kubebyon_session") {
		t.Errorf("a stolen answer: %d %v", a.status, a.header)
	}
	w.callAs(thief, "GET", "/api/auth/session", "", "").expect(t, http.StatusUnauthorized, "not_logged_in")

	// The same browser comes back to another replica: cookies know no ports.
	answer = w.atProvider(browser, back, "?return_to=/clusters")
	a := other.callAs(browser, "GET", oidcCallback, answer, "")
	if a.status != http.StatusFound || a.header.Get("Location") != "/clusters" {
		t.Fatalf("%d %v %s", a.status, a.header, a.text)
	}
	w.callAs(browser, "GET", "/api/auth/session", "", "").expect(t, http.StatusOK, "")
	if a := other.callAs(browser, "GET", oidcCallback, answer, ""); a.status < 400 {
		t.Errorf("an answer used again: %d", a.status)
	}

	// Nowhere else than here.
	for _, elsewhere := range []string{"https://evil.example", "//evil.example", `/\evil.example`, "javascript:alert(1)"} {
		visitor := w.newBrowser()
		answer := w.atProvider(visitor, back, "?return_to="+url.QueryEscape(elsewhere))
		if a := w.callAs(visitor, "GET", oidcCallback, answer, ""); a.status != http.StatusFound || a.header.Get("Location") != "/" {
			t.Errorf("%q leads to %q", elsewhere, a.header.Get("Location"))
		}
	}

	// Who has no account gets none while registration is closed; a browser is told so in a page.
	provider.Set(func(p *openidtest.Provider) { p.Person = openidtest.Person{Subject: "s2", Email: "<b>@example.com"} })
	stranger := w.newBrowser()
	if a := w.callAs(stranger, "GET", oidcCallback, w.atProvider(stranger, back, ""), ""); a.status < 400 {
		t.Errorf("an address that is none: %d", a.status)
	}
	provider.Set(func(p *openidtest.Provider) { p.Person = openidtest.Person{Subject: "s3", Email: "new@example.com"} })
	w.callAs(stranger, "GET", oidcCallback, w.atProvider(stranger, back, ""), "").expect(t, http.StatusForbidden, "registration_closed")
	page := w.callAs(stranger, "GET", oidcCallback, w.atProvider(stranger, back, ""), "", "Accept", "text/html,*/*;q=0.8")
	if page.status != http.StatusForbidden || !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") || !strings.Contains(page.text, "registration_closed") {
		t.Errorf("%d %v", page.status, page.header)
	}

	// While registration is open an account is made, without a password.
	w.open()
	made := w.newBrowser()
	if a := w.callAs(made, "GET", oidcCallback, w.atProvider(made, back, ""), ""); a.status != http.StatusFound {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := w.callAs(made, "GET", "/api/auth/session", "", ""); a.status != http.StatusOK || !strings.Contains(a.text, `"role":"user"`) {
		t.Errorf("%d %s", a.status, a.text)
	}
	w.callAs(w.newBrowser(), "POST", "/api/auth/login", "", credentials("new@example.com", "")).expect(t, http.StatusBadRequest, "field_required")
	w.callAs(w.newBrowser(), "POST", "/api/auth/login", "", credentials("new@example.com", "anything at all")).expect(t, http.StatusUnauthorized, "wrong_credentials")

	// A disabled account stays out.
	conn, err := pgx.Connect(t.Context(), w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), `update users set disabled_at = now() where email = $1`, adminEmail); err != nil {
		t.Fatal(err)
	}
	provider.Set(func(p *openidtest.Provider) {
		p.Person = openidtest.Person{Subject: "subject-of-admin", Email: adminEmail}
	})
	w.callAs(stranger, "GET", oidcCallback, w.atProvider(stranger, back, ""), "").expect(t, http.StatusForbidden, "account_disabled")

	for _, log := range []string{w.log.String(), other.log.String()} {
		values, _ := url.ParseQuery(strings.TrimPrefix(answer, "?"))
		for _, secret := range []string{values.Get("code"), values.Get("state"), openidtest.Secret} {
			if secret == "" || strings.Contains(log, secret) {
				t.Errorf("%q is empty, or in the log", secret)
			}
		}
	}
}
