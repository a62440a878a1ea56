package app_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

const (
	listedOrigin = "https://console.example.com"
	evilOrigin   = "https://evil.example"
)

// raw sends a request that need not be described.
func (w *world) raw(t *testing.T, client *http.Client, method, path, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{status: response.StatusCode, header: response.Header, text: string(text)}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json") {
		a.json(t, &a.problem)
	}
	return a
}

// What pages of other origins have a browser send with the cookie, to writes with a body, to one without, and to a read. The same
// session does all of it from the console's own pages.
func TestCrossSiteRequests(t *testing.T) {
	w := start(t, with("KUBEBYON_CORS_ALLOWED_ORIGINS", listedOrigin+",*"))
	const form, text, json = "application/x-www-form-urlencoded", "text/plain", "application/json"
	type want struct {
		status int
		code   string
	}
	created, read, gone := want{201, ""}, want{200, ""}, want{204, ""}
	origin, site, notJSON := want{403, "cross_origin"}, want{403, "cross_site"}, want{415, "json_only"}
	for _, c := range []struct {
		name                 string
		origin, fetch, kind  string
		create, logOut, read want
	}{
		// From nowhere, as curl does, and from the console itself.
		{"no browser", "", "", json, created, gone, read},
		{"our page", w.url, "same-origin", json, created, gone, read},
		{"our page in an old browser", w.url, "", json, created, gone, read},
		{"typed into the address bar", "", "none", json, created, gone, read},

		{"our page with a form", w.url, "same-origin", form, notJSON, notJSON, read},
		{"our page with JSON as text", w.url, "same-origin", text, notJSON, notJSON, read},
		{"no browser, with a form", "", "", form, notJSON, notJSON, read},
		{"no browser, with a file's form", "", "", "multipart/form-data; boundary=x", notJSON, notJSON, read},
		{"JSON in another charset", "", "", "application/json; charset=utf-7", notJSON, notJSON, read},
		{"two kinds", "", "", "text/plain, application/json", notJSON, notJSON, read},

		{"another site's form", evilOrigin, "cross-site", form, origin, origin, site},
		{"another site's JSON as text", evilOrigin, "cross-site", text, origin, origin, site},
		{"another site's JSON", evilOrigin, "cross-site", json, origin, origin, site},
		{"another site in an old browser", evilOrigin, "", json, origin, origin, read}, // SameSite=Lax sends it no cookie
		{"another site without an origin", "", "cross-site", form, origin, origin, site},
		{"a sandboxed frame", "null", "cross-site", form, origin, origin, site},
		{"a sandboxed frame with JSON", "null", "cross-site", json, origin, origin, site},
		{"a sandboxed frame in an old browser", "null", "", json, origin, origin, read},
		{"a neighbour", "https://neighbour.example.com", "same-site", json, origin, origin, read},
		{"a neighbour's form", "https://neighbour.example.com", "same-site", form, origin, origin, read},
		{"an unknown relation", evilOrigin, "sideways", json, origin, origin, read},

		{"a listed origin of the same site", listedOrigin, "same-site", json, created, gone, read},
		{"its form", listedOrigin, "same-site", form, notJSON, notJSON, read},
		{"a listed origin of another site", listedOrigin, "cross-site", json, site, site, site},
		{"its form from another site", listedOrigin, "cross-site", form, site, site, site},
		{"a listed origin, but not quite", listedOrigin + ".evil.example", "same-site", json, origin, origin, read},
		{"a listed origin over http", "http://console.example.com", "same-site", json, origin, origin, read},
		{"the star itself", "*", "same-site", json, origin, origin, read},
	} {
		headers := []string{"Content-Type", c.kind}
		if c.origin != "" {
			headers = append(headers, "Origin", c.origin)
		}
		if c.fetch != "" {
			headers = append(headers, "Sec-Fetch-Site", c.fetch)
		}
		forged := w.newBrowser()
		forged.Jar = w.browser.Jar
		check := func(what string, a answer, want want) {
			t.Helper()
			if a.status != want.status || a.problem.Code != want.code {
				t.Errorf("%s: %s: %d %q, want %d %q", c.name, what, a.status, a.problem.Code, want.status, want.code)
			}
		}
		var before, after int
		w.backend.set(func(b *backend) { before = len(b.creates) })
		check("create", w.raw(t, forged, "POST", clusters, `{"name":"demo"}`, headers...), c.create)
		w.backend.set(func(b *backend) { after = len(b.creates) })
		if (after > before) != (c.create == created) {
			t.Errorf("%s: %d clusters were made", c.name, after-before)
		}
		// One without a body, which a form can send too. It is a stranger's: the session is still needed.
		check("log out", w.raw(t, w.newBrowser(), "POST", "/api/auth/logout", "", headers...), c.logOut)
		check("read", w.raw(t, forged, "GET", clusters, "", headers[2:]...), c.read)
	}
	w.call("GET", clusters, "", "").expect(t, 200, "")
}

// The star alone trusts nobody and gives no credentials.
func TestTheStarIsNotTrusted(t *testing.T) {
	w := start(t, with("KUBEBYON_CORS_ALLOWED_ORIGINS", "*"))
	for _, fetch := range []string{"cross-site", "same-site"} {
		a := w.raw(t, w.browser, "POST", clusters, `{"name":"demo"}`, "Content-Type", "application/json", "Origin", evilOrigin, "Sec-Fetch-Site", fetch)
		a.expect(t, 403, "cross_origin")
		if a.header.Get("Access-Control-Allow-Origin") != "*" || a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%v", a.header)
		}
	}
	a := w.raw(t, w.browser, "GET", "/api/openapi.yaml", "", "Origin", evilOrigin, "Sec-Fetch-Site", "cross-site")
	if a.status != 200 || a.header.Get("Access-Control-Allow-Origin") != "*" || a.header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%d %v", a.status, a.header)
	}
	w.backend.set(func(b *backend) {
		if len(b.creates) != 0 {
			t.Error("a cluster was made")
		}
	})
}

// Preflights, and what a browser lets a page read.
func TestCORS(t *testing.T) {
	for configured, cases := range map[string][]struct{ origin, allowed, credentials string }{
		"":                  {{listedOrigin, "", ""}, {evilOrigin, "", ""}, {"null", "", ""}},
		listedOrigin:        {{listedOrigin, listedOrigin, "true"}, {evilOrigin, "", ""}, {"null", "", ""}, {"http://console.example.com", "", ""}, {listedOrigin + ":8443", "", ""}, {listedOrigin + ".evil.example", "", ""}},
		"*":                 {{listedOrigin, "*", ""}, {evilOrigin, "*", ""}, {"null", "*", ""}},
		"*," + listedOrigin: {{listedOrigin, listedOrigin, "true"}, {evilOrigin, "*", ""}, {"null", "*", ""}},
	} {
		t.Run(configured, func(t *testing.T) {
			w := start(t, with("KUBEBYON_CORS_ALLOWED_ORIGINS", configured))
			for _, c := range cases {
				shown := func(what string, a answer) {
					t.Helper()
					if got := a.header.Get("Access-Control-Allow-Origin"); got != c.allowed {
						t.Errorf("%s, %s: allowed %q, want %q", what, c.origin, got, c.allowed)
					}
					if got := a.header.Get("Access-Control-Allow-Credentials"); got != c.credentials {
						t.Errorf("%s, %s: credentials %q, want %q", what, c.origin, got, c.credentials)
					}
					if configured != "" && !slices.ContainsFunc(a.header.Values("Vary"), func(v string) bool { return strings.HasPrefix(v, "Origin") }) {
						t.Errorf("%s, %s: Vary %q", what, c.origin, a.header.Values("Vary"))
					}
				}
				before := w.raw(t, w.newBrowser(), "OPTIONS", clusters, "", "Origin", c.origin, "Access-Control-Request-Method", "POST",
					"Access-Control-Request-Headers", "authorization,content-type,idempotency-key")
				if want := map[bool]int{true: 204, false: 405}[configured != ""]; before.status != want {
					t.Errorf("%s: the preflight is answered %d", c.origin, before.status)
				}
				shown("preflight", before)
				if c.allowed != "" && (before.header.Get("Access-Control-Allow-Methods") != "POST" || before.header.Get("Access-Control-Allow-Headers") != "authorization,content-type,idempotency-key" ||
					before.header.Get("Access-Control-Max-Age") != "600") {
					t.Errorf("%v", before.header)
				}
				for _, ask := range [][]string{{"Access-Control-Request-Method", "BREW"}, {"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "kb-principal"}} {
					if a := w.raw(t, w.newBrowser(), "OPTIONS", clusters, "", append(ask, "Origin", c.origin)...); a.header.Get("Access-Control-Allow-Origin") != "" {
						t.Errorf("%s: %v is allowed", c.origin, ask)
					}
				}
				actual := w.raw(t, w.newBrowser(), "GET", clusters, "", "Origin", c.origin, "Sec-Fetch-Site", "cross-site")
				actual.expect(t, 401, "not_logged_in")
				shown("request", actual)
				if exposed := actual.header.Get("Access-Control-Expose-Headers"); c.allowed != "" {
					for _, name := range []string{"Retry-After", "Ratelimit", "Ratelimit-Policy", "Idempotency-Replayed"} {
						if !slices.Contains(strings.Split(exposed, ", "), name) {
							t.Errorf("%s is not exposed: %q", name, exposed)
						}
					}
				}
				// Pages have nothing to do with what is for machines.
				if a := w.raw(t, w.newBrowser(), "GET", "/node/join?token="+joinToken, "", "Origin", c.origin); a.header.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("the join script is shown to %s", c.origin)
				}
			}
			if a := w.raw(t, w.newBrowser(), "OPTIONS", clusters, "", "Origin", listedOrigin); a.status != 405 {
				t.Errorf("OPTIONS that is no preflight: %d", a.status)
			}
		})
	}
}

// Where a request has an Authorization header its cookie is not read, whatever the header holds.
func TestAuthorizationHidesTheCookie(t *testing.T) {
	w := start(t, with("KUBEBYON_CORS_ALLOWED_ORIGINS", listedOrigin))
	for _, value := range []string{"Bearer x", "bearer x", "Bearer", "", "Basic YTpi", "Bearer " + strings.Repeat("x", 5000), "nonsense"} {
		w.raw(t, w.browser, "GET", clusters, "", "Authorization", value).expect(t, 401, "token_invalid")
		w.raw(t, w.browser, "GET", settings, "", "Authorization", value, "Sec-Fetch-Site", "cross-site").expect(t, 401, "token_invalid")
		// It ends no session either.
		if a := w.raw(t, w.browser, "POST", "/api/auth/logout", "", "Authorization", value); a.status != 204 || a.header.Get("Set-Cookie") != "" {
			t.Errorf("%d %v", a.status, a.header)
		}
	}
	// A token is nothing that another site's page can have a browser add; a password for Basic is.
	create := func(headers ...string) answer {
		return w.raw(t, w.browser, "POST", clusters, `{"name":"demo"}`, append(headers, "Content-Type", "application/json", "Origin", evilOrigin, "Sec-Fetch-Site", "cross-site")...)
	}
	create("Authorization", "Bearer kbt_"+strings.Repeat("A", 43)).expect(t, 401, "token_invalid")
	create("Authorization", "Basic YTpi").expect(t, 403, "cross_origin")
	create("Authorization", "Basic YTpi", "Authorization", "Bearer x").expect(t, 403, "cross_origin")
	w.call("GET", clusters, "", "").expect(t, 200, "")
}

// Two session cookies: a neighbour on the same domain may have set one of them.
func TestTwoSessionCookiesCountAsNone(t *testing.T) {
	w := start(t)
	var session string
	for _, c := range w.browser.Jar.Cookies(request(t, w.url).URL) {
		session = c.Name + "=" + c.Value
	}
	stranger := w.newBrowser()
	w.raw(t, stranger, "GET", clusters, "", "Cookie", session+"; other=1").expect(t, 200, "")
	for _, cookies := range [][]string{
		{"Cookie", session + "; " + session},
		{"Cookie", session + "; kubebyon_session=planted"},
		{"Cookie", "kubebyon_session=planted; " + session},
		{"Cookie", session + "; kubebyon_session="},
		{"Cookie", session, "Cookie", "kubebyon_session=planted"},
	} {
		w.raw(t, stranger, "GET", clusters, "", cookies...).expect(t, 401, "not_logged_in")
	}
	w.call("GET", clusters, "", "").expect(t, 200, "")
}

// No route takes a parameter that it does not name; what was given is nowhere afterwards.
func TestParametersThatAreNotDescribed(t *testing.T) {
	w := start(t)
	const canary = "canarycanarycanary"
	for _, route := range served(t) {
		method, path, _ := strings.Cut(route, " ")
		for strings.Contains(path, "{") {
			before, rest, _ := strings.Cut(path, "{")
			_, rest, _ = strings.Cut(rest, "}")
			path = before + "x" + rest
		}
		for _, query := range []string{"api_token=" + canary, canary, canary + "=", "access_token=" + canary + "&limit=1", "kubebyon_session=" + canary, "TOKEN=" + canary} {
			if path == "/node/join" {
				query = "token=" + joinToken + "&" + query
			}
			a := w.raw(t, w.browser, method, path+"?"+query, "", "Accept", "application/json")
			a.expect(t, 400, "query_parameter_unknown")
			if strings.Contains(a.text+a.header.Get("Location"), canary) {
				t.Errorf("%s repeats it: %s", route, a.text)
			}
		}
		if path != "/node/join" {
			w.raw(t, w.browser, method, path+"?token="+joinToken, "").expect(t, 400, "query_parameter_unknown")
		}
	}
	// A shell hears of it in its own way.
	if a := w.raw(t, w.newBrowser(), "GET", "/node/join?token="+joinToken+"&x="+canary, ""); a.status != 200 || a.header.Get("X-KubeBYON-Code") != "query_parameter_unknown" ||
		strings.Contains(a.text, scriptCanary) || strings.Contains(a.text, canary) {
		t.Errorf("%d %v %s", a.status, a.header, a.text)
	}
	w.raw(t, w.browser, "GET", "/nowhere?token="+canary, "").expect(t, 404, "route_not_found")
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	log := w.log.String()
	if !strings.Contains(log, "code=query_parameter_unknown") {
		t.Fatalf("the log is not what this test takes it for:\n%s", log)
	}
	for _, secret := range []string{canary, joinSecret, "token="} {
		if strings.Contains(log, secret) || strings.Contains(dump(t, w.dsn), secret) {
			t.Errorf("%q is in the log or the database", secret)
		}
	}
}
