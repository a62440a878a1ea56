package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
	"github.com/kubebyon/kubebyon/services/token/app"
)

const baseURL = "https://kubebyon.example.com"

var (
	owner    = contract.Principal{UserID: "usr_owner", Role: contract.RoleUser}
	stranger = contract.Principal{UserID: "usr_stranger", Role: contract.RoleUser}
	viewer   = contract.Principal{UserID: "usr_viewer", Role: contract.RoleUser}
	editor   = contract.Principal{UserID: "usr_editor", Role: contract.RoleUser}
)

// bench is one running token service among real servers. The one kube-apiserver is the host cluster and every tenant.
type bench struct {
	conn *nats.Conn
	kube kubernetes.Interface
	rest *rest.Config
	dsn  string
	log  *buffer
	away bool // loopback is not allowed, as in production

	mu       sync.Mutex
	clusters map[string]clusterv1.Cluster
}

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

func start(t *testing.T) *bench {
	t.Helper()
	return startWith(t, pgtest.New(t))
}

func startWith(t *testing.T, dsn string) *bench {
	t.Helper()
	return startOn(t, kubetest.Shared(t), dsn)
}

func startOn(t *testing.T, cfg *rest.Config, dsn string) *bench {
	t.Helper()
	b := &bench{rest: cfg, dsn: dsn, log: &buffer{}, clusters: map[string]clusterv1.Cluster{}}
	b.kube = must(kubernetes.NewForConfig(b.rest))
	b.conn = connect(t)
	b.serveClusters(t)
	b.run(t)
	return b
}

func connect(t *testing.T) *nats.Conn {
	t.Helper()
	conn := must(rpc.Connect(t.Context(), rpc.NATS{NATSURL: natstest.New(t)}, "test", slog.New(slog.DiscardHandler)))
	t.Cleanup(conn.Close)
	return conn
}

// run starts a replica and waits until it answers.
func (b *bench) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cfg := app.Config{AllowLoopback: !b.away}
	cfg.DatabaseDSN = config.DSN{Secret: telemetry.Secret(b.dsn)}
	done := make(chan error, 1)
	go func() {
		log := telemetry.NewLogger(io.MultiWriter(b.log, t.Output()), "json", "debug")
		done <- app.Run(ctx, cfg, app.Deps{Log: log, NATS: b.conn, Host: b.kube})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	ping := rpc.Client(b.conn, tokenv1.PingMethod)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if pong, err := ping(t.Context(), contract.Ping{}); err == nil && pong.Service == "token" {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("the service does not answer: %v", err)
		}
	}
}

// serveClusters is clusterv1.Get as the contract has it: the owner, the members and administrators see a cluster, and a
// viewer is no editor.
func (b *bench) serveClusters(t *testing.T) {
	t.Helper()
	server := rpc.NewServer(b.conn, rpc.Options{Service: "cluster", Queue: clusterv1.Queue, Log: slog.New(slog.DiscardHandler)})
	rpc.Serve(server, clusterv1.Get, func(ctx context.Context, req clusterv1.GetRequest) (clusterv1.Cluster, error) {
		who, err := rpc.RequirePrincipal(ctx)
		if err != nil {
			return clusterv1.Cluster{}, err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		c, ok := b.clusters[req.ID]
		member := who.UserID == viewer.UserID || who.UserID == editor.UserID
		switch {
		case !ok || who.Role != contract.RoleAdmin && who.UserID != c.OwnerID && !member:
			return clusterv1.Cluster{}, fault.New(fault.NotFound, "cluster_not_found", "there is no such cluster")
		case req.Need != "" && req.Need != clusterv1.Viewer && (who.UserID == viewer.UserID || who.ReadOnly),
			req.Need == clusterv1.Owner && member:
			return clusterv1.Cluster{}, fault.New(fault.Forbidden, "cluster_access_insufficient", "this needs more")
		}
		return c, nil
	})
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Shutdown(context.Background()) })
}

// A name that a tenant gave may lead to our own machine, now or later: it is found out at the connection.
func TestATenantsHostDoesNotLeadToUs(t *testing.T) {
	b := &bench{rest: kubetest.Shared(t), dsn: pgtest.New(t), log: &buffer{}, clusters: map[string]clusterv1.Cluster{}, away: true}
	b.kube, b.conn = must(kubernetes.NewForConfig(b.rest)), connect(t)
	b.serveClusters(t)
	b.run(t)
	for _, host := range []string{"localhost", "127.0.0.1"} {
		c := b.cluster(t, func(c *clusterv1.Cluster, _ *corev1.Secret) { c.ControlPlaneHost = host })
		_, err := b.create(t.Context(), owner, tokenv1.CreateRequest{ClusterID: c.ID, JoinBaseURL: baseURL})
		wantFault(t, err, fault.Precondition, "host_refused")
		if tokens, err := b.list(t.Context(), owner, c.ID); err != nil || len(tokens) != 0 {
			t.Errorf("half created: %v, %v", tokens, err)
		}
	}
}

// cluster adds a tenant of its own namespace on the host, as its control plane's chart would leave it. edit may change the
// record and the kubeconfig Secret.
func (b *bench) cluster(t *testing.T, edit func(*clusterv1.Cluster, *corev1.Secret)) clusterv1.Cluster {
	t.Helper()
	c, _ := b.clusterBehind(t, edit)
	return c
}

func (b *bench) clusterBehind(t *testing.T, edit func(*clusterv1.Cluster, *corev1.Secret)) (clusterv1.Cluster, *door) {
	t.Helper()
	ctx, ns := t.Context(), kubetest.Namespace(t, b.rest)
	c := clusterv1.Cluster{
		ID: "cl_" + strings.TrimPrefix(ns, "t-"), Name: "demo", VClusterName: "demo", Namespace: ns, OwnerID: owner.UserID,
		ControlPlane: clusterv1.Upstream, ControlPlaneHost: "127.0.0.1", PublicAccessMode: clusterv1.NodePort, Status: clusterv1.Ready,
	}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vc-demo", Namespace: ns}, Data: map[string][]byte{"config": b.kubeconfig()}}
	if edit != nil {
		edit(&c, s)
	}
	must(b.kube.CoreV1().Secrets(ns).Create(ctx, s, metav1.CreateOptions{}))
	d := newDoor(t, strings.TrimPrefix(b.rest.Host, "https://"))
	must(b.kube.CoreV1().Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: ns},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{
			{Name: "kubelet", Port: 10250}, {Name: "https", Port: 443, NodePort: d.port},
		}},
	}, metav1.CreateOptions{}))
	t.Cleanup(func() { // frees the node port
		_ = b.kube.CoreV1().Services(ns).Delete(context.Background(), "demo", metav1.DeleteOptions{})
	})
	b.put(c)
	return c, d
}

// door is where a tenant's API is reached: the node port of its Service, behind which stands the one kube-apiserver.
type door struct {
	listener net.Listener
	target   string
	silent   atomic.Bool
	port     int32
}

// newDoor opens a node port that is free on this machine, and ends with the test.
func newDoor(tb testing.TB, target string) *door {
	tb.Helper()
	for port := 30000 + rand.IntN(2700); port < 32768; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		d := &door{listener: l, target: target, port: int32(port)}
		var wg sync.WaitGroup
		wg.Go(func() { d.serve(&wg) })
		tb.Cleanup(func() { _ = l.Close(); wg.Wait() })
		return d
	}
	tb.Fatal("no node port is free on 127.0.0.1")
	return nil
}

func (d *door) serve(wg *sync.WaitGroup) {
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	for {
		in, err := d.listener.Accept()
		if err != nil {
			return
		}
		if held = append(held, in); d.silent.Load() {
			continue
		}
		out, err := net.Dial("tcp", d.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		held = append(held, out)
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			wg.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				_ = pair[0].Close()
			})
		}
	}
}

// hang lets nobody through any more; shut refuses.
func (d *door) hang() { d.silent.Store(true) }
func (d *door) open() { d.silent.Store(false) }
func (d *door) shut() { _ = d.listener.Close() }

func (d *door) endpoint() string { return fmt.Sprintf("https://127.0.0.1:%d", d.port) }

func (b *bench) put(c clusterv1.Cluster) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clusters[c.ID] = c
}

func (b *bench) forget(c clusterv1.Cluster) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.clusters, c.ID)
}

// kubeconfig is what a control plane exports, as JSON, which YAML includes.
func (b *bench) kubeconfig() []byte {
	user := map[string]any{"client-certificate-data": b.rest.CertData, "client-key-data": b.rest.KeyData}
	if b.rest.BearerToken != "" {
		user["token"] = b.rest.BearerToken
	}
	return must(json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": "https://localhost:8443", "certificate-authority-data": b.rest.CAData}}},
		"users":    []any{map[string]any{"name": "u", "user": user}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
	}))
}

// dns gives the tenant its DNS Service, as CoreDNS' addon does.
func (b *bench) dns(t *testing.T) string {
	t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-dns", Namespace: "kube-system"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}},
	}
	made, err := b.kube.CoreV1().Services("kube-system").Create(t.Context(), svc, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		made, err = b.kube.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return made.Spec.ClusterIP
}

func (b *bench) create(ctx context.Context, who contract.Principal, req tokenv1.CreateRequest) (tokenv1.CreateResponse, error) {
	return rpc.Client(b.conn, tokenv1.Create)(rpc.WithPrincipal(ctx, who), req)
}

func (b *bench) list(ctx context.Context, who contract.Principal, id string) ([]tokenv1.Token, error) {
	out, err := rpc.Client(b.conn, tokenv1.List)(rpc.WithPrincipal(ctx, who), tokenv1.ListRequest{ClusterID: id})
	return out.Tokens, err
}

func (b *bench) revoke(ctx context.Context, who contract.Principal, cluster, id string) (tokenv1.Token, error) {
	return rpc.Client(b.conn, tokenv1.Revoke)(rpc.WithPrincipal(ctx, who), tokenv1.RevokeRequest{ClusterID: cluster, ID: id})
}

func (b *bench) script(ctx context.Context, token string) (string, error) {
	out, err := rpc.Client(b.conn, tokenv1.JoinScript)(ctx, tokenv1.JoinScriptRequest{
		Token: token, JoinBaseURL: baseURL,
		Mirror: []tokenv1.MirrorFile{{Name: "kubelet-v1.37.2-linux-amd64", SHA256: strings.Repeat("ab", 32), Size: 42}},
	})
	return out.Script, err
}

func tokenOf(t *testing.T, command string) string {
	t.Helper()
	_, rest, ok := strings.Cut(command, "/node/join?token=")
	token, _, ok2 := strings.Cut(rest, `"`)
	if !ok || !ok2 {
		t.Fatalf("no token in the command %q", command)
	}
	return token
}

func wantFault(t *testing.T, err error, kind fault.Kind, code string) *fault.Error {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != kind || f.Code != code {
		t.Fatalf("got %v, want %s (%s)", err, kind, code)
	}
	if f.Message == "" {
		t.Errorf("%s says nothing", code)
	}
	return f
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestTokenLife(t *testing.T) {
	b := start(t)
	ctx, dns := t.Context(), b.dns(t)
	cluster, door := b.clusterBehind(t, nil)

	before := time.Now()
	made, err := b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: baseURL + "/"})
	if err != nil {
		t.Fatal(err)
	}
	token := tokenOf(t, made.JoinCommand)
	id, half, _ := strings.Cut(token, ".")
	if want := `curl -fsSL --retry 10 "` + baseURL + `/node/join?token=` + token + `" | sh -`; made.JoinCommand != want {
		t.Errorf("the command is %q, not %q", made.JoinCommand, want)
	}
	if made.Token.TokenID != id || made.Token.Status != tokenv1.Active || made.Token.CreatedBy != owner.UserID || made.Token.ClusterID != cluster.ID {
		t.Errorf("the record is %+v", made.Token)
	}
	if life := made.Token.ExpiresAt.Sub(made.Token.CreatedAt); life != 2*time.Hour || made.Token.CreatedAt.Before(before.Add(-2*time.Second)) {
		t.Errorf("it was made at %v and lives %v", made.Token.CreatedAt, life)
	}

	secret, err := b.kube.CoreV1().Secrets("kube-system").Get(ctx, "bootstrap-token-"+id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{"type": string(secret.Type)}
	for k, v := range secret.Data {
		got[k] = string(v)
	}
	for k, v := range secret.Labels {
		got[k] = v
	}
	if diff := cmp.Diff(map[string]string{
		"type": "bootstrap.kubernetes.io/token", "token-id": id, "token-secret": half, "expiration": made.Token.ExpiresAt.UTC().Format(time.RFC3339),
		"usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true",
		"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token", "description": "KubeBYON join token",
		"vcluster.loft.sh/token": "true", "vcluster.loft.sh/token-node-type": "worker",
	}, got); diff != "" {
		t.Error(diff)
	}

	script, err := b.script(ctx, token)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{token, dns, door.endpoint(), "BEGIN CERTIFICATE", baseURL, "/node/mirror", "kubelet-v1.37.2-linux-amd64", "v1.37."} {
		if !strings.Contains(script, want) {
			t.Errorf("the script lacks %q", want)
		}
	}

	second, err := b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: baseURL, TTLSeconds: new(int64(60))})
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := b.list(ctx, owner, cluster.ID)
	if err != nil || len(tokens) != 2 {
		t.Fatalf("%+v, %v", tokens, err)
	}
	used := tokens[0]
	if used.ID == second.Token.ID {
		used = tokens[1]
	}
	if used.ID != made.Token.ID || used.LastUsedAt == nil {
		t.Errorf("its use was not noted: %+v", used)
	}

	ended, err := b.revoke(ctx, owner, cluster.ID, made.Token.ID)
	if err != nil || ended.Status != tokenv1.Revoked || ended.RevokedAt == nil {
		t.Fatalf("%+v, %v", ended, err)
	}
	if _, err := b.kube.CoreV1().Secrets("kube-system").Get(ctx, "bootstrap-token-"+id, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Secret of a revoked token: %v", err)
	}
	_, err = b.script(ctx, token)
	if f := wantFault(t, err, fault.Unauthenticated, "token_revoked"); f.Action == "" {
		t.Error("nothing to do is named")
	}
	again, err := b.revoke(ctx, owner, cluster.ID, made.Token.ID)
	if err != nil || !again.RevokedAt.Equal(*ended.RevokedAt) {
		t.Errorf("revoked again: %+v, %v", again, err)
	}
	if _, err := b.script(ctx, tokenOf(t, second.JoinCommand)); err != nil {
		t.Errorf("the other token: %v", err)
	}

	// What has expired is refused; the clock is the record's here.
	b.sql(t, "UPDATE tokens SET created_at = now() - interval '2 hours', expires_at = now() - interval '1 second' WHERE id = $1", second.Token.ID)
	_, err = b.script(ctx, tokenOf(t, second.JoinCommand))
	wantFault(t, err, fault.Unauthenticated, "token_expired")
	if tokens, err = b.list(ctx, owner, cluster.ID); err != nil || tokens[0].Status != tokenv1.Revoked || tokens[1].Status != tokenv1.Expired {
		t.Errorf("%+v, %v", tokens, err)
	}

	b.forget(cluster)
	b.sql(t, "UPDATE tokens SET expires_at = now() + interval '1 hour' WHERE id = $1", second.Token.ID)
	_, err = b.script(ctx, tokenOf(t, second.JoinCommand))
	wantFault(t, err, fault.NotFound, "cluster_gone")
}

func (b *bench) sql(t *testing.T, text string, args ...any) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), b.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), text, args...); err != nil {
		t.Fatal(err)
	}
}

// The Secret is what kube-apiserver itself takes for a bootstrap token, until it is revoked.
func TestTheTokenLetsANodeIn(t *testing.T) {
	b := startOn(t, kubetest.Start(t, kubetest.Flags("--enable-bootstrap-token-auth=true")), pgtest.New(t))
	ctx, cluster := t.Context(), b.cluster(t, nil)
	made, err := b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: baseURL})
	if err != nil {
		t.Fatal(err)
	}
	kubelet := must(kubernetes.NewForConfig(&rest.Config{
		Host: b.rest.Host, BearerToken: tokenOf(t, made.JoinCommand), TLSClientConfig: rest.TLSClientConfig{CAData: b.rest.CAData},
	}))
	whoAmI := func() (*authv1.SelfSubjectReview, error) {
		return kubelet.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authv1.SelfSubjectReview{}, metav1.CreateOptions{})
	}
	var me *authv1.SelfSubjectReview
	eventually(t, func() bool { me, err = whoAmI(); return err == nil }) // the authenticator watches Secrets
	if user := me.Status.UserInfo; user.Username != "system:bootstrap:"+made.Token.TokenID ||
		!slices.Contains(user.Groups, "system:bootstrappers:kubeadm:default-node-token") {
		t.Errorf("a node would be %+v", user)
	}
	if _, err := b.revoke(ctx, owner, cluster.ID, made.Token.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, err = whoAmI(); return apierrors.IsUnauthorized(err) })
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come about")
		}
	}
}

func TestVClusterServesItsOwnScript(t *testing.T) {
	b := start(t)
	b.dns(t)
	cluster, door := b.clusterBehind(t, func(c *clusterv1.Cluster, _ *corev1.Secret) { c.ControlPlane = clusterv1.VCluster })
	made, err := b.create(t.Context(), owner, tokenv1.CreateRequest{ClusterID: cluster.ID})
	if err != nil {
		t.Fatal(err)
	}
	token := tokenOf(t, made.JoinCommand)
	if want := `curl -fsSLk "` + door.endpoint() + `/node/join?token=` + token + `" | sh -`; made.JoinCommand != want {
		t.Errorf("the command is %q, not %q", made.JoinCommand, want)
	}
	_, err = b.script(t.Context(), token)
	wantFault(t, err, fault.Invalid, "join_script_elsewhere")
}

// A cluster behind the edge is reached from here at a host node, and from machines at its domain.
func TestBehindTheEdge(t *testing.T) {
	b := start(t)
	b.dns(t)
	node := must(b.kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "host-"}}, metav1.CreateOptions{}))
	t.Cleanup(func() { _ = b.kube.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}) })
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	must(b.kube.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))

	const domain = "kubernetes.default.svc" // which the one kube-apiserver's certificate is for
	cluster := b.cluster(t, func(c *clusterv1.Cluster, _ *corev1.Secret) {
		c.ControlPlaneHost, c.PublicAccessMode = domain, clusterv1.LoadBalancer
	})
	before := len(b.secrets(t))
	_, err := b.create(t.Context(), owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: "https://console.example.com"})
	wantFault(t, err, fault.Precondition, "edge_not_serving")
	cluster.Edge = &clusterv1.Edge{State: clusterv1.EdgeFailed, Reason: &clusterv1.Reason{Code: "route_refused", Message: "nothing answers", Action: "look there"}}
	b.put(cluster)
	_, err = b.create(t.Context(), owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: "https://console.example.com"})
	if f := wantFault(t, err, fault.Precondition, "edge_not_serving"); !strings.Contains(f.Message, "nothing answers") || f.Action != "look there" {
		t.Errorf("%+v", f)
	}
	if after := len(b.secrets(t)); after != before {
		t.Errorf("refused, and %d made", after-before)
	}
	cluster.Edge = &clusterv1.Edge{State: clusterv1.EdgeServing}
	b.put(cluster)
	made, err := b.create(t.Context(), owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: "https://console.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	script, err := b.script(t.Context(), tokenOf(t, made.JoinCommand))
	if err != nil || !strings.Contains(script, "https://"+domain+":443") || strings.Contains(script, "127.0.0.1") {
		t.Errorf("%v\n%s", err, script)
	}
}

func TestBadInput(t *testing.T) {
	b := start(t)
	b.dns(t)
	ctx := t.Context()
	good := b.cluster(t, nil)
	status := func(s clusterv1.Status) func(*clusterv1.Cluster, *corev1.Secret) {
		return func(c *clusterv1.Cluster, _ *corev1.Secret) { c.Status = s }
	}
	config := func(text []byte) func(*clusterv1.Cluster, *corev1.Secret) {
		return func(_ *clusterv1.Cluster, s *corev1.Secret) { s.Data["config"] = text }
	}
	before := b.secrets(t)
	n := func(i int64) *int64 { return &i }
	for name, c := range map[string]struct {
		edit func(*clusterv1.Cluster, *corev1.Secret) // nil, and no door: the good cluster
		door func(*door)
		who  contract.Principal
		req  tokenv1.CreateRequest
		kind fault.Kind
		code string
		says string
	}{
		"ttl 0":                {req: tokenv1.CreateRequest{TTLSeconds: n(0)}, kind: fault.Invalid, code: "ttl_out_of_range", says: "604800"},
		"ttl negative":         {req: tokenv1.CreateRequest{TTLSeconds: n(-7200)}, kind: fault.Invalid, code: "ttl_out_of_range"},
		"ttl under a minute":   {req: tokenv1.CreateRequest{TTLSeconds: n(59)}, kind: fault.Invalid, code: "ttl_out_of_range"},
		"ttl over a week":      {req: tokenv1.CreateRequest{TTLSeconds: n(604801)}, kind: fault.Invalid, code: "ttl_out_of_range"},
		"ttl that overflows":   {req: tokenv1.CreateRequest{TTLSeconds: n(1 << 62)}, kind: fault.Invalid, code: "ttl_out_of_range"},
		"no such cluster":      {req: tokenv1.CreateRequest{ClusterID: "cl_missing"}, kind: fault.NotFound, code: "cluster_not_found"},
		"no cluster":           {req: tokenv1.CreateRequest{ClusterID: " "}, kind: fault.NotFound, code: "cluster_not_found"},
		"a cluster of others":  {who: stranger, kind: fault.NotFound, code: "cluster_not_found"},
		"still provisioning":   {edit: status(clusterv1.Provisioning), kind: fault.Precondition, code: "cluster_not_ready", says: "provisioning"},
		"failed":               {edit: status(clusterv1.Failed), kind: fault.Precondition, code: "cluster_not_ready", says: "error"},
		"being deleted":        {edit: status(clusterv1.Deleting), kind: fault.Precondition, code: "cluster_not_ready", says: "deleting"},
		"no join_base_url":     {req: tokenv1.CreateRequest{JoinBaseURL: "-"}, kind: fault.Precondition, code: "join_base_url_unset", says: "no address"},
		"a bad join_base_url":  {req: tokenv1.CreateRequest{JoinBaseURL: `https://x/"$(reboot)`}, kind: fault.Precondition, code: "join_base_url_invalid"},
		"tenant not listening": {door: (*door).shut, kind: fault.Unavailable, code: "tenant_unreachable", says: "demo"},
		"tenant never answers": {door: (*door).hang, kind: fault.Unavailable, code: "tenant_unreachable", says: "does not answer"},
		"a broken kubeconfig":  {edit: config([]byte("{{{")), kind: fault.Precondition, code: "kubeconfig_broken"},
		"a kubeconfig that execs": {
			edit: config(bytes.Replace(b.kubeconfig(), []byte(`"user":{"client`), []byte(`"user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/bin/false"},"client`), 1)),
			kind: fault.Precondition, code: "kubeconfig_broken",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, who := good, owner
			if c.edit != nil || c.door != nil {
				var d *door
				if cluster, d = b.clusterBehind(t, c.edit); c.door != nil { //nolint:contextcheck // cleanups outlive the test
					c.door(d)
				}
			}
			if c.who.UserID != "" {
				who = c.who
			}
			if c.req.ClusterID == "" {
				c.req.ClusterID = cluster.ID
			}
			switch c.req.JoinBaseURL {
			case "":
				c.req.JoinBaseURL = baseURL
			case "-":
				c.req.JoinBaseURL = ""
			}
			begin := time.Now()
			_, err := b.create(ctx, who, c.req)
			if f := wantFault(t, err, c.kind, c.code); !strings.Contains(f.Message, c.says) {
				t.Errorf("%q does not say %q", f.Message, c.says)
			}
			if took := time.Since(begin); took > 15*time.Second {
				t.Errorf("the answer took %v", took)
			}
		})
	}
	if diff := cmp.Diff(before, b.secrets(t)); diff != "" {
		t.Errorf("something was half created: %s", diff)
	}

	for _, token := range []string{"", "x", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", strings.Repeat("a", 4096)} {
		_, err := b.script(ctx, token)
		wantFault(t, err, fault.Unauthenticated, "token_malformed")
	}
	_, err := b.script(ctx, "abcdef.0123456789abcdef")
	wantFault(t, err, fault.Unauthenticated, "token_unknown")

	_, err = b.list(ctx, stranger, good.ID)
	wantFault(t, err, fault.NotFound, "cluster_not_found")
	_, err = b.revoke(ctx, stranger, good.ID, "tok_x")
	wantFault(t, err, fault.NotFound, "cluster_not_found")
	_, err = b.revoke(ctx, owner, good.ID, "tok_x")
	wantFault(t, err, fault.NotFound, "token_not_found")
	elsewhere := must(b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: good.ID, JoinBaseURL: baseURL}))
	_, err = b.revoke(ctx, owner, b.cluster(t, nil).ID, elsewhere.Token.ID)
	wantFault(t, err, fault.NotFound, "token_not_found")

	for name, call := range map[string]func() error{
		"create": func() error { _, err := rpc.Client(b.conn, tokenv1.Create)(ctx, tokenv1.CreateRequest{}); return err },
		"list":   func() error { _, err := rpc.Client(b.conn, tokenv1.List)(ctx, tokenv1.ListRequest{}); return err },
		"revoke": func() error { _, err := rpc.Client(b.conn, tokenv1.Revoke)(ctx, tokenv1.RevokeRequest{}); return err },
	} {
		if err := call(); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("%s without a principal: %v", name, err)
		}
	}
}

// The tokens of a cluster that is being removed end at once, and leave no record.
func TestForget(t *testing.T) {
	b := start(t)
	b.dns(t)
	ctx := t.Context()
	going, staying := b.cluster(t, nil), b.cluster(t, nil)
	token := tokenOf(t, must(b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: going.ID, JoinBaseURL: baseURL})).JoinCommand)
	must(b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: staying.ID, JoinBaseURL: baseURL}))
	forget := func(id string) (int64, error) {
		done, err := rpc.Client(b.conn, tokenv1.Forget)(ctx, tokenv1.ForgetRequest{ClusterID: id})
		return done.Forgotten, err
	}
	_, err := forget(going.ID)
	wantFault(t, err, fault.Precondition, "cluster_not_deleting")
	if _, err := b.script(ctx, token); err != nil {
		t.Errorf("a token of a cluster that lives: %v", err)
	}
	going.Status = clusterv1.Deleting
	b.put(going)
	for _, want := range []int64{1, 0} {
		if n, err := forget(going.ID); err != nil || n != want {
			t.Errorf("%d forgotten, want %d: %v", n, want, err)
		}
	}
	_, err = b.script(ctx, token)
	wantFault(t, err, fault.Unauthenticated, "token_unknown")
	b.forget(going)
	for _, id := range []string{going.ID, "", "' OR true --\x00"} {
		if n, err := forget(id); n != 0 || err != nil && id == going.ID {
			t.Errorf("%q: %d forgotten, %v", id, n, err)
		}
	}
	if tokens, err := b.list(ctx, owner, staying.ID); err != nil || len(tokens) != 1 {
		t.Errorf("another cluster's: %+v, %v", tokens, err)
	}
}

// A revocation counts for the join script even where the tenant cannot be told.
func TestRevokeWhileTheTenantIsAway(t *testing.T) {
	b := start(t)
	b.dns(t)
	ctx := t.Context()
	cluster, door := b.clusterBehind(t, nil)
	made := must(b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: baseURL}))
	door.hang()

	begin := time.Now()
	_, err := b.revoke(ctx, owner, cluster.ID, made.Token.ID)
	if f := wantFault(t, err, fault.Unavailable, "tenant_unreachable"); !strings.Contains(f.Message, "marked as revoked") {
		t.Errorf("%q", f.Message)
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("the answer took %v", took)
	}
	_, err = b.script(ctx, tokenOf(t, made.JoinCommand))
	wantFault(t, err, fault.Unauthenticated, "token_revoked")

	door.open()
	if _, err := b.revoke(ctx, owner, cluster.ID, made.Token.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := b.kube.CoreV1().Secrets("kube-system").Get(ctx, "bootstrap-token-"+made.Token.TokenID, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Secret: %v", err)
	}
}

func TestNothingIsHalfCreatedWithoutPostgreSQL(t *testing.T) {
	server := pgtest.Private(t)
	b := startWith(t, server.DSN())
	b.dns(t)
	ctx, cluster := t.Context(), b.cluster(t, nil)
	made := must(b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: baseURL}))
	before := b.secrets(t)
	server.Stop(t)
	for name, call := range map[string]func() error{
		"create": func() error {
			_, err := b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: baseURL})
			return err
		},
		"list":   func() error { _, err := b.list(ctx, owner, cluster.ID); return err },
		"revoke": func() error { _, err := b.revoke(ctx, owner, cluster.ID, made.Token.ID); return err },
		"script": func() error { _, err := b.script(ctx, tokenOf(t, made.JoinCommand)); return err },
	} {
		wantFault(t, call(), fault.Unavailable, "database_unavailable")
		_ = name
	}
	if diff := cmp.Diff(before, b.secrets(t)); diff != "" {
		t.Errorf("Secrets without a record: %s", diff)
	}
	server.Start(t)
	if _, err := b.list(ctx, owner, cluster.ID); err != nil {
		t.Errorf("after PostgreSQL came back: %v", err)
	}
}

func (b *bench) secrets(t *testing.T) []string {
	t.Helper()
	names := []string{}
	for _, s := range must(b.kube.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})).Items {
		names = append(names, s.Name)
	}
	return names
}

// Neither logs, spans, faults nor tables hold the secret half of any token, whatever happened to it.
func TestCanary(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	t.Cleanup(func() { otel.SetTracerProvider(before); _ = provider.Shutdown(context.Background()) })

	b := start(t)
	b.dns(t)
	ctx := t.Context()
	cluster, door := b.clusterBehind(t, nil)
	said, halves := "", []string{"canarycanarycana"}
	note := func(err error) {
		if f := fault.From(err); f != nil {
			said += fmt.Sprintf("%v %+v\n", err, f)
		}
	}
	for range 3 {
		made := must(b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: baseURL}))
		token := tokenOf(t, made.JoinCommand)
		halves = append(halves, token[7:])
		said += fmt.Sprintf("%+v", made.Token)
		_, err := b.script(ctx, token)
		note(err)
		_, err = b.script(ctx, token[:7]+"canarycanarycana")
		note(err)
		_, err = b.script(ctx, token+"!")
		note(err)
		tokens, err := b.list(ctx, owner, cluster.ID)
		said += fmt.Sprintf("%+v", tokens)
		note(err)
		_, err = b.revoke(ctx, owner, cluster.ID, made.Token.ID)
		note(err)
		_, err = b.script(ctx, token)
		note(err)
	}
	door.hang()
	_, err := b.create(ctx, owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: baseURL})
	note(err)

	pool := must(pgxpool.New(ctx, b.dsn))
	defer pool.Close()
	var table string
	if err := pool.QueryRow(ctx, "SELECT string_agg(t::text, ' ') FROM tokens t").Scan(&table); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table, owner.UserID) || len(spans.GetSpans()) == 0 || !strings.Contains(b.log.String(), "bootstrap token issued") {
		t.Fatal("there is nothing to search")
	}
	for where, text := range map[string]string{
		"answers": said, "log": b.log.String(), "table": table, "spans": fmt.Sprintf("%+v", spans.GetSpans()),
	} {
		for _, half := range halves {
			if strings.Contains(text, half) {
				t.Errorf("the %s hold a secret half", where)
			}
		}
	}
}

// Replicas that start at once share the work and the tables.
func TestTwoReplicas(t *testing.T) {
	b := &bench{rest: kubetest.Shared(t), dsn: pgtest.New(t), log: &buffer{}, clusters: map[string]clusterv1.Cluster{}}
	b.kube, b.conn = must(kubernetes.NewForConfig(b.rest)), connect(t)
	b.serveClusters(t)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { b.run(t) })
	}
	wg.Wait()
	b.dns(t)
	cluster := b.cluster(t, nil)
	var mu sync.Mutex
	seen := map[string]bool{}
	for range 20 {
		wg.Go(func() {
			made, err := b.create(t.Context(), owner, tokenv1.CreateRequest{ClusterID: cluster.ID, JoinBaseURL: baseURL})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen[made.Token.TokenID] = true
		})
	}
	wg.Wait()
	if tokens, err := b.list(t.Context(), owner, cluster.ID); err != nil || len(tokens) != 20 || len(seen) != 20 {
		t.Errorf("%d tokens listed, %d made: %v", len(tokens), len(seen), err)
	}
	for _, want := range []string{"storage initialized, driver=postgres", `"token_issuer":"client-go-bootstrap-token"`} {
		if !strings.Contains(b.log.String(), want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

func TestWithoutTheClusterService(t *testing.T) {
	b := &bench{rest: kubetest.Shared(t), dsn: pgtest.New(t), log: &buffer{}}
	b.kube, b.conn = must(kubernetes.NewForConfig(b.rest)), connect(t)
	b.run(t)
	begin := time.Now()
	_, err := b.list(t.Context(), owner, "cl_x")
	if !fault.Is(err, fault.Unavailable) || time.Since(begin) > time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
}

func TestMainRefusesWrongSettings(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		says string
	}{
		"no database":    {nil, "KUBEBYON_DATABASE_DSN"},
		"not PostgreSQL": {map[string]string{"KUBEBYON_DATABASE_DSN": "mysql://root:canary@localhost/x"}, "KUBEBYON_DATABASE_DSN"},
		"log format":     {map[string]string{"KUBEBYON_DATABASE_DSN": "postgresql://localhost/x", "KUBEBYON_LOG_FORMAT": "xml"}, "KUBEBYON_LOG_FORMAT"},
	} {
		var out bytes.Buffer
		code := app.Main(t.Context(), nil, func(k string) (string, bool) { v, ok := c.env[k]; return v, ok }, &out)
		if text := out.String(); code != 2 || strings.Count(text, "\n") != 1 || !strings.Contains(text, c.says) || strings.Contains(text, "canary") {
			t.Errorf("%s: %d, %q", name, code, text)
		}
	}
}

// Tokens are made and revoked by editors, and seen by viewers. What is refused reaches neither the tenant nor the table.
func TestAccess(t *testing.T) {
	b := start(t)
	ctx, c := t.Context(), b.cluster(t, nil)
	req := tokenv1.CreateRequest{ClusterID: c.ID, JoinBaseURL: baseURL}
	readOnly := owner
	readOnly.ReadOnly = true
	made := must(b.create(ctx, owner, req)).Token
	for name, who := range map[string]contract.Principal{"a viewer": viewer, "an owner who may only read": readOnly} {
		_, err := b.create(ctx, who, req)
		wantFault(t, err, fault.Forbidden, "cluster_access_insufficient")
		_, err = b.revoke(ctx, who, c.ID, made.ID)
		wantFault(t, err, fault.Forbidden, "cluster_access_insufficient")
		tokens, err := b.list(ctx, who, c.ID)
		if err != nil || len(tokens) != 1 || tokens[0].Status != tokenv1.Active {
			t.Errorf("%s sees %+v, %v", name, tokens, err)
		}
	}
	second, err := b.create(ctx, editor, req)
	if err != nil || second.Token.CreatedBy != editor.UserID {
		t.Errorf("an editor makes %+v, %v", second.Token, err)
	}
	if ended, err := b.revoke(ctx, editor, c.ID, made.ID); err != nil || ended.Status != tokenv1.Revoked {
		t.Errorf("an editor revokes %+v, %v", ended, err)
	}
	if tokens, err := b.list(ctx, editor, c.ID); err != nil || len(tokens) != 2 {
		t.Errorf("an editor sees %+v, %v", tokens, err)
	}
	for _, err := range []error{failure(b.create(ctx, stranger, req)), failure(b.revoke(ctx, stranger, c.ID, made.ID)), failure(b.list(ctx, stranger, c.ID))} {
		wantFault(t, err, fault.NotFound, "cluster_not_found")
	}
}

func failure[T any](_ T, err error) error { return err }
