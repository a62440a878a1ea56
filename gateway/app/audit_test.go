package app_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kubebyon/kubebyon/gateway/internal/audit"
	"github.com/kubebyon/kubebyon/gateway/internal/httpapi"
	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	store "github.com/kubebyon/kubebyon/gateway/internal/postgres"
	"github.com/kubebyon/kubebyon/gateway/internal/postgres/migrations"
	wishes "github.com/kubebyon/kubebyon/gateway/internal/settings"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

// audited gives the page of the audit log for a query, newest first.
func (w *world) audited(query string) (events []audit.Event, next string) {
	w.t.Helper()
	a := w.call("GET", auditLog, query, "")
	var body struct {
		Events     []audit.Event `json:"events"`
		NextCursor string        `json:"next_cursor"`
	}
	if a.status != http.StatusOK {
		w.t.Fatalf("%d %s", a.status, a.text)
	}
	a.json(w.t, &body)
	return body.Events, body.NextCursor
}

// addPlain makes an account that is no administrator, with adminPassword, and logs it in.
func (w *world) addPlain(t *testing.T, id, email string) *http.Client {
	t.Helper()
	w.execute(t, `insert into users (id, email, password_hash, role) select $1, $2, password_hash, 'user' from users where email = $3`, id, email, adminEmail)
	browser := w.newBrowser()
	w.callAs(browser, "POST", "/api/auth/login", "", `{"email":"`+email+`","password":"`+adminPassword+`"}`).expect(t, http.StatusOK, "")
	return browser
}

func (w *world) execute(t *testing.T, sql string, values ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), sql, values...); err != nil {
		t.Fatal(err)
	}
}

// What is changed has a name in the audit log, and each name belongs to one route.
func TestEveryWriteIsAudited(t *testing.T) {
	owner := map[string]string{}
	for _, r := range httpapi.New(httpapi.Options{Log: slog.New(slog.DiscardHandler)}).Routes() {
		if r.Action == "" && r.Method != http.MethodGet {
			t.Errorf("%s %s is not audited", r.Method, r.Path)
		}
		if r.Action != "" && owner[r.Action] != "" {
			t.Errorf("%s %s and %s share %s", r.Method, r.Path, owner[r.Action], r.Action)
		}
		owner[r.Action] = r.Method + " " + r.Path
	}
	for _, credential := range []string{"kubeconfig.download", "join_script.download", "audit.export"} {
		if owner[credential] == "" {
			t.Errorf("nothing is %s", credential)
		}
	}
}

// Each entry is there when its answer is, and says what the answer said.
func TestAuditEntries(t *testing.T) {
	w := start(t)
	const plainID, unknownCluster = "usr_plainplainplainplain", "cl_zzzzzzzzzzzzzzzzzzzz"
	plain, stranger := w.addPlain(t, plainID, "plain@example.com"), w.newBrowser()
	var session struct{ User struct{ ID string } }
	w.call("GET", "/api/auth/session", "", "").json(t, &session)
	adminID := session.User.ID
	if events, _ := w.audited("?action=session.open"); len(events) != 2 || events[0].Actor != plainID || events[1].Actor != adminID ||
		!slices.Equal(events[0].Objects, []string{"email:plain@example.com"}) {
		t.Errorf("log-ins: %+v", events)
	}
	fail := func(err error) func() { return func() { w.backend.set(func(b *backend) { b.err = err }) } }
	logIn := func(email string) string { return `{"email":"` + email + `","password":"canary-wrong-password"}` }
	none := []string{}
	for _, c := range []struct {
		name               string
		before             func()
		client             *http.Client
		method, path, fill string
		body               string
		headers            []string
		want               *audit.Event
	}{
		{"a wrong password", nil, stranger, "POST", "/api/auth/login", "", logIn(" Admin@KubeBYON.local"), nil,
			&audit.Event{Action: "session.open", Outcome: audit.Refused, Status: 401, Code: "wrong_credentials", Objects: []string{"email:admin@kubebyon.local"}}},
		{"an unknown address", nil, stranger, "POST", "/api/auth/login", "", logIn("nobody@example.com"), nil,
			&audit.Event{Action: "session.open", Outcome: audit.Refused, Status: 401, Code: "wrong_credentials", Objects: []string{"email:nobody@example.com"}}},
		{"a password for an address", nil, stranger, "POST", "/api/auth/login", "", logIn("canary-p@ssword-7"), nil,
			&audit.Event{Action: "session.open", Outcome: audit.Refused, Status: 401, Code: "wrong_credentials", Objects: none}},
		{"no JSON", nil, stranger, "POST", "/api/auth/login", "", "canary", nil,
			&audit.Event{Action: "session.open", Outcome: audit.Refused, Status: 400, Code: "invalid_json", Objects: none}},
		{"another site", nil, w.browser, "POST", "/api/auth/logout", "", "", []string{"Sec-Fetch-Site", "cross-site"},
			&audit.Event{Action: "session.close", Outcome: audit.Refused, Status: 403, Code: "cross_origin", Objects: none}},
		{"a stranger", nil, stranger, "DELETE", cluster, clusterID, "", nil,
			&audit.Event{Action: "cluster.delete", Outcome: audit.Refused, Status: 401, Code: "not_logged_in", Objects: []string{clusterID}}},
		{"no administrator", nil, plain, "PUT", settings, "", `{"settings":{}}`, nil,
			&audit.Event{Actor: plainID, Action: "settings.change", Outcome: audit.Refused, Status: 403, Code: "admin_only", Objects: none}},
		{"settings", nil, w.browser, "PUT", settings, "", `{"settings":{"join_base_url":"https://canary.example.com"}}`, nil,
			&audit.Event{Actor: adminID, Action: "settings.change", Outcome: audit.OK, Status: 200, Objects: none, Detail: audit.Detail{Fields: []string{"join_base_url"}}}},
		{"wrong settings", nil, w.browser, "PUT", settings, "", `{"settings":{"public_base_url":"canary"}}`, nil,
			&audit.Event{Actor: adminID, Action: "settings.change", Outcome: audit.Refused, Status: 400, Code: "url_invalid", Objects: none, Detail: audit.Detail{Fields: []string{"public_base_url"}}}},
		{"a new cluster", nil, plain, "POST", clusters, "", `{"name":"demo"}`, nil,
			&audit.Event{Actor: plainID, Action: "cluster.create", Outcome: audit.OK, Status: 201, Objects: []string{clusterID}}},
		{"a changed cluster", nil, plain, "PATCH", cluster, clusterID, `{"name":"other"}`, nil,
			&audit.Event{Actor: plainID, Action: "cluster.change", Outcome: audit.OK, Status: 200, Objects: []string{clusterID}, Detail: audit.Detail{Fields: []string{"name"}}}},
		{"a malformed id", nil, plain, "DELETE", cluster, "canary", "", nil,
			&audit.Event{Actor: plainID, Action: "cluster.delete", Outcome: audit.Refused, Status: 404, Code: "cluster_not_found", Objects: none}},
		{"a token", nil, plain, "POST", cluster + "/join-token", clusterID, "", nil,
			&audit.Event{Actor: plainID, Action: "join_token.create", Outcome: audit.OK, Status: 201, Objects: []string{clusterID, tokenID}}},
		{"a token's end", nil, plain, "DELETE", cluster + "/join-tokens/{token_id}", clusterID + " " + tokenID, "", nil,
			&audit.Event{Actor: plainID, Action: "join_token.revoke", Outcome: audit.OK, Status: 200, Objects: []string{clusterID, tokenID}}},
		{"a kubeconfig", nil, plain, "GET", cluster + "/kubeconfig", clusterID, "", nil,
			&audit.Event{Actor: plainID, Action: "kubeconfig.download", Outcome: audit.OK, Status: 200, Objects: []string{clusterID}}},
		{"a join script", nil, stranger, "GET", "/node/join", "?token=" + joinToken, "", nil,
			&audit.Event{Action: "join_script.download", Outcome: audit.OK, Status: 200, Objects: []string{"join_token:abcdef"}}},
		{"a script that only fails", nil, stranger, "GET", "/node/join", "?token=zzzzzz.zzzzzzzzzzzzzzzz", "", nil,
			&audit.Event{Action: "join_script.download", Outcome: audit.Refused, Status: 200, Code: "token_unknown", Objects: []string{"join_token:zzzzzz"}}},
		{"a malformed token", nil, stranger, "GET", "/node/join", "?token=canary", "", []string{"Accept", "application/json"},
			&audit.Event{Action: "join_script.download", Outcome: audit.Refused, Status: 400, Code: "join_token_malformed", Objects: none}},
		{"too often", fail(newFault(fault.RateLimited)), plain, "DELETE", cluster, clusterID, "", nil, nil},
		{"a part that is away", fail(newFault(fault.Unavailable)), plain, "DELETE", cluster, clusterID, "", nil,
			&audit.Event{Actor: plainID, Action: "cluster.delete", Outcome: audit.Failed, Status: 503, Code: "some_code", Objects: []string{clusterID}}},
		{"our fault", fail(newFault(fault.Internal)), stranger, "GET", "/node/join", "?token=" + joinToken, "", nil,
			&audit.Event{Action: "join_script.download", Outcome: audit.Failed, Status: 200, Code: "some_code", Objects: []string{"join_token:abcdef"}}},
		{"a read", nil, plain, "GET", cluster, unknownCluster, "", nil, nil},
	} {
		before, _ := w.audited("?limit=1")
		if c.before != nil {
			c.before()
		}
		a := w.callAs(c.client, c.method, c.path, c.fill, c.body, c.headers...)
		w.backend.set(func(b *backend) { b.err = nil })
		after, _ := w.audited("?limit=2")
		if c.want == nil {
			if after[0].ID != before[0].ID {
				t.Errorf("%s: %+v", c.name, after[0])
			}
			continue
		}
		if after[1].ID != before[0].ID {
			t.Errorf("%s has not one entry", c.name)
			continue
		}
		c.want.Client = "127.0.0.1"
		if diff := cmp.Diff(*c.want, after[0], cmpopts.IgnoreFields(audit.Event{}, "ID", "At", "TraceID", "Credential")); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if took := time.Since(after[0].At); took < 0 || took > time.Minute || len(after[0].TraceID) != 32 || after[0].TraceID == after[1].TraceID {
			t.Errorf("%s: %+v", c.name, after[0])
		}
		if a.problem.TraceID != "" && a.problem.TraceID != after[0].TraceID {
			t.Errorf("%s: the answer says %s, the entry %s", c.name, a.problem.TraceID, after[0].TraceID)
		}
	}
	if text := dump(t, w.dsn); strings.Contains(strings.ReplaceAll(text, "https://canary.example.com", ""), "canary") {
		t.Error("the database holds what somebody typed in")
	}
}

func TestAuditSearchIsChecked(t *testing.T) {
	w := start(t)
	for range 3 {
		w.call("PUT", settings, "", `{"settings":{}}`)
	}
	for query, field := range map[string]string{
		"since=yesterday": "since", "since=": "since", "until=2026-13-01T00:00:00Z": "until", "until=1": "until",
		"since=2026-12-02T00:00:00Z&until=2026-12-01T00:00:00Z": "until", "since=2026-12-01T00:00:00Z&until=2026-12-01T00:00:00Z": "until",
		"actor=admin": "actor", "actor=": "actor", "actor=usr_a%00": "actor", "action=cluster": "action", "action=.": "action", "action=a.b.c": "action", "action=CLUSTER.x": "action",
		"action=%25.": "action", "object=": "object", "object=a%20b": "object", "object=%00": "object", "object=" + strings.Repeat("x", 301): "object",
		"client=localhost": "client", "client=fe80::1%25eth0": "client", "client=": "client", "outcome=OK": "outcome", "outcome=": "outcome", "trace_id=x": "trace_id",
		"limit=0": "limit", "limit=501": "limit", "limit=-1": "limit", "limit=1e2": "limit", "limit=": "limit", "cursor=0": "cursor", "cursor=x": "cursor",
		"cursor=9223372036854775808": "cursor", "limit=1&limit=2": "limit", "actor=usr_aaaaaaaaaaaaaaaaaaaa&actor=usr_bbbbbbbbbbbbbbbbbbbb": "actor",
	} {
		a := w.call("GET", auditLog, "?"+query, "")
		if a.status != 400 || a.problem.Code != "parameter_invalid" || a.problem.Field != field {
			t.Errorf("%.60s: %d %s %s", query, a.status, a.problem.Code, a.problem.Field)
		}
		if strings.HasPrefix(query, "limit") || strings.HasPrefix(query, "cursor") {
			continue
		}
		if a := w.call("GET", auditLog+"/export", "?"+query, ""); a.status != 400 || a.problem.Field != field {
			t.Errorf("export, %.60s: %d %s", query, a.status, a.problem.Field)
		}
	}
	if events, _ := w.audited("?client=::ffff:127.0.0.1&action=settings.change"); len(events) != 3 {
		t.Errorf("%d by a mapped address", len(events))
	}
	first, next := w.audited("?action=settings.&limit=2")
	second, end := w.audited("?action=settings.&limit=2&cursor=" + next)
	if len(first) != 2 || len(second) != 1 || end != "" || first[1].ID <= second[0].ID {
		t.Errorf("%v %v %q", first, second, end)
	}
	found, _ := w.audited("?trace_id=" + first[0].TraceID)
	if diff := cmp.Diff(first[:1], found); diff != "" {
		t.Error(diff)
	}
}

func TestAuditExport(t *testing.T) {
	w := start(t)
	const all = 50_000
	w.execute(t, `insert into audit_log (at, actor, credential, action, objects, client, outcome, status, code, trace_id, detail)
		select '2026-11-01T00:00:00Z', '', '', 'bulk.add', '{}', '', 'ok', 200, '', '', '{"fields":["name"]}' from generate_series(1, $1::int)`, all)
	response, err := w.browser.Get(w.url + auditLog + "/export?until=2026-11-02T00:00:00Z&action=bulk.")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "application/x-ndjson" || response.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v", response.StatusCode, response.Header)
	}
	// It is audited from its first byte on.
	events, _ := w.audited("?action=audit.export")
	if len(events) != 1 || events[0].Outcome != audit.OK || !slices.Equal(events[0].Detail.Fields, []string{"until", "action"}) {
		t.Errorf("%+v", events)
	}
	lines, last := 0, int64(0)
	for scanner := bufio.NewScanner(response.Body); scanner.Scan(); lines++ {
		var e audit.Event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil || e.ID <= last || e.Action != "bulk.add" {
			t.Fatalf("line %d: %v %s", lines, err, scanner.Bytes())
		}
		last = e.ID
	}
	if lines != all {
		t.Errorf("%d lines", lines)
	}
	if a := w.call("GET", auditLog+"/export", "?object=nothing", ""); a.status != 200 || a.text != "" {
		t.Errorf("%d %q", a.status, a.text)
	}
}

// A client that goes away, and a request that takes too long, are audited all the same.
func TestAuditOutlivesTheRequest(t *testing.T) {
	w := start(t)
	w.backend.set(func(b *backend) { b.wait = time.Minute })
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() {
		w.eventually(func() bool { return w.backend.asked() > 0 })
		close(asked)
		cancel()
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, w.url+strings.Replace(cluster, "{cluster_id}", clusterID, 1), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if response, err := w.browser.Do(request); !errors.Is(err, context.Canceled) {
		t.Fatal(response, err)
	}
	<-asked
	w.eventually(func() bool {
		events, _ := w.audited("?object=" + clusterID)
		return len(events) == 1 && events[0].Outcome == audit.Failed && events[0].Code == "canceled"
	})
}

func (b *backend) asked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.principals)
}

// Where PostgreSQL is away the log has the whole entry, and a metric counts it.
func TestAuditWithoutDatabase(t *testing.T) {
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	before := otel.GetMeterProvider()
	otel.SetMeterProvider(provider)
	t.Cleanup(func() {
		otel.SetMeterProvider(before)
		_ = provider.Shutdown(context.Background())
	})
	server := pgtest.Private(t)
	server.Stop(t)
	w := prepare(t, with("KUBEBYON_DATABASE_DSN", server.DSN()), with("KUBEBYON_LOG_FORMAT", "json"))
	unstored := func() (found []map[string]any) {
		for line := range strings.Lines(w.log.String()) {
			var record struct {
				Level, Msg string
				Audit      map[string]any
			}
			if err := json.Unmarshal([]byte(line), &record); err != nil {
				t.Fatal(err, line)
			}
			if record.Msg == "audit entry not stored" && record.Level == "ERROR" {
				found = append(found, record.Audit)
			}
		}
		return found
	}
	logIn := `{"email":"someone@example.com","password":"canary-unstored"}`
	w.call("POST", "/api/auth/login", "", logIn).expect(t, 503, "database_unavailable")
	server.Start(t)
	w.logIn()
	checkpoint(t, server.DSN())
	starting := len(unstored())
	server.Stop(t)
	a := w.call("GET", "/node/join", "?token="+joinToken, "", "Accept", "application/json")
	a.expect(t, 503, "database_unavailable")
	found := unstored()
	if starting == 0 || len(found) != starting+1 {
		t.Fatalf("%d before, %d after", starting, len(found))
	}
	delete(found[starting], "at")
	if diff := cmp.Diff(map[string]any{"actor": "", "credential": "", "action": "join_script.download", "objects": []any{"join_token:abcdef"}, "client": "127.0.0.1",
		"outcome": "failed", "status": 503.0, "code": "database_unavailable", "trace_id": a.problem.TraceID, "fields": nil}, found[starting]); diff != "" {
		t.Error(diff)
	}
	var metrics metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &metrics); err != nil {
		t.Fatal(err)
	}
	counted := int64(0)
	for _, scope := range metrics.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "kubebyon.audit.unstored" {
				for _, point := range sum.DataPoints {
					counted += point.Value
				}
			}
		}
	}
	if counted != int64(len(found)) {
		t.Errorf("%d are counted, %d in the log", counted, len(found))
	}
	if strings.Contains(w.log.String(), "canary") {
		t.Error("the log holds a credential")
	}
	server.Start(t)
	w.eventually(func() bool { return w.call("GET", settings, "", "").status == 200 })
	if events, _ := w.audited("?trace_id=" + a.problem.TraceID); len(events) != 0 {
		t.Errorf("%+v", events)
	}
}

func TestPanicIsAudited(t *testing.T) {
	pool, err := postgres.Open(t.Context(), pgtest.New(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.Migrate(t.Context(), pool, "gateway", migrations.FS); err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(natstest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	rows := store.NewStore(pool)
	// Nothing panics on purpose; without a mirror it does, as a mistake would.
	edge := httpapi.New(httpapi.Options{Log: slog.New(slog.DiscardHandler)})
	edge.AttachServices(httpapi.NewServices(conn))
	edge.AttachIdentity(httpapi.Identity{Settings: wishes.NewService(rows, keyring.Keyring{}), Audit: audit.NewTrail(rows, slog.New(slog.DiscardHandler)), Database: rows})
	recorder := httptest.NewRecorder()
	edge.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/node/join?token="+joinToken, http.NoBody))
	found, err := rows.NewestEvents(t.Context(), audit.Filter{}, 0, 10)
	if err != nil || recorder.Code != 500 || len(found) != 1 {
		t.Fatal(err, recorder.Code, found)
	}
	if e := found[0]; e.Outcome != audit.Failed || e.Status != 500 || e.Code != "internal" || !strings.Contains(recorder.Body.String(), e.TraceID) ||
		fmt.Sprint(e.Objects) != "[join_token:abcdef]" {
		t.Errorf("%+v", e)
	}
}
