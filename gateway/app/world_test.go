package app_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/kubebyon/kubebyon/gateway/api"
	"github.com/kubebyon/kubebyon/gateway/app"
	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/lifecycle"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
	"github.com/kubebyon/kubebyon/pkg/test/acmetest"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

const (
	adminEmail    = "admin@kubebyon.local"
	adminPassword = "canary-password-1f0c"
	joinSecret    = "canarysecret1234"
	joinToken     = "abcdef." + joinSecret
	kubeCanary    = "canary-kubeconfig-77aa"
	scriptCanary  = "canary-script-3b2e"

	clusterID = "cl_aaaaaaaaaaaaaaaaaaaa"
	tokenID   = "tok_bbbbbbbbbbbbbbbbbbbb"
)

// TestMain is the gateway itself where a test runs it as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		ctx, stop := lifecycle.WithSignals(context.Background())
		status := app.Main(ctx, nil, os.LookupEnv, os.Stderr)
		stop()
		os.Exit(status)
	}
	goleak.VerifyTestMain(m, acmetest.Leaks()...)
}

const asProcess = "KUBEBYON_TEST_AS_PROCESS"

// world is a gateway with a real PostgreSQL, a real NATS, and services that answer from memory.
type world struct {
	t       testing.TB
	url     string
	nats    string
	dsn     string
	mirror  string
	log     *buffer
	backend *backend
	spec    *openapi3.T
	browser *http.Client
	pool    *pgxpool.Pool // nil: the gateway opens its own
	clock   atomic.Int64  // how far the gateway's clock is ahead
	secrets secrets
	still   atomic.Int64 // where it stands but for that, in nanoseconds since 1970; 0: it goes
	stop    func() error
	secure  string                          // the TLS listener's address; empty: there is none
	tls     net.Listener                    // nil: made where the settings ask for it
	peer    func(net.Listener) net.Listener // what stands before it; nil: nothing

	mailRoots *x509.CertPool
}

type wish func(env map[string]string, w *world)

func withoutServices(_ map[string]string, w *world) { w.backend = nil }

func with(name, value string) wish {
	return func(env map[string]string, _ *world) { env[name] = value }
}

// start brings one up and logs the administrator in.
func start(tb testing.TB, wishes ...wish) *world {
	tb.Helper()
	w := prepare(tb, wishes...)
	w.logIn()
	return w
}

func prepare(tb testing.TB, wishes ...wish) *world {
	tb.Helper()
	w := &world{t: tb, log: &buffer{}, backend: newBackend(), mirror: tb.TempDir()}
	secret := filepath.Join(tb.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(adminPassword+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	key := filepath.Join(tb.TempDir(), "key")
	if err := os.WriteFile(key, []byte(keyring.New()+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	env := map[string]string{"KUBEBYON_ADMIN_PASSWORD_FILE": secret, "KUBEBYON_MIRROR_DIR": w.mirror, "KUBEBYON_LOG_LEVEL": "debug",
		"KUBEBYON_ENCRYPTION_KEY_FILE": key,
		// The tests of the limits set their own.
		"KUBEBYON_AUTH_RATE_LIMIT_BURST": "1000000", "KUBEBYON_JOIN_RATE_LIMIT_BURST": "1000000", "KUBEBYON_API_RATE_LIMIT_BURST": "1000000"}
	for _, wish := range wishes {
		wish(env, w)
	}
	if env["KUBEBYON_DATABASE_DSN"] == "" {
		env["KUBEBYON_DATABASE_DSN"] = pgtest.New(tb)
	}
	if env["KUBEBYON_NATS_URL"] == "" {
		env["KUBEBYON_NATS_URL"] = natstest.New(tb)
	}
	w.dsn, w.nats = env["KUBEBYON_DATABASE_DSN"], env["KUBEBYON_NATS_URL"]
	if w.backend != nil {
		w.backend.serve(tb, w.nats)
	}
	cfg, err := app.LoadConfig(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		tb.Fatal(err)
	}
	w.run(cfg)
	w.spec, err = openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		tb.Fatal(err)
	}
	w.browser = w.newBrowser()
	return w
}

func (w *world) run(cfg app.Config) {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.url = "http://" + listener.Addr().String()
	var secure net.Listener
	if cfg.HTTPSAddr != "" {
		if secure = w.tls; secure == nil {
			if secure, err = net.Listen("tcp", string(cfg.HTTPSAddr)); err != nil {
				w.t.Fatal(err)
			}
		}
		w.secure = secure.Addr().String()
		if w.peer != nil {
			secure = w.peer(secure)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- app.Run(ctx, cfg, app.Deps{TLS: secure, Certificate: 50 * time.Millisecond, MailRoots: w.mailRoots, Log: telemetry.NewLogger(w.log, cfg.LogFormat, cfg.LogLevel), Listener: listener,
			Pool: w.pool, Now: w.now, CaptchaDigits: func(n int) []byte { return bytes.Repeat([]byte{6}, n) }})
	}()
	w.stop = sync.OnceValue(func() error { cancel(); return <-done })
	w.t.Cleanup(func() {
		if err := w.stop(); err != nil {
			w.t.Errorf("Run: %v", err)
		}
		if w.t.Failed() {
			log := w.log.String()
			w.t.Logf("the end of the log:\n%s", log[max(0, len(log)-4000):])
		}
	})
}

// now is the clock of what counts requests, log-ins and their second factors.
func (w *world) now() time.Time {
	now := time.Now()
	if still := w.still.Load(); still != 0 {
		now = time.Unix(0, still)
	}
	return now.Add(time.Duration(w.clock.Load()))
}

// standStill lets the gateway's clock go on by w.clock alone.
func (w *world) standStill() { w.still.Store(time.Now().UnixNano()) }

// solved gets a captcha and gives the fields with its answer, for a body.
func (w *world) solved() string {
	w.t.Helper()
	var made struct {
		ID string `json:"captcha_id"`
	}
	w.callAs(w.newBrowser(), "POST", "/api/auth/captcha", "", "").json(w.t, &made)
	return fmt.Sprintf(`"captcha_id":%q,"captcha_answer":"666666"`, made.ID)
}

func (w *world) newBrowser() *http.Client {
	jar, _ := cookiejar.New(nil)
	transport := &http.Transport{}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (w *world) logIn() {
	w.t.Helper()
	body := fmt.Sprintf(`{"email":%q,"password":%q}`, adminEmail, adminPassword)
	w.eventually(func() bool { return w.call("POST", "/api/auth/login", "", body).status == http.StatusOK })
}

func (w *world) eventually(ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("it never came true\n%s", w.log)
		}
	}
}

// answer is a response that is known to be as the description says.
type answer struct {
	status  int
	header  http.Header
	text    string
	problem struct {
		Status                               int
		Code, Detail, Field, Action, TraceID string
	}
}

func (a answer) json(tb testing.TB, into any) {
	tb.Helper()
	if err := json.Unmarshal([]byte(a.text), into); err != nil {
		tb.Fatalf("%v in %q", err, a.text)
	}
}

// call sends a request as the browser. path is the described one; fill replaces its {names} from the left, and what
// is left of it is the query.
func (w *world) call(method, path, fill, body string, headers ...string) answer {
	w.t.Helper()
	return w.callAs(w.browser, method, path, fill, body, headers...)
}

func (w *world) callAs(client *http.Client, method, path, fill, body string, headers ...string) answer {
	w.t.Helper()
	address := path
	for value := range strings.FieldsSeq(fill) {
		if before, rest, ok := strings.Cut(address, "{"); ok {
			_, rest, _ = strings.Cut(rest, "}")
			address = before + value + rest
		} else {
			address += value
		}
	}
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.url+address, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	a := answer{status: response.StatusCode, header: response.Header, text: string(text)}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json") {
		var p struct {
			Status                      int
			Code, Detail, Field, Action string
			TraceID                     string `json:"trace_id"`
		}
		a.json(w.t, &p)
		a.problem.Status, a.problem.Code, a.problem.Detail, a.problem.Field, a.problem.Action, a.problem.TraceID = p.Status, p.Code, p.Detail, p.Field, p.Action, p.TraceID
		if p.Status != a.status {
			w.t.Errorf("%s %s: the problem says %d, the status is %d", method, path, p.Status, a.status)
		}
	} else if a.status >= 400 && a.status != http.StatusPreconditionFailed && path != "/readyz" && method != "HEAD" && !strings.HasPrefix(response.Header.Get("Content-Type"), "text/html") &&
		(path != "/node/join" || a.status != http.StatusTooManyRequests) {
		w.t.Errorf("%s %s: %d without a problem: %.200q", method, path, a.status, text)
	}
	w.secrets.harvest(request, path, body, a)
	w.conforms(request, response, path, body, text)
	return a
}

// conforms holds the exchange against the description.
func (w *world) conforms(request *http.Request, response *http.Response, path, body string, text []byte) {
	w.t.Helper()
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"} {
		if got := response.Header.Get(name); got != want {
			w.t.Errorf("%s %s: %s is %q", request.Method, path, name, got)
		}
	}
	if response.Header.Get("Content-Security-Policy") == "" || (response.Header.Get("Cache-Control") != "no-store" && !strings.HasPrefix(path, "/node/mirror/")) {
		w.t.Errorf("%s %s: %v", request.Method, path, response.Header)
	}
	item := w.spec.Paths.Value(path)
	if item == nil || item.GetOperation(request.Method) == nil {
		return // the tests of unknown routes
	}
	kind := response.Header.Get("Content-Type")
	input := &openapi3filter.RequestValidationInput{
		Request: request, QueryParams: request.URL.Query(), PathParams: pathParams(path),
		Route:   &routers.Route{Spec: w.spec, Path: path, PathItem: item, Method: request.Method, Operation: item.GetOperation(request.Method)},
		Options: &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, ExcludeResponseBody: !strings.Contains(kind, "json") || strings.Contains(kind, "ndjson")},
	}
	if response.StatusCode < 300 {
		request.Body = io.NopCloser(strings.NewReader(body))
		if err := openapi3filter.ValidateRequest(w.t.Context(), input); err != nil {
			w.t.Errorf("%s %s was accepted against the description: %v", request.Method, path, err)
		}
	}
	if err := openapi3filter.ValidateResponse(w.t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: response.StatusCode, Header: response.Header, Body: io.NopCloser(bytes.NewReader(text)), Options: input.Options,
	}); err != nil {
		w.t.Errorf("%s %s answered %d against the description: %v", request.Method, path, response.StatusCode, err)
	}
	if described := item.GetOperation(request.Method).Responses.Status(response.StatusCode); described != nil && len(text) > 0 {
		base, _, _ := strings.Cut(kind, ";")
		if described.Value.Content.Get(base) == nil {
			w.t.Errorf("%s %s answered %d with %s, which is not described", request.Method, path, response.StatusCode, kind)
		}
	}
}

func pathParams(path string) map[string]string {
	found := map[string]string{}
	for segment := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			found[strings.TrimSuffix(name, "}")] = "x"
		}
	}
	return found
}

// expect fails unless the answer is a problem with that status and code.
func (a answer) expect(t *testing.T, status int, code string) {
	t.Helper()
	if a.status != status || a.problem.Code != code {
		t.Errorf("%d %q, want %d %q: %.300q", a.status, a.problem.Code, status, code, a.text)
	}
}

// buffer is a log that may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// backend keeps the contracts from memory. fail, when set, is every method's answer.
type backend struct {
	mu         sync.Mutex
	err        error
	wait       time.Duration
	nodes      int
	principals []contract.Principal
	tokens     []tokenv1.CreateRequest
	scripts    []tokenv1.JoinScriptRequest
	creates    []clusterv1.CreateRequest
	updates    []clusterv1.UpdateRequest
	needs      []clusterv1.GetRequest
	access     clusterv1.Access // to the one cluster
	members    []clusterv1.Member
	pages      []nodev1.ListRequest
	edges      []edgev1.StatusRequest
	edge       edgev1.StatusResponse
}

func newBackend() *backend { return &backend{nodes: 2, access: clusterv1.Owner} }

func (b *backend) set(change func(*backend)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

func (b *backend) before(ctx context.Context, needsPrincipal bool) error {
	p, ok := rpc.PrincipalFrom(ctx)
	b.mu.Lock()
	if ok {
		b.principals = append(b.principals, p)
	}
	wait, err := b.wait, b.err
	b.mu.Unlock()
	if ok != needsPrincipal {
		return fault.New(fault.Internal, "principal_wrong", "a principal was due, or was not")
	}
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			time.Sleep(300 * time.Millisecond) // too late is no answer
		}
	}
	return err
}

func example() clusterv1.Cluster {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	return clusterv1.Cluster{ID: clusterID, Name: "demo", VClusterName: "demo", Namespace: "demo", OwnerID: "usr_x", Access: clusterv1.Owner, ControlPlane: clusterv1.Upstream,
		ControlPlaneHost: "198.18.0.2", PublicAccessMode: clusterv1.NodePort, Status: clusterv1.Provisioning,
		Reason: &clusterv1.Reason{Code: "installing", Message: "the chart is being installed"}, CreatedAt: at, UpdatedAt: at}
}

// publishedExample is a cluster behind the edge.
func publishedExample() clusterv1.Cluster {
	c := example()
	c.ID, c.Name, c.ControlPlaneHost, c.PublicAccessMode = "cl_published00000000000", "published", "demo.example.com", clusterv1.LoadBalancer
	c.Edge = &clusterv1.Edge{State: clusterv1.EdgeFailed, Reason: &clusterv1.Reason{Code: "probe_failed", Message: "no handshake", Action: "look at it"}, Since: c.CreatedAt}
	return c
}

func exampleToken() tokenv1.Token {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	return tokenv1.Token{ID: tokenID, ClusterID: clusterID, TokenID: "abcdef", Status: tokenv1.Active, CreatedBy: "usr_x", CreatedAt: at, ExpiresAt: at.Add(time.Hour)}
}

func (b *backend) serve(tb testing.TB, url string) {
	tb.Helper()
	conn, err := nats.Connect(url)
	if err != nil {
		tb.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	server := func(name string) *rpc.Server {
		return rpc.NewServer(conn, rpc.Options{Service: name, Queue: name, Version: "test", Log: log})
	}
	cluster, token, node, edge := server("cluster"), server("token"), server("node"), server("edge")

	on(b, cluster, clusterv1.Create, func(r clusterv1.CreateRequest) (clusterv1.Cluster, error) {
		b.creates = append(b.creates, r)
		return example(), nil
	})
	on(b, cluster, clusterv1.List, func(clusterv1.ListRequest) (clusterv1.ListResponse, error) {
		return clusterv1.ListResponse{Clusters: []clusterv1.Cluster{example(), publishedExample()}}, nil
	})
	on(b, cluster, clusterv1.Get, func(r clusterv1.GetRequest) (clusterv1.Cluster, error) {
		if r.ID != clusterID {
			return clusterv1.Cluster{}, fault.New(fault.NotFound, "cluster_not_found", "there is no such cluster")
		}
		b.needs = append(b.needs, r)
		if r.Need == clusterv1.Owner && b.access != clusterv1.Owner {
			return clusterv1.Cluster{}, fault.New(fault.Forbidden, "cluster_access_insufficient", "this needs more")
		}
		c := example()
		c.Access = b.access
		return c, nil
	})
	on(b, cluster, clusterv1.Update, func(r clusterv1.UpdateRequest) (clusterv1.Cluster, error) {
		b.updates = append(b.updates, r)
		return example(), nil
	})
	on(b, cluster, clusterv1.Delete, func(clusterv1.DeleteRequest) (clusterv1.Cluster, error) {
		c := example()
		c.Status = clusterv1.Deleting
		c.Removal = &clusterv1.Removal{
			Deadline: c.CreatedAt, Remaining: []clusterv1.Remaining{{Kind: "Pod", Name: "demo-0", Why: "finalizer example.com/held"}},
			Workers: []clusterv1.Worker{{Name: "worker-1", InternalIP: "198.18.0.9"}},
		}
		return c, nil
	})
	on(b, cluster, clusterv1.Retry, func(r clusterv1.RetryRequest) (clusterv1.Cluster, error) {
		if r.ID != clusterID {
			return clusterv1.Cluster{}, fault.New(fault.NotFound, "cluster_not_found", "there is no such cluster")
		}
		return example(), nil
	})
	on(b, cluster, clusterv1.Events, func(clusterv1.EventsRequest) (clusterv1.EventsResponse, error) {
		return clusterv1.EventsResponse{Events: []clusterv1.Event{{At: example().CreatedAt, Level: clusterv1.Info, Code: "created", Message: "stored"}}}, nil
	})
	on(b, cluster, clusterv1.Kubeconfig, func(clusterv1.KubeconfigRequest) (clusterv1.KubeconfigResponse, error) {
		return clusterv1.KubeconfigResponse{Kubeconfig: "apiVersion: v1\n# " + kubeCanary + "\n", FileName: "demo.kubeconfig.yaml"}, nil
	})
	on(b, cluster, clusterv1.Members, func(clusterv1.MembersRequest) (clusterv1.MembersResponse, error) {
		creator := clusterv1.Member{UserID: example().OwnerID, Access: clusterv1.Owner, AddedAt: example().CreatedAt}
		return clusterv1.MembersResponse{Members: append([]clusterv1.Member{creator}, b.members...)}, nil
	})
	on(b, cluster, clusterv1.SetMember, func(r clusterv1.SetMemberRequest) (clusterv1.Member, error) {
		if r.Access != clusterv1.Viewer && r.Access != clusterv1.Editor && r.Access != clusterv1.Owner {
			return clusterv1.Member{}, fault.New(fault.Invalid, "access_unknown", "there is no such access").In("access")
		}
		m := clusterv1.Member{UserID: r.UserID, Access: r.Access, AddedBy: "usr_x", AddedAt: example().CreatedAt}
		b.members = append(b.members, m)
		return m, nil
	})
	on(b, cluster, clusterv1.RemoveMember, func(r clusterv1.RemoveMemberRequest) (clusterv1.RemoveMemberResponse, error) {
		before := len(b.members)
		b.members = slices.DeleteFunc(b.members, func(m clusterv1.Member) bool { return m.UserID == r.UserID })
		if len(b.members) == before {
			return clusterv1.RemoveMemberResponse{}, fault.New(fault.NotFound, "member_not_found", "the cluster has no such member")
		}
		return clusterv1.RemoveMemberResponse{}, nil
	})
	on(b, token, tokenv1.Create, func(r tokenv1.CreateRequest) (tokenv1.CreateResponse, error) {
		b.tokens = append(b.tokens, r)
		if r.JoinBaseURL == "" {
			return tokenv1.CreateResponse{}, fault.New(fault.Precondition, "join_base_url_unset", "the address for workers is not set").Do("set join_base_url in the settings")
		}
		return tokenv1.CreateResponse{Token: exampleToken(), JoinCommand: `curl -fsSL --retry 10 "` + r.JoinBaseURL + `/node/join?token=` + joinToken + `" | sh -`}, nil
	})
	on(b, token, tokenv1.List, func(tokenv1.ListRequest) (tokenv1.ListResponse, error) { return tokenv1.ListResponse{}, nil })
	on(b, token, tokenv1.Revoke, func(tokenv1.RevokeRequest) (tokenv1.Token, error) {
		ended := exampleToken()
		ended.Status, ended.RevokedAt = tokenv1.Revoked, &ended.CreatedAt
		return ended, nil
	})
	on(b, token, tokenv1.JoinScript, func(r tokenv1.JoinScriptRequest) (tokenv1.JoinScriptResponse, error) {
		b.scripts = append(b.scripts, r)
		if r.Token != joinToken {
			return tokenv1.JoinScriptResponse{}, fault.New(fault.NotFound, "token_unknown", "this token isn't known, or has been revoked").Do("make a new join command")
		}
		return tokenv1.JoinScriptResponse{Script: "#!/bin/sh\nmain() { echo " + scriptCanary + "; }\nmain\n"}, nil
	})
	on(b, node, nodev1.List, func(r nodev1.ListRequest) (nodev1.ListResponse, error) {
		b.pages = append(b.pages, r)
		from := 0
		_, _ = fmt.Sscan(r.Continue, &from)
		if r.Limit != 0 {
			return nodev1.ListResponse{}, fault.New(fault.Internal, "limit_unexpected", "the service decides what fits")
		}
		var found nodev1.ListResponse
		for ; from < b.nodes && len(found.Nodes) < 1000; from++ {
			found.Nodes = append(found.Nodes, nodev1.Node{
				Name: fmt.Sprintf("node-%05d", from), Status: nodev1.Ready, CreatedAt: example().CreatedAt,
				Roles: []string{}, Taints: []nodev1.Taint{}, Conditions: []nodev1.Condition{},
			})
		}
		if from < b.nodes {
			found.Continue = fmt.Sprint(from)
		}
		return found, nil
	})
	on(b, edge, edgev1.Status, func(r edgev1.StatusRequest) (edgev1.StatusResponse, error) {
		b.edges = append(b.edges, r)
		return b.edge, nil
	})
	pong := func(context.Context, contract.Ping) (contract.Pong, error) { return contract.Pong{}, nil }
	rpc.Serve(cluster, clusterv1.PingMethod, pong)
	rpc.Serve(token, tokenv1.PingMethod, pong)
	rpc.Serve(node, nodev1.PingMethod, pong)
	rpc.Serve(edge, edgev1.PingMethod, pong)

	servers := []*rpc.Server{cluster, token, node, edge}
	for _, s := range servers {
		if err := s.Start(); err != nil {
			tb.Fatal(err)
		}
	}
	if err := conn.Flush(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for _, s := range servers {
			_ = s.Shutdown(ctx)
		}
		conn.Close()
	})
}

func on[Req, Res any](b *backend, s *rpc.Server, m contract.Method[Req, Res], do func(Req) (Res, error)) {
	rpc.Serve(s, m, func(ctx context.Context, r Req) (Res, error) {
		var none Res
		if err := b.before(ctx, m.Subject != tokenv1.JoinScript.Subject); err != nil {
			return none, err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return do(r)
	})
}
