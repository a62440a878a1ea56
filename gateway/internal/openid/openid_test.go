package openid_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kubebyon/kubebyon/gateway/internal/openid"
	"github.com/kubebyon/kubebyon/gateway/internal/openid/openidtest"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

const redirectURI = "https://kubebyon.example.com/api/auth/oidc/callback"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a provider and a client of it.
type world struct {
	t        *testing.T
	provider *openidtest.Provider
	client   *openid.Client
	mu       sync.Mutex
	later    time.Duration // how much the client's clock is ahead
}

func start(t *testing.T, change ...func(*openid.Options)) *world {
	t.Helper()
	w := &world{t: t, provider: openidtest.Start(t)}
	w.provider.RedirectURIs = []string{redirectURI}
	o := openid.Options{Issuer: w.provider.URL, ClientID: openidtest.ClientID, Secret: openidtest.Secret, Name: "Test", Now: func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return time.Now().Add(w.later)
	}, Patience: 20 * time.Second}
	for _, c := range change {
		c(&o)
	}
	w.client = openid.New(o)
	t.Cleanup(w.client.Close)
	return w
}

func (w *world) wait(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.later += d
}

// visit is a browser at the provider: it follows redirects until one leads back, and gives what the provider answers.
func (w *world) visit(address string) url.Values {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for range 5 {
		response, err := client.Get(address)
		if err != nil {
			w.t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		next, err := response.Location()
		if err != nil {
			w.t.Fatalf("the provider answered %d: %s", response.StatusCode, text)
		}
		if strings.HasPrefix(next.String(), redirectURI+"?") {
			return next.Query()
		}
		address = next.String()
	}
	w.t.Fatal("the provider sends people round and round")
	return nil
}

func answer(v url.Values) openid.Answer {
	return openid.Answer{Code: v.Get("code"), State: v.Get("state"), Issuer: v.Get("iss"), Error: v.Get("error")}
}

func (w *world) begin() (address, cookie string) {
	w.t.Helper()
	address, cookie, err := w.client.Begin(w.t.Context(), redirectURI, "/clusters?x=1")
	if err != nil {
		w.t.Fatal(err)
	}
	return address, cookie
}

// logIn does it all.
func (w *world) logIn() (openid.Person, error) {
	w.t.Helper()
	address, cookie := w.begin()
	person, returnTo, err := w.client.Finish(w.t.Context(), redirectURI, cookie, answer(w.visit(address)))
	if err == nil && returnTo != "/clusters?x=1" {
		w.t.Errorf("it returns to %q", returnTo)
	}
	return person, err
}

func (w *world) expect(what string, err error, kind fault.Kind, code string) {
	w.t.Helper()
	if f := fault.From(err); err == nil || f.Kind != kind || f.Code != code {
		w.t.Errorf("%s: %v, want %s %s", what, err, kind, code)
	}
}

func TestLogIn(t *testing.T) {
	w := start(t)
	address, _ := w.begin()
	asked, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := asked.Query()
	if q.Get("response_type") != "code" || q.Get("scope") != "openid email profile" || q.Get("code_challenge_method") != "S256" ||
		len(q.Get("code_challenge")) != 43 || len(q.Get("state")) != 43 || len(q.Get("nonce")) != 43 || q.Get("redirect_uri") != redirectURI {
		t.Errorf("asked with %v", q)
	}
	want := openid.Person{Issuer: w.provider.URL, Subject: "subject-1", Email: "person@example.com"}
	w.provider.Set(func(p *openidtest.Provider) { p.Person.Email = "Person@Example.com" })
	if got, err := w.logIn(); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	w.provider.Set(func(p *openidtest.Provider) { p.InfoOnly = true })
	if got, err := w.logIn(); err != nil || got != want || !slices.Contains(w.provider.Asked(), "/userinfo") {
		t.Errorf("an address in the user info alone: %+v, %v", got, err)
	}
	discovered := 0
	for _, path := range w.provider.Asked() {
		if strings.HasPrefix(path, "/.well-known/") {
			discovered++
		}
	}
	if discovered != 1 {
		t.Errorf("discovered %d times", discovered)
	}
}

func TestKeysRotate(t *testing.T) {
	w := start(t)
	for range 3 {
		if _, err := w.logIn(); err != nil {
			t.Fatal(err)
		}
		w.provider.Rotate(t)
	}
}

// What an attacker may change between the provider and us, and what the provider itself may have wrong.
func TestForgedTokens(t *testing.T) {
	w := start(t)
	stranger := openidtest.Start(t)
	strangers := ""
	stranger.Set(func(p *openidtest.Provider) {
		p.RedirectURIs = []string{redirectURI}
		p.Forge = func(claims map[string]any, k openidtest.Key) string {
			claims["iss"] = w.provider.URL
			strangers = k.Sign(claims)
			return strangers
		}
	})
	unsigned := func(header string, claims map[string]any) string {
		body, _ := json.Marshal(claims)
		return base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString(body)
	}
	hs256 := func(claims map[string]any, key []byte) string {
		text := unsigned(`{"alg":"HS256","kid":"key-1"}`, claims)
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	set := func(name string, value any) func(map[string]any, openidtest.Key) string {
		return func(claims map[string]any, k openidtest.Key) string {
			if claims[name] = value; value == nil {
				delete(claims, name)
			}
			return k.Sign(claims)
		}
	}
	for what, c := range map[string]struct {
		forge func(claims map[string]any, k openidtest.Key) string
		kind  fault.Kind
		code  string
		why   string
	}{
		"another audience": {set("aud", "another-client"), fault.Unauthenticated, "openid_token_invalid", "expected audience"},
		"no audience":      {set("aud", nil), fault.Unauthenticated, "openid_token_invalid", "expected audience"},
		"two audiences without azp": {func(c map[string]any, k openidtest.Key) string {
			c["aud"] = []string{openidtest.ClientID, "x"}
			delete(c, "azp")
			return k.Sign(c)
		}, fault.Unauthenticated, "openid_token_invalid", "azp"},
		"another party":                {set("azp", "another-client"), fault.Unauthenticated, "openid_token_invalid", "azp"},
		"another issuer":               {set("iss", "https://evil.example.com"), fault.Unauthenticated, "openid_token_invalid", "different provider"},
		"another nonce":                {set("nonce", "x"), fault.Unauthenticated, "openid_token_invalid", "nonce"},
		"no nonce":                     {set("nonce", nil), fault.Unauthenticated, "openid_token_invalid", "nonce"},
		"expired":                      {set("exp", time.Now().Add(-time.Minute).Unix()), fault.Unauthenticated, "openid_token_invalid", "expired"},
		"no expiry":                    {set("exp", nil), fault.Unauthenticated, "openid_token_invalid", "expired"},
		"not yet":                      {set("nbf", time.Now().Add(time.Hour).Unix()), fault.Unauthenticated, "openid_token_invalid", "before the nbf"},
		"no subject":                   {set("sub", nil), fault.Unauthenticated, "openid_token_invalid", "subject"},
		"a subject of another form":    {set("sub", "a\x00b"), fault.Unauthenticated, "openid_token_invalid", "subject"},
		"a subject without an end":     {set("sub", strings.Repeat("x", 256)), fault.Unauthenticated, "openid_token_invalid", "subject"},
		"of another access token":      {set("at_hash", "eHh4eHh4eHh4eHh4eHh4eA"), fault.Unauthenticated, "openid_token_invalid", "at_hash"},
		"alg none":                     {func(c map[string]any, _ openidtest.Key) string { return unsigned(`{"alg":"none"}`, c) + "." }, fault.Unauthenticated, "openid_token_invalid", "unexpected signature algorithm"},
		"HS256 by the client's secret": {func(c map[string]any, _ openidtest.Key) string { return hs256(c, []byte(openidtest.Secret)) }, fault.Unauthenticated, "openid_token_invalid", "unexpected signature algorithm"},
		"HS256 by the public key": {func(c map[string]any, k openidtest.Key) string {
			der, _ := x509.MarshalPKIXPublicKey(k.Private.Public())
			return hs256(c, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
		}, fault.Unauthenticated, "openid_token_invalid", "unexpected signature algorithm"},
		"another signature": {func(c map[string]any, k openidtest.Key) string {
			signed := k.Sign(c)
			c["sub"] = "somebody-else"
			body, _, _ := strings.Cut(k.Sign(c)[strings.Index(signed, ".")+1:], ".")
			parts := strings.Split(signed, ".")
			return parts[0] + "." + body + "." + parts[2]
		}, fault.Unauthenticated, "openid_token_invalid", "failed to verify signature"},
		"another provider's key":   {func(map[string]any, openidtest.Key) string { return strangers }, fault.Unauthenticated, "openid_token_invalid", "failed to verify signature"},
		"no token":                 {func(map[string]any, openidtest.Key) string { return "" }, fault.Unauthenticated, "openid_token_invalid", "no ID token"},
		"nonsense":                 {func(map[string]any, openidtest.Key) string { return "a.b.c" }, fault.Unauthenticated, "openid_token_invalid", "malformed jwt"},
		"an unverified address":    {set("email_verified", false), fault.Forbidden, "openid_email_unverified", ""},
		"unverified in words":      {set("email_verified", "false"), fault.Forbidden, "openid_email_unverified", ""},
		"verified or not":          {set("email_verified", nil), fault.Forbidden, "openid_email_unverified", ""},
		"verified as a number":     {set("email_verified", 1), fault.Forbidden, "openid_email_unverified", ""},
		"a look-alike address":     {set("email", "pеrson@example.com"), fault.Forbidden, "openid_email_invalid", ""},
		"an address with a header": {set("email", "person@example.com\r\nBcc: x@example.com"), fault.Forbidden, "openid_email_invalid", ""},
		"an address as a list":     {set("email", []string{"person@example.com"}), fault.Unauthenticated, "openid_token_invalid", "another type"},
	} {
		if what == "another provider's key" { // a real token of theirs, but for the issuer that it claims
			foreign := &world{t: t, provider: stranger, client: openid.New(openid.Options{Issuer: stranger.URL, ClientID: openidtest.ClientID, Secret: openidtest.Secret, Now: time.Now})}
			_, _ = foreign.logIn()
			foreign.client.Close()
			if strangers == "" {
				t.Fatal("the other provider made no token")
			}
		}
		w.provider.Set(func(p *openidtest.Provider) { p.Forge = c.forge })
		_, err := w.logIn()
		w.expect(what, err, c.kind, c.code)
		if !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: refused for another reason: %v", what, err)
		}
	}
	for what, forge := range map[string]func(map[string]any, openidtest.Key) string{
		"untouched":         set("x", 1),
		"verified in words": set("email_verified", "true"),
		"two audiences with an azp": func(c map[string]any, k openidtest.Key) string {
			c["aud"], c["azp"] = []string{openidtest.ClientID, "x"}, openidtest.ClientID
			return k.Sign(c)
		},
	} {
		w.provider.Set(func(p *openidtest.Provider) { p.Forge = forge })
		if _, err := w.logIn(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAnswers(t *testing.T) {
	w := start(t)
	address, cookie := w.begin()
	back := answer(w.visit(address))
	otherAddress, otherCookie := w.begin()
	other := answer(w.visit(otherAddress))
	finish := func(cookie string, a openid.Answer) error {
		_, _, err := w.client.Finish(t.Context(), redirectURI, cookie, a)
		return err
	}
	tokens := func() (n int) {
		for _, path := range w.provider.Asked() {
			if path == "/oauth/token" {
				n++
			}
		}
		return n
	}
	elsewhere := strings.Split(cookie, ".")
	elsewhere[2] = base64.RawURLEncoding.EncodeToString([]byte("/elsewhere"))
	for what, c := range map[string]struct {
		cookie string
		answer openid.Answer
	}{
		"no cookie":                    {"", back},
		"another browser's cookie":     {otherCookie, back},
		"another state":                {cookie, openid.Answer{Code: back.Code, State: other.State}},
		"no state":                     {cookie, openid.Answer{Code: back.Code}},
		"a cookie that goes elsewhere": {strings.Join(elsewhere, "."), back},
		"a cookie that is none":        {"x.y.z", back},
		"an error without a state":     {cookie, openid.Answer{Error: "access_denied"}},
	} {
		w.expect(what, finish(c.cookie, c.answer), fault.Invalid, "openid_state_wrong")
	}
	w.expect("another provider", finish(cookie, openid.Answer{Code: back.Code, State: back.State, Issuer: "https://evil.example.com"}), fault.Invalid, "openid_issuer_wrong")
	w.expect("no code", finish(cookie, openid.Answer{State: back.State}), fault.Invalid, "openid_code_missing")
	w.expect("a long code", finish(cookie, openid.Answer{State: back.State, Code: strings.Repeat("x", 5000)}), fault.Invalid, "openid_code_missing")
	if n := tokens(); n != 0 {
		t.Errorf("the provider was asked %d times for tokens of what should have been refused before", n)
	}
	// Somebody puts the code of a log-in of theirs into a victim's: the verifier is another one.
	w.expect("another log-in's code", finish(cookie, openid.Answer{Code: other.Code, State: back.State}), fault.Invalid, "openid_code_refused")
	w.expect("a code of nobody's", finish(cookie, openid.Answer{Code: "nobodys", State: back.State}), fault.Invalid, "openid_code_refused")
	if _, _, err := w.client.Finish(t.Context(), "https://elsewhere.example.com/api/auth/oidc/callback", cookie, back); fault.From(err).Code != "openid_code_refused" {
		t.Errorf("another redirect URI: %v", err)
	}
	if err := finish(cookie, openid.Answer{Code: back.Code, State: back.State, Issuer: w.provider.URL}); err != nil {
		t.Errorf("the provider itself, by name: %v", err)
	}
	w.expect("a used code", finish(cookie, back), fault.Invalid, "openid_code_refused")

	address, cookie = w.begin()
	back = answer(w.visit(address))
	w.wait(openid.FlowLife)
	w.expect("too late", finish(cookie, back), fault.Invalid, "openid_state_wrong")
}

// The provider itself insists on what we send: without the verifier a stolen code is worth nothing.
func TestCodeWithoutVerifier(t *testing.T) {
	w := start(t)
	address, _ := w.begin()
	code := w.visit(address).Get("code")
	for _, verifier := range []string{"", strings.Repeat("x", 43)} {
		form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {redirectURI}}
		if verifier != "" {
			form.Set("code_verifier", verifier)
		}
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, w.provider.URL+"/oauth/token", strings.NewReader(form.Encode()))
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.SetBasicAuth(openidtest.ClientID, openidtest.Secret)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusBadRequest || strings.Contains(string(text), "id_token") {
			t.Errorf("verifier %q: %d %s", verifier, response.StatusCode, text)
		}
	}
}

func TestProviderNamesItself(t *testing.T) {
	w := start(t)
	w.provider.Set(func(p *openidtest.Provider) {
		p.Describe = func(d map[string]any) { d["authorization_response_iss_parameter_supported"] = true }
	})
	_, err := w.logIn() // the provider does not do what it says
	w.expect("no iss where it is promised", err, fault.Invalid, "openid_issuer_wrong")
	address, cookie := w.begin()
	back := answer(w.visit(address))
	back.Issuer = w.provider.URL
	if _, _, err := w.client.Finish(t.Context(), redirectURI, cookie, back); err != nil {
		t.Error(err)
	}
}

func TestProviderRefuses(t *testing.T) {
	w := start(t)
	for code, want := range map[string]struct {
		kind fault.Kind
		code string
	}{
		"access_denied": {fault.Forbidden, "openid_denied"}, "login_required": {fault.Forbidden, "openid_denied"},
		"invalid_scope": {fault.Forbidden, "openid_refused"}, "<script>canary": {fault.Forbidden, "openid_refused"},
		"server_error": {fault.Unavailable, "openid_unavailable"},
	} {
		w.provider.Set(func(p *openidtest.Provider) { p.Refuse = code })
		_, err := w.logIn()
		w.expect(code, err, want.kind, want.code)
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the provider's own words are repeated: %v", code, err)
		}
	}
}

func TestWrongSecret(t *testing.T) {
	w := start(t, func(o *openid.Options) { o.Secret = telemetry.Secret("another-one") })
	_, err := w.logIn()
	w.expect("a wrong secret", err, fault.Unavailable, "openid_client_refused")
}

func TestProviderAway(t *testing.T) {
	w := start(t)
	begin := func() error {
		_, _, err := w.client.Begin(t.Context(), redirectURI, "/")
		return err
	}
	w.provider.Stop()
	w.expect("at first", begin(), fault.Unavailable, "openid_unavailable")
	w.provider.Restart(t)
	w.expect("within the pause", begin(), fault.Unavailable, "openid_unavailable")
	w.wait(time.Second)
	address, cookie := w.begin()
	back := answer(w.visit(address))
	w.provider.Stop()
	_, _, err := w.client.Finish(t.Context(), redirectURI, cookie, back)
	w.expect("at the exchange", err, fault.Unavailable, "openid_unavailable")
	if strings.Contains(err.Error(), back.Code) || strings.Contains(err.Error(), back.State) {
		t.Errorf("the error repeats the answer: %v", err)
	}
	w.wait(time.Hour) // what is known is old now, and better than nothing
	if err := begin(); err != nil {
		t.Errorf("away, but known: %v", err)
	}
	w.provider.Restart(t)
	if _, err := w.logIn(); err != nil {
		t.Errorf("back: %v", err)
	}
}

// A provider that takes every connection and answers nothing, or without an end, holds nobody for longer than the patience.
func TestProviderHangs(t *testing.T) {
	w := start(t, func(o *openid.Options) { o.Patience = 300 * time.Millisecond })
	hang := ""
	w.provider.Set(func(p *openidtest.Provider) {
		p.Answer = func(_ http.ResponseWriter, r *http.Request) bool {
			var here bool
			w.provider.Set(func(*openidtest.Provider) { here = hang != "" && strings.HasPrefix(r.URL.Path, hang) })
			if here {
				_, _ = io.Copy(io.Discard, r.Body) // else the server does not see the client leave
				<-r.Context().Done()
			}
			return here
		}
	})
	at := func(path string) { w.provider.Set(func(*openidtest.Provider) { hang = path }) }
	at("/.well-known")
	_, _, err := w.client.Begin(t.Context(), redirectURI, "/")
	w.expect("at discovery", err, fault.Unavailable, "openid_unavailable")
	w.wait(time.Second)
	for _, path := range []string{"/oauth/token", "/keys", "/userinfo"} {
		w.provider.Set(func(p *openidtest.Provider) { p.InfoOnly = path == "/userinfo" })
		at("")
		address, cookie := w.begin()
		back := answer(w.visit(address))
		at(path)
		_, _, err := w.client.Finish(t.Context(), redirectURI, cookie, back)
		w.expect(path, err, fault.Unavailable, "openid_unavailable")
	}
}

func TestProviderSaysTooMuch(t *testing.T) {
	for _, path := range []string{"/.well-known", "/oauth/token", "/keys", "/userinfo"} {
		w := start(t)
		w.provider.Set(func(p *openidtest.Provider) { p.InfoOnly = path == "/userinfo" })
		address, cookie := w.begin()
		back := answer(w.visit(address))
		w.provider.Set(func(p *openidtest.Provider) {
			p.Answer = func(out http.ResponseWriter, r *http.Request) bool {
				if !strings.HasPrefix(r.URL.Path, path) {
					return false
				}
				out.Header().Set("Content-Type", "application/json")
				for range 10_000 { // 10 GB, where the reader takes them
					if _, err := out.Write([]byte(strings.Repeat(" ", 1<<20))); err != nil {
						break
					}
				}
				return true
			}
		})
		if path == "/.well-known" {
			fresh := openid.New(openid.Options{Issuer: w.provider.URL, ClientID: openidtest.ClientID, Secret: openidtest.Secret, Now: time.Now})
			_, _, err := fresh.Begin(t.Context(), redirectURI, "/")
			w.expect(path, err, fault.Unavailable, "openid_unavailable")
			fresh.Close()
			continue
		}
		_, _, err := w.client.Finish(t.Context(), redirectURI, cookie, back)
		w.expect(path, err, fault.Unavailable, "openid_unavailable")
	}
}

// The client's secret and a code go nowhere but to the address that the description names over https.
func TestDescriptionLeadsAstray(t *testing.T) {
	for what, describe := range map[string]func(map[string]any){
		"another issuer":   func(d map[string]any) { d["issuer"] = "https://evil.example.com" },
		"tokens in clear":  func(d map[string]any) { d["token_endpoint"] = "http://evil.example.com/token" },
		"keys in clear":    func(d map[string]any) { d["jwks_uri"] = "http://evil.example.com/keys" },
		"users in clear":   func(d map[string]any) { d["userinfo_endpoint"] = "http://evil.example.com/me" },
		"a page as script": func(d map[string]any) { d["authorization_endpoint"] = "javascript:alert(1)" },
		"no tokens":        func(d map[string]any) { delete(d, "token_endpoint") },
		"a list":           func(d map[string]any) { d["token_endpoint_auth_methods_supported"] = "client_secret_basic" },
	} {
		w := start(t)
		w.provider.Set(func(p *openidtest.Provider) { p.Describe = describe })
		_, _, err := w.client.Begin(t.Context(), redirectURI, "/")
		w.expect(what, err, fault.Unavailable, "openid_unavailable")
	}
	w := start(t)
	address, cookie := w.begin()
	back := answer(w.visit(address))
	elsewhere := openidtest.Start(t)
	w.provider.Set(func(p *openidtest.Provider) {
		p.Answer = func(out http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/oauth/token" {
				return false
			}
			http.Redirect(out, r, elsewhere.URL+"/oauth/token", http.StatusTemporaryRedirect)
			return true
		}
	})
	if _, _, err := w.client.Finish(t.Context(), redirectURI, cookie, back); err == nil || len(elsewhere.Asked()) != 0 {
		t.Errorf("a redirect was followed: %v, %v", elsewhere.Asked(), err)
	}
}

// Whoever sends another person's user info gets nobody's account.
func TestUserInfoOfAnother(t *testing.T) {
	w := start(t)
	w.provider.Set(func(p *openidtest.Provider) {
		p.InfoOnly = true
		p.Answer = func(out http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/userinfo" {
				return false
			}
			out.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(out, `{"sub":"somebody-else","email":"admin@example.com","email_verified":true}`)
			return true
		}
	})
	_, err := w.logIn()
	w.expect("another's user info", err, fault.Unauthenticated, "openid_token_invalid")
}
