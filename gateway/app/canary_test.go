package app_test

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Every text that the API takes (in bodies and queries) and gives (in JSON), by name. One that is missing fails
// TestEveryFieldIsSecretOrOpen: say here whether it is a credential. A secret one is followed by the tests below, and may be
// in no log, span, table or audit entry.
var (
	secretTaken = words(`captcha_answer code current_password invitation new_password error error_description password second_factor state token`)
	openTaken   = words(`purpose q role captcha_id control_plane control_plane_host email expires_at join_base_url name namespace public_access_mode public_base_url scopes vcluster_name
		cluster_id since until actor action object client outcome trace_id limit access cursor iss return_to registration_mode username from host security to after`)
	secretGiven = words(`link audio image join_command recovery_codes secret token uri`) // what a captcha shows is its answer
	openGiven   = words(`access added_by added_at user_id registration_mode username from host security action actor api_endpoint architecture at captcha_id client client_address cluster_id code container_runtime control_plane control_plane_host cpu
		created_at created_by credential detail effect email ephemeral_storage expires_at external_ip field fields id internal_ip join_base_url
		kernel_version key kubelet_version kubernetes_version last_seen_at last_used_at level memory message name namespace next_cursor objects os_image
		outcome owner_id pods public_access_mode public_base_url reason registration revoked_at role roles scopes session_id since state status title token_id trace_id type
		updated_at user_agent value vcluster_name provider bind_addr kind api haproxy mode domain address last_sync deadline why`)
)

func words(text string) map[string]bool {
	found := map[string]bool{}
	for word := range strings.FieldsSeq(text) {
		found[word] = true
	}
	return found
}

func TestEveryFieldIsSecretOrOpen(t *testing.T) {
	taken, given := map[string]bool{}, map[string]bool{}
	for route, operation := range operations(t) {
		for name := range operation.takes {
			if taken[name] = true; secretTaken[name] == openTaken[name] {
				t.Errorf("%s takes %s: say in canary_test.go whether it is secret", route, name)
			}
		}
		for name := range operation.gives {
			if given[name] = true; secretGiven[name] == openGiven[name] {
				t.Errorf("%s gives %s: say in canary_test.go whether it is secret", route, name)
			}
		}
	}
	for _, c := range []struct{ said, is map[string]bool }{{secretTaken, taken}, {openTaken, taken}, {secretGiven, given}, {openGiven, given}} {
		for name := range c.said {
			if !c.is[name] {
				t.Errorf("no route has %s any more", name)
			}
		}
	}
}

// operation is a described route: its query, its body, and the names of all texts that it takes and gives.
type operation struct {
	query        []string
	body         *openapi3.Schema
	takes, gives map[string]bool
}

func operations(tb testing.TB) map[string]operation {
	tb.Helper()
	found := map[string]operation{}
	for path, item := range described(tb).Paths.Map() {
		for method, o := range item.Operations() {
			one := operation{takes: map[string]bool{}, gives: map[string]bool{}}
			for _, parameter := range append(slices.Clone(item.Parameters), o.Parameters...) {
				if parameter.Value.In == openapi3.ParameterInQuery {
					one.query = append(one.query, parameter.Value.Name)
					one.takes[parameter.Value.Name] = true
				}
			}
			if o.RequestBody != nil {
				if kind := o.RequestBody.Value.Content.Get("application/json"); kind != nil {
					one.body = kind.Schema.Value
					texts("", one.body, one.takes)
				}
			}
			for _, response := range o.Responses.Map() {
				for name, kind := range response.Value.Content {
					if strings.HasSuffix(name, "json") && kind.Schema != nil {
						texts("", kind.Schema.Value, one.gives)
					}
				}
			}
			found[method+" "+path] = one
		}
	}
	return found
}

// texts adds the names under which schema has a text, or something that may be one.
func texts(name string, schema *openapi3.Schema, into map[string]bool) {
	parts := slices.Concat(schema.AllOf, schema.AnyOf, schema.OneOf)
	if schema.Items != nil {
		parts = append(parts, schema.Items)
	}
	if schema.AdditionalProperties.Schema != nil {
		parts = append(parts, schema.AdditionalProperties.Schema)
	}
	for _, part := range parts {
		texts(name, part.Value, into)
	}
	for property, part := range schema.Properties {
		texts(property, part.Value, into)
	}
	plain := schema.Type != nil && (schema.Type.Is("object") || schema.Type.Is("array") || schema.Type.Is("boolean") || schema.Type.Is("integer") || schema.Type.Is("number"))
	if name != "" && !plain && len(parts) == 0 {
		into[name] = true
	}
}

// secrets are the values that a world's clients sent and were given.
type secrets struct {
	mu    sync.Mutex
	found map[string]string // value → where it was
}

// keep adds a value that came another way, such as a code from a mail.
func (s *secrets) keep(value, where string) {
	if len(value) < 8 {
		return // "x" is everywhere
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil {
		s.found = map[string]string{}
	}
	if s.found[value] == "" {
		s.found[value] = where // who gave it, not who sends it back
	}
}

func (s *secrets) harvest(request *http.Request, path, body string, a answer) {
	where := request.Method + " " + path
	for name, values := range request.URL.Query() {
		if secretTaken[name] {
			s.keep(values[0], where+" ?"+name)
		}
	}
	for _, cookie := range append(request.Cookies(), (&http.Response{Header: a.header}).Cookies()...) {
		s.keep(cookie.Value, where+" cookie")
	}
	if _, value, ok := strings.Cut(request.Header.Get("Authorization"), " "); ok {
		s.keep(value, where+" Authorization")
	}
	for _, side := range []struct {
		text   string
		secret map[string]bool
	}{{body, secretTaken}, {a.text, secretGiven}} {
		var value any
		if json.Unmarshal([]byte(side.text), &value) == nil {
			s.walk(value, "", where, side.secret)
		}
	}
}

func (s *secrets) walk(value any, name, where string, secret map[string]bool) {
	switch v := value.(type) {
	case map[string]any:
		for name, part := range v {
			s.walk(part, name, where, secret)
		}
	case []any:
		for _, part := range v {
			s.walk(part, name, where, secret)
		}
	case string:
		if secret[name] {
			s.keep(v, where+" "+name)
		}
	}
}

// gaveEverySecret fails unless a secret was seen of every route that gives one: those of a route that nobody used are not followed.
func (w *world) gaveEverySecret() {
	w.t.Helper()
	seen := map[string]bool{}
	for _, where := range w.secrets.found {
		seen[where] = true
	}
	for route, operation := range operations(w.t) {
		for name := range operation.gives {
			if secretGiven[name] && !seen[route+" "+name] {
				w.t.Errorf("%s has given no %s", route, name)
			}
		}
	}
}

func recordSpans(t *testing.T) *tracetest.InMemoryExporter {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	before := otel.GetTracerProvider()
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))
	otel.SetTracerProvider(provider)
	t.Cleanup(func() {
		otel.SetTracerProvider(before)
		_ = provider.Shutdown(context.Background())
	})
	return spans
}

// leakedNothing fails where a secret, plain or encoded, is in the log, a span or the database. It stops the gateway.
func (w *world) leakedNothing(spans *tracetest.InMemoryExporter, more ...string) {
	w.t.Helper()
	if err := w.stop(); err != nil {
		w.t.Error(err)
	}
	log := w.log.String()
	if !strings.Contains(log, `route="GET /node/join"`) || !strings.Contains(log, "trace_id=") {
		w.t.Fatalf("the log is not what this test takes it for:\n%s", log)
	}
	var traces strings.Builder
	for _, span := range spans.GetSpans() {
		fmt.Fprintln(&traces, span.Name, span.Attributes, span.Events, span.Links, span.Status)
	}
	if !strings.Contains(traces.String(), "GET /node/join") || !strings.Contains(traces.String(), "users") {
		w.t.Fatalf("the spans are not what this test takes them for:\n%.2000s", traces.String())
	}
	places := map[string]string{"the log": log, "the spans": traces.String(), "the database": dump(w.t, w.dsn)}
	for i, text := range more {
		places[fmt.Sprintf("answer %d", i)] = text
	}
	w.secrets.mu.Lock()
	defer w.secrets.mu.Unlock()
	all := maps.Clone(w.secrets.found)
	for _, value := range []string{adminPassword, joinSecret, joinToken, kubeCanary, scriptCanary, "canary", "token=", "PRIVATE KEY"} {
		all[value] = "the tests"
	}
	for value, from := range all {
		forms := map[string]string{
			"plain": value, "hexadecimal": hex.EncodeToString([]byte(value)), "base64": base64.RawStdEncoding.EncodeToString([]byte(value)),
		}
		if raw, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(value); err == nil && len(raw) >= 8 {
			forms["its bytes, hexadecimal"] = hex.EncodeToString(raw) // a second factor's secret
		}
		for form, encoded := range forms {
			for where, text := range places {
				if i := strings.Index(text, encoded); i >= 0 {
					w.t.Errorf("%q (%s) is in %s, %s: …%s…", value, from, where, form, text[max(0, i-150):min(len(text), i+150)])
				}
			}
		}
	}
}

// dump gives every row of every table as text.
func dump(tb testing.TB, dsn string) string {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), dsn)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	column := func(sql string) []string {
		rows, err := conn.Query(tb.Context(), sql)
		if err != nil {
			tb.Fatal(err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			tb.Fatal(err)
		}
		return texts
	}
	var all strings.Builder
	for _, table := range column(`select quote_ident(table_schema) || '.' || quote_ident(table_name) from information_schema.tables
		where table_schema not in ('pg_catalog', 'information_schema')`) {
		fmt.Fprintln(&all, table, column("select t::text from "+table+" t"))
	}
	for _, part := range []string{adminEmail, "public.audit_log", "public.sessions", "public.idempotency_keys"} {
		if !strings.Contains(all.String(), part) {
			tb.Fatalf("the dump is not what this test takes it for:\n%s", all.String())
		}
	}
	return all.String()
}

// sample makes a value that the schema allows, as far as this test needs one. Every secret text is a new one.
func sample(name string, schema *openapi3.Schema) any {
	switch {
	case secretTaken[name] && (schema.Type == nil || schema.Type.Is("string")):
		return "canary-" + rand.Text()
	case len(schema.Enum) > 0:
		return schema.Enum[0]
	case len(schema.AllOf) > 0:
		return sample(name, schema.AllOf[0].Value)
	case schema.Type == nil:
		return "demo"
	case schema.Type.Is("object"):
		object := map[string]any{}
		for property, part := range schema.Properties {
			object[property] = sample(property, part.Value)
		}
		return object
	case schema.Type.Is("array"):
		return []any{sample(name, schema.Items.Value)}
	case schema.Type.Is("boolean"):
		return true
	case schema.Type.Is("integer"), schema.Type.Is("number"):
		if schema.Min != nil {
			return *schema.Min
		}
		return 1
	case strings.HasSuffix(name, "email"):
		return "someone@example.com"
	case strings.HasSuffix(name, "_url"):
		return "https://join.example.com"
	case schema.Format == "date-time":
		return "2026-12-24T00:00:00Z"
	default:
		return "demo"
	}
}

// spoil puts the value of every secret field where it does not belong.
func spoil(value any) any {
	object, ok := value.(map[string]any)
	if !ok {
		return value
	}
	spoilt := map[string]any{}
	for name, part := range object {
		if spoilt[name] = spoil(part); secretTaken[name] {
			spoilt[name] = map[string]any{"canary-in": part}
		}
	}
	return spoilt
}

// Nothing that must stay secret is in a log, a span, a table or the audit log, whatever happens to the request: every route,
// by everybody, with credentials in every field that is for one and in many that are not.
func TestCanaries(t *testing.T) {
	spans := recordSpans(t)
	w := start(t)
	plain, stranger := w.addPlain(t, "usr_plainplainplainplain", "plain@example.com"), w.newBrowser()
	w.call("PUT", settings, "", `{"settings":{"join_base_url":"https://join.example.com"}}`)
	w.call("POST", cluster+"/join-token", clusterID, `{"ttl_seconds":60}`)
	w.call("GET", cluster+"/kubeconfig", clusterID, "")
	join := func() {
		w.call("GET", "/node/join", "?token="+joinToken, "", "Referer", w.url+"/node/join?token="+joinToken)
		w.call("GET", "/node/join", "?token="+joinToken, "", "Accept", "application/json")
		w.call("GET", "/node/join", "?token=canary-malformed", "")
		w.call("POST", "/node/join", "?token="+joinToken, "{}")
		w.call("GET", "/node/joins", "?token="+joinToken, "")
		w.call("GET", "/node//join", "?token="+joinToken, "")
		w.call("GET", "/node/join/"+joinToken, "", "")
		w.call("GET", clusters, "?token="+joinToken, "")
		w.call("GET", cluster, joinToken, "")
		w.call("DELETE", cluster+"/join-tokens/{token_id}", clusterID+" "+joinToken, "")
		w.call("GET", "/node/mirror/{name}", joinToken, "")
	}
	// What is given in several steps. The second factor stays, so that what is stored of it is looked at.
	code, recovery := w.factor()
	w.tryLogIn(adminEmail, adminPassword, `"second_factor":"`+recovery[0]+`"`).expect(t, http.StatusOK, "")
	w.clock.Add(int64(time.Minute))
	w.call("POST", secondFactor+"/recovery-codes", "", `{"password":"`+adminPassword+`","code":"`+code()+`"}`).expect(t, http.StatusOK, "")
	sink := w.open()
	w.callAs(stranger, "POST", register, "", withCode(newEmail, w.code(sink, newEmail, "register"), newPassword)).expect(t, http.StatusCreated, "")
	w.callAs(stranger, "POST", reset, "", withCode(newEmail, w.code(sink, newEmail, "reset_password"), "canary-newer-password")).expect(t, http.StatusNoContent, "")
	w.code(sink, adminEmail, "reset_password") // which stays, so that what is stored of it is looked at
	invited := w.call("POST", invitations, "", `{"email":"invited@example.com","role":"user"}`)
	_, invitation, _ := strings.Cut(strings.Trim(invited.text, "\"}\n"), "#invitation=")
	w.secrets.keep(invitation, "an invitation's link")
	value, _ := w.makeToken(w.browser, "deploy", `"read"`)
	for _, header := range []string{"Bearer " + value, "Bearer  " + value, "Basic " + value, value} {
		w.callAs(stranger, "GET", clusters, "", "", "Authorization", header)
		w.callAs(stranger, "POST", apiTokens, "", `{"name":"more"}`, "Authorization", header)
	}
	w.call("DELETE", apiToken, value, "").expect(t, http.StatusNotFound, "api_token_not_found")
	// What may be given once more is stored until then.
	for _, replayed := range []string{"", "true"} {
		for _, c := range []struct{ path, fill, body string }{
			{cluster + "/join-token", clusterID, `{}`},
			{apiTokens, "", `{"name":"kept","scopes":["read"],"ttl_seconds":3600}`},
			{invitations, "", `{"email":"kept@example.com","role":"user"}`},
		} {
			if a := w.call("POST", c.path, c.fill, c.body, "Idempotency-Key", "canary-key-"+c.path); a.status != http.StatusCreated || a.header.Get("Idempotency-Replayed") != replayed {
				t.Errorf("%s: %d %v %s", c.path, a.status, a.header, a.text)
			}
		}
	}
	join()
	for _, kind := range []fault.Kind{fault.Internal, fault.Unavailable} {
		w.backend.set(func(b *backend) { b.err = newFault(kind) })
		join()
	}
	w.backend.set(func(b *backend) { b.err = nil })

	known := operations(t)
	routes := served(t)
	// What may end a session comes last.
	ends := func(route string) bool {
		return strings.Contains(route, " /api/auth/") && !strings.HasPrefix(route, "GET ")
	}
	rank := func(route string) int {
		switch {
		case route == "DELETE "+sessions, route == "POST /api/auth/logout":
			return 2
		case ends(route):
			return 1
		default:
			return 0
		}
	}
	slices.SortStableFunc(routes, func(a, b string) int { return rank(a) - rank(b) })
	export, asAdmin := "", 0
	for _, route := range routes {
		operation, ok := known[route]
		if !ok {
			t.Fatalf("%s is not described", route)
		}
		if ends(route) && export == "" {
			export = w.call("GET", auditLog+"/export", "", "").text
		}
		method, path, _ := strings.Cut(route, " ")
		body := ""
		encode := func(value any) string {
			text, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		if operation.body != nil {
			body = encode(sample("", operation.body))
		}
		ids, canaries := []string{}, []string{}
		for segment := range strings.SplitSeq(path, "/") {
			if name, isName := strings.CutPrefix(segment, "{"); isName {
				id := map[string]string{"cluster_id}": clusterID, "token_id}": tokenID, "name}": "absent"}[name]
				if id == "" {
					id = "zz_aaaaaaaaaaaaaaaaaaaa"
				}
				ids, canaries = append(ids, id), append(canaries, "canary-"+rand.Text())
			}
		}
		var asked []string
		for _, name := range operation.query {
			switch {
			case path == "/node/join":
				asked = append(asked, name+"="+joinToken)
			case secretTaken[name]:
				asked = append(asked, name+"=canary-"+rand.Text())
			case name == "cluster_id":
				asked = append(asked, name+"="+clusterID)
			}
		}
		query := "?" + strings.Join(asked, "&")
		fill := strings.Join(append(ids, query), " ")
		for _, client := range []*http.Client{stranger, plain, w.browser} {
			if a := w.callAs(client, method, path, fill, body); client == w.browser && a.status < 400 && strings.HasPrefix(path, "/api/admin/") {
				asAdmin++
			}
			if client == plain {
				continue
			}
			if operation.body != nil {
				object, _ := sample("", operation.body).(map[string]any)
				w.callAs(client, method, path, fill, encode(spoil(object)))
				w.callAs(client, method, path, fill, encode(object)+"canary-"+rand.Text())
				w.callAs(client, method, path, fill, encode(object), "Content-Type", "text/plain")
				object["canary-"+rand.Text()] = "canary-" + rand.Text()
				w.callAs(client, method, path, fill, encode(object))
			}
			if method != http.MethodGet {
				w.callAs(client, method, path, fill, "canary-"+rand.Text())
			}
			w.callAs(client, method, path, strings.Join(append(ids, query+"&canary="+rand.Text()+"&token="+joinToken), " "), body)
			if len(ids) > 0 {
				w.callAs(client, method, path, strings.Join(append(canaries, query), " "), body)
			}
			w.callAs(client, method, path, fill, body, "Idempotency-Key", "canary-"+rand.Text())
			w.callAs(client, method, path, fill, body, "Idempotency-Key", "canary "+rand.Text())
			w.callAs(client, method, path, fill, body, "Authorization", "Bearer kbt_canary-"+rand.Text())
			w.callAs(client, method, path, fill, body, "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("canary:"+rand.Text())))
			w.callAs(client, method, path, fill, body, "X-Forwarded-For", "canary", "User-Agent", "canary", "Origin", "https://canary.example.com",
				"Traceparent", "canary", "Accept", "application/json, canary/canary")
		}
		anonymous := &http.Client{Transport: stranger.Transport}
		w.callAs(anonymous, method, path, fill, body, "Cookie", "kubebyon_session=canary-"+rand.Text()+rand.Text()[:10])
	}
	if asAdmin == 0 || !strings.Contains(export, `"join_token:abcdef"`) || !strings.Contains(export, `"outcome":"refused"`) {
		t.Errorf("it is not as an administrator that this was tried (%d): %.300s", asAdmin, export)
	}
	if n := len(w.secrets.found); n < len(routes) {
		t.Errorf("only %d secrets were tried", n)
	}
	w.gaveEverySecret()
	w.leakedNothing(spans, export)
}
