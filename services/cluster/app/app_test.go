package app

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

// nowhere is a kubeconfig of a host cluster that does not answer.
func nowhere(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n" +
		"clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: a, user: {token: x}}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func environment(t *testing.T, more map[string]string) func(string) (string, bool) {
	t.Helper()
	env := map[string]string{
		"KUBEBYON_DATABASE_DSN": "postgresql://u:p@127.0.0.1:1/db", "KUBEBYON_KUBECONFIG_PATH": nowhere(t), "KUBEBYON_CONTROL_PLANE": "upstream",
		"KUBEBYON_PROVISION_TIMEOUT": "10s",
	}
	maps.Copy(env, more)
	return func(key string) (string, bool) { value, set := env[key]; return value, set }
}

// run starts the service in this process and stops it with the test.
func run(t *testing.T, more map[string]string) *lockedBuffer {
	t.Helper()
	cfg, err := LoadConfig(environment(t, more))
	if err != nil {
		t.Fatal(err)
	}
	log := &lockedBuffer{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg, Deps{Log: slog.New(slog.NewTextHandler(log, nil))}) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		case <-time.After(30 * time.Second):
			t.Error("the service does not stop")
		}
		if t.Failed() {
			t.Logf("the service's log:\n%s", log)
		}
	})
	return log
}

func dial(t *testing.T, url string) *nats.Conn {
	t.Helper()
	conn, err := rpc.Connect(t.Context(), rpc.NATS{NATSURL: url}, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func answers(conn *nats.Conn) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := rpc.Client(conn, clusterv1.PingMethod)(ctx, contract.Ping{})
	return err == nil
}

func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited %s in vain for %s", limit, what)
}

var (
	alice = contract.Principal{UserID: "usr_a", Role: contract.RoleUser}
	bob   = contract.Principal{UserID: "usr_b", Role: contract.RoleUser}
	admin = contract.Principal{UserID: "usr_admin", Role: contract.RoleAdmin}
)

func ask[Req, Res any](t *testing.T, conn *nats.Conn, p contract.Principal, m contract.Method[Req, Res], req Req) (Res, error) {
	t.Helper()
	return rpc.Client(conn, m)(rpc.WithPrincipal(t.Context(), p), req)
}

func TestBadInput(t *testing.T) {
	url := natstest.New(t)
	run(t, map[string]string{"KUBEBYON_DATABASE_DSN": pgtest.New(t), "KUBEBYON_NATS_URL": url})
	conn := dial(t, url)
	eventually(t, 20*time.Second, "the service", func() bool { return answers(conn) })

	for _, c := range []struct {
		name string
		req  clusterv1.CreateRequest
		kind fault.Kind
		code string
		in   string
	}{
		{"no name", clusterv1.CreateRequest{}, fault.Invalid, "cluster_name_required", "name"},
		{"blank name", clusterv1.CreateRequest{Name: " \t"}, fault.Invalid, "cluster_name_required", "name"},
		{"long name", clusterv1.CreateRequest{Name: strings.Repeat("x", 64)}, fault.Invalid, "cluster_name_too_long", "name"},
		{"control characters", clusterv1.CreateRequest{Name: "a\x07b"}, fault.Invalid, "cluster_name_unprintable", "name"},
		{"unusable name", clusterv1.CreateRequest{Name: "集群"}, fault.Invalid, "cluster_name_unusable", "name"},
		{"unusable vcluster_name", clusterv1.CreateRequest{Name: "a", VClusterName: "!"}, fault.Invalid, "vcluster_name_unusable", "vcluster_name"},
		{"unusable namespace", clusterv1.CreateRequest{Name: "a", Namespace: "!"}, fault.Invalid, "namespace_unusable", "namespace"},
		{"kube-system", clusterv1.CreateRequest{Name: "a", Namespace: "kube-system"}, fault.Invalid, "namespace_reserved", "namespace"},
		{"our own namespace", clusterv1.CreateRequest{Name: "a", Namespace: "kubebyon-system"}, fault.Invalid, "namespace_reserved", "namespace"},
		{"a name that is reserved", clusterv1.CreateRequest{Name: "Kube System"}, fault.Invalid, "namespace_reserved", "name"},
		{"URL", clusterv1.CreateRequest{Name: "a", ControlPlaneHost: "https://a.example.com"}, fault.Invalid, "host_is_url", "control_plane_host"},
		{"port", clusterv1.CreateRequest{Name: "a", ControlPlaneHost: "a.example.com:443"}, fault.Invalid, "host_has_port", "control_plane_host"},
		{"IPv6 of an upstream tenant", clusterv1.CreateRequest{Name: "a", ControlPlane: clusterv1.Upstream, ControlPlaneHost: "2001:db8::1"}, fault.Invalid, "host_not_ipv4", "control_plane_host"},
		{"loopback", clusterv1.CreateRequest{Name: "a", ControlPlaneHost: "127.0.0.1"}, fault.Invalid, "host_refused", "control_plane_host"},
		{"metadata", clusterv1.CreateRequest{Name: "a", ControlPlaneHost: "169.254.169.254"}, fault.Invalid, "host_refused", "control_plane_host"},
		{"IP behind the balancer", clusterv1.CreateRequest{Name: "a", ControlPlaneHost: "198.18.0.2", PublicAccessMode: "loadbalancer"}, fault.Invalid, "host_must_be_domain", "control_plane_host"},
		{"no host behind the balancer", clusterv1.CreateRequest{Name: "a", PublicAccessMode: "loadbalancer"}, fault.Invalid, "control_plane_host_required", "control_plane_host"},
		{"unknown mode", clusterv1.CreateRequest{Name: "a", PublicAccessMode: "x"}, fault.Invalid, "public_access_mode_unknown", "public_access_mode"},
		{"unknown control plane", clusterv1.CreateRequest{Name: "a", ControlPlane: "k3s"}, fault.Invalid, "control_plane_unknown", "control_plane"},
		{"no host, and no host cluster to ask", clusterv1.CreateRequest{Name: "a"}, fault.Unavailable, "host_cluster_unreachable", ""},
	} {
		_, err := ask(t, conn, alice, clusterv1.Create, c.req)
		if f := fault.From(err); err == nil || f.Kind != c.kind || f.Code != c.code || f.Field != c.in {
			t.Errorf("%s: %v in %q", c.name, err, fault.From(err).Field)
		}
	}
	if list, err := ask(t, conn, admin, clusterv1.List, clusterv1.ListRequest{}); err != nil || len(list.Clusters) != 0 {
		t.Fatalf("half created: %+v, %v", list, err)
	}

	made, err := ask(t, conn, alice, clusterv1.Create, clusterv1.CreateRequest{Name: "Demo", Namespace: "team", ControlPlaneHost: "K8S.example.com."})
	if err != nil {
		t.Fatal(err)
	}
	if made.Status != clusterv1.Provisioning || made.VClusterName != "demo" || made.Namespace != "team" || made.ControlPlaneHost != "k8s.example.com" ||
		made.OwnerID != alice.UserID || made.ControlPlane != clusterv1.Upstream || len(made.ID) != 23 {
		t.Errorf("%+v", made)
	}
	for _, c := range []struct {
		who  contract.Principal
		req  clusterv1.CreateRequest
		code string
	}{
		{alice, clusterv1.CreateRequest{Name: "Demo", Namespace: "x"}, "cluster_name_taken"},
		{alice, clusterv1.CreateRequest{Name: "DEMO!", Namespace: "x"}, "cluster_name_taken"},
		{bob, clusterv1.CreateRequest{Name: "other", Namespace: "team"}, "namespace_in_use"},
	} {
		c.req.ControlPlaneHost = "k8s.example.com"
		if _, err := ask(t, conn, c.who, clusterv1.Create, c.req); fault.From(err).Code != c.code || !fault.Is(err, fault.Conflict) {
			t.Errorf("%+v: %v", c.req, err)
		}
	}
	// Another owner's derived namespace gives way to what is there.
	if other, err := ask(t, conn, bob, clusterv1.Create, clusterv1.CreateRequest{Name: "team", ControlPlaneHost: "k8s.example.com"}); err != nil || !strings.HasPrefix(other.Namespace, "team-") {
		t.Errorf("%+v, %v", other, err)
	}

	// A stranger sees nothing and changes nothing; an admin sees all.
	name := "x"
	for what, err := range map[string]error{
		"get":        second(ask(t, conn, bob, clusterv1.Get, clusterv1.GetRequest{ID: made.ID})),
		"update":     second(ask(t, conn, bob, clusterv1.Update, clusterv1.UpdateRequest{ID: made.ID, Name: &name})),
		"delete":     second(ask(t, conn, bob, clusterv1.Delete, clusterv1.DeleteRequest{ID: made.ID})),
		"events":     second(ask(t, conn, bob, clusterv1.Events, clusterv1.EventsRequest{ID: made.ID})),
		"kubeconfig": second(ask(t, conn, bob, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: made.ID})),
		"unknown":    second(ask(t, conn, alice, clusterv1.Get, clusterv1.GetRequest{ID: "cl_none"})),
		"injection":  second(ask(t, conn, alice, clusterv1.Get, clusterv1.GetRequest{ID: "' OR 1=1 --\x00"})),
	} {
		if f := fault.From(err); err == nil || f.Kind != fault.NotFound || f.Code != "cluster_not_found" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if list, err := ask(t, conn, bob, clusterv1.List, clusterv1.ListRequest{}); err != nil || len(list.Clusters) != 1 {
		t.Errorf("bob's list: %+v, %v", list, err)
	}
	if list, err := ask(t, conn, admin, clusterv1.List, clusterv1.ListRequest{}); err != nil || len(list.Clusters) != 2 {
		t.Errorf("the admin's list: %+v, %v", list, err)
	}
	for what, err := range map[string]error{
		"create":     second(rpc.Client(conn, clusterv1.Create)(t.Context(), clusterv1.CreateRequest{Name: "y", ControlPlaneHost: "k8s.example.com"})),
		"list":       second(rpc.Client(conn, clusterv1.List)(t.Context(), clusterv1.ListRequest{})),
		"get":        second(rpc.Client(conn, clusterv1.Get)(t.Context(), clusterv1.GetRequest{ID: made.ID})),
		"update":     second(rpc.Client(conn, clusterv1.Update)(t.Context(), clusterv1.UpdateRequest{ID: made.ID, Name: &name})),
		"delete":     second(rpc.Client(conn, clusterv1.Delete)(t.Context(), clusterv1.DeleteRequest{ID: made.ID})),
		"events":     second(rpc.Client(conn, clusterv1.Events)(t.Context(), clusterv1.EventsRequest{ID: made.ID})),
		"kubeconfig": second(rpc.Client(conn, clusterv1.Kubeconfig)(t.Context(), clusterv1.KubeconfigRequest{ID: made.ID})),
	} {
		if !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("%s without a principal: %v", what, err)
		}
	}

	// The host cluster is away: the reason says so, until the time is over.
	eventually(t, 10*time.Second, "the reason", func() bool {
		c, err := ask(t, conn, alice, clusterv1.Get, clusterv1.GetRequest{ID: made.ID})
		return err == nil && c.Reason != nil && c.Reason.Code == "host_cluster_unreachable"
	})
	eventually(t, 20*time.Second, "the error", func() bool {
		c, err := ask(t, conn, alice, clusterv1.Get, clusterv1.GetRequest{ID: made.ID})
		return err == nil && c.Status == clusterv1.Failed && c.Reason.Code == "host_cluster_unreachable"
	})
	if _, err := ask(t, conn, alice, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: made.ID}); fault.From(err).Code != "cluster_not_ready" {
		t.Error(err)
	}
	host := "http://x"
	if _, err := ask(t, conn, alice, clusterv1.Update, clusterv1.UpdateRequest{ID: made.ID, ControlPlaneHost: &host}); fault.From(err).Code != "host_is_url" {
		t.Error(err)
	}
	host = "2001:db8::1"
	if _, err := ask(t, conn, alice, clusterv1.Update, clusterv1.UpdateRequest{ID: made.ID, ControlPlaneHost: &host}); fault.From(err).Code != "host_not_ipv4" {
		t.Error(err)
	}
	if c, err := ask(t, conn, alice, clusterv1.Update, clusterv1.UpdateRequest{ID: made.ID, Name: &made.Name}); err != nil || c.Status != clusterv1.Failed {
		t.Errorf("a change of nothing: %+v, %v", c, err)
	}
	if c, err := ask(t, conn, alice, clusterv1.Retry, clusterv1.RetryRequest{ID: made.ID}); err != nil || c.Status != clusterv1.Provisioning || c.Reason != nil {
		t.Errorf("trying again: %+v, %v", c, err)
	}
	if _, err := ask(t, conn, alice, clusterv1.Retry, clusterv1.RetryRequest{ID: made.ID}); codeOf(err) != "cluster_not_failed" || !fault.Is(err, fault.Precondition) {
		t.Errorf("trying again while it is tried: %v", err)
	}
	for range 2 {
		if c, err := ask(t, conn, alice, clusterv1.Delete, clusterv1.DeleteRequest{ID: made.ID}); err != nil || c.Status != clusterv1.Deleting {
			t.Errorf("delete: %+v, %v", c, err)
		}
	}
	if _, err := ask(t, conn, alice, clusterv1.Update, clusterv1.UpdateRequest{ID: made.ID, Name: &name}); fault.From(err).Code != "cluster_deleting" {
		t.Error(err)
	}
	if _, err := ask(t, conn, alice, clusterv1.Create, clusterv1.CreateRequest{Name: "Demo", ControlPlaneHost: "k8s.example.com"}); fault.From(err).Code != "cluster_name_taken" {
		t.Errorf("created beside one that is being deleted: %v", err)
	}
}

func second[A any](_ A, err error) error { return err }

func TestServersAwayAtTheStartAndMidway(t *testing.T) {
	database := pgtest.Private(t)
	bus := natstest.Start(t)
	database.Stop(t)
	bus.Stop()
	log := run(t, map[string]string{"KUBEBYON_DATABASE_DSN": database.DSN(), "KUBEBYON_NATS_URL": bus.URL()})
	eventually(t, 10*time.Second, "a line about PostgreSQL", func() bool { return strings.Contains(log.String(), "postgres cannot be reached yet") })
	database.Start(t)
	eventually(t, 15*time.Second, "the tables", func() bool { return strings.Contains(log.String(), "storage initialized") })
	bus.Restart(t)
	conn := dial(t, bus.URL())
	eventually(t, 15*time.Second, "the service", func() bool { return answers(conn) })
	create := clusterv1.CreateRequest{Name: "a", ControlPlaneHost: "k8s.example.com"}
	made, err := ask(t, conn, alice, clusterv1.Create, create)
	if err != nil {
		t.Fatal(err)
	}

	bus.Stop()
	time.Sleep(time.Second)
	bus.Restart(t)
	eventually(t, 15*time.Second, "NATS again", func() bool { return answers(conn) })

	database.Stop(t)
	create.Name = "b"
	began := time.Now()
	if _, err := ask(t, conn, alice, clusterv1.Create, create); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without PostgreSQL: %v", err)
	}
	if _, err := ask(t, conn, alice, clusterv1.List, clusterv1.ListRequest{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without PostgreSQL: %v", err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the answers took %s", took)
	}
	database.Start(t)
	eventually(t, 15*time.Second, "PostgreSQL again", func() bool {
		list, err := ask(t, conn, alice, clusterv1.List, clusterv1.ListRequest{})
		return err == nil && len(list.Clusters) == 1
	})
	// The work goes on as well: it ends in error, as the host cluster stays away.
	eventually(t, 40*time.Second, "the work", func() bool {
		c, err := ask(t, conn, alice, clusterv1.Get, clusterv1.GetRequest{ID: made.ID})
		return err == nil && c.Status == clusterv1.Failed
	})
}

func TestWrongConfigurationIsOneLine(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for variable, values := range map[string][]string{
		"KUBEBYON_DATABASE_DSN":                      {"mysql://hunter2@x", ""},
		"KUBEBYON_KUBECONFIG_PATH":                   {"/none", file("kubeconfig", "no")},
		"KUBEBYON_CONTROL_PLANE":                     {"k3s"},
		"KUBEBYON_VCLUSTER_CHART":                    {"/none", "oci://", file("chart.tgz", "hunter2")},
		"KUBEBYON_VCLUSTER_CHART_VERSION":            {"latest", "0.33"},
		"KUBEBYON_VCLUSTER_VALUES_FILE":              {"/none", dir, file("list.yaml", "- hunter2"), file("bad.yaml", "a: [hunter2"), file("shared.yaml", "privateNodes: {enabled: false}")},
		"KUBEBYON_UPSTREAM_VALUES_FILE":              {"/none"},
		"KUBEBYON_KUBERNETES_VERSION":                {"1.37", "v1.37.2; reboot"},
		"KUBEBYON_PLATFORM_API_KEY_SECRET_NAME":      {"Not A Name"},
		"KUBEBYON_PLATFORM_API_KEY_SOURCE_NAMESPACE": {"../x"},
		"KUBEBYON_HAPROXY_NODE_ADDRESS_TYPE":         {"both"},
		"KUBEBYON_PROVISION_TIMEOUT":                 {"soon", "1s", "3h"},
		"KUBEBYON_CLUSTER_WORKERS":                   {"0", "many"},
		"KUBEBYON_CONSOLE_DOMAIN":                    {"https://console.example.com", "console", "10.0.0.7", "*.example.com", "console.example.com:443", "cönsole.example.com"},
		"KUBEBYON_BASE_DOMAIN":                       {"*.k8s.example.com", "k8s", "a..b", "k8s_a.example.com", strings.Repeat("a.", 120) + "com"},
		"KUBEBYON_RESERVED_DOMAINS":                  {"example.com,", "example.com,,example.org", "*.example.com", "example.com example.org"},
	} {
		for _, value := range values {
			var stderr bytes.Buffer
			status := Main(t.Context(), nil, environment(t, map[string]string{variable: value}), &stderr)
			text := stderr.String()
			if status != 2 || strings.Count(text, "\n") != 1 || !strings.Contains(text, variable) || !strings.Contains(text, "accepts") || strings.Contains(text, "hunter2") {
				t.Errorf("%s=%q: status %d, %q", variable, value, status, text)
			}
		}
	}
}
