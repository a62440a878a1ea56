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
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
	"github.com/kubebyon/kubebyon/services/node/app"
)

var (
	owner    = contract.Principal{UserID: "usr_owner", Role: contract.RoleUser}
	stranger = contract.Principal{UserID: "usr_stranger", Role: contract.RoleUser}
	viewer   = contract.Principal{UserID: "usr_viewer", Role: contract.RoleUser}
	editor   = contract.Principal{UserID: "usr_editor", Role: contract.RoleUser}
)

// world is one running node service among real servers. The one kube-apiserver is the host cluster and every tenant.
type world struct {
	conn *nats.Conn
	kube kubernetes.Interface
	rest *rest.Config
	dsn  string
	log  *buffer

	mu       sync.Mutex
	clusters map[string]clusterv1.Cluster
	gate     func() // called before the cluster service answers
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

func start(tb testing.TB) *world {
	tb.Helper()
	w := &world{rest: kubetest.Shared(tb), dsn: pgtest.New(tb), log: &buffer{}, clusters: map[string]clusterv1.Cluster{}}
	w.kube = must(kubernetes.NewForConfig(w.rest))
	w.conn = must(rpc.Connect(tb.Context(), rpc.NATS{NATSURL: natstest.New(tb)}, "test", slog.New(slog.DiscardHandler)))
	tb.Cleanup(w.conn.Close)
	w.serveClusters(tb)

	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	cfg := must(app.LoadConfig(func(k string) (string, bool) { return "postgresql://x/y", k == "KUBEBYON_DATABASE_DSN" }))
	cfg.DatabaseDSN = config.DSN{Secret: telemetry.Secret(w.dsn)}
	cfg.AllowLoopback = true
	done := make(chan error, 1)
	go func() {
		log := telemetry.NewLogger(io.Writer(w.log), "json", "debug")
		done <- app.Run(ctx, cfg, app.Deps{Log: log, NATS: w.conn, Host: w.kube})
	}()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	ping := rpc.Client(w.conn, nodev1.PingMethod)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if pong, err := ping(tb.Context(), contract.Ping{}); err == nil && pong.Service == "node" {
			return w
		} else if time.Now().After(deadline) {
			tb.Fatalf("the service does not answer: %v", err)
		}
	}
}

// serveClusters is clusterv1.Get as the contract has it: the owner, the members and administrators see a cluster, and a
// viewer is no editor.
func (w *world) serveClusters(tb testing.TB) {
	tb.Helper()
	server := rpc.NewServer(w.conn, rpc.Options{Service: "cluster", Queue: clusterv1.Queue, Log: slog.New(slog.DiscardHandler)})
	rpc.Serve(server, clusterv1.Get, func(ctx context.Context, req clusterv1.GetRequest) (clusterv1.Cluster, error) {
		who, err := rpc.RequirePrincipal(ctx)
		if err != nil {
			return clusterv1.Cluster{}, err
		}
		w.mu.Lock()
		c, ok := w.clusters[req.ID]
		gate := w.gate
		w.mu.Unlock()
		if gate != nil {
			gate()
		}
		member := who.UserID == viewer.UserID || who.UserID == editor.UserID
		switch {
		case !ok || who.Role != contract.RoleAdmin && who.UserID != c.OwnerID && !member:
			return clusterv1.Cluster{}, fault.New(fault.NotFound, "cluster_not_found", "there is no such cluster")
		case req.Need != "" && req.Need != clusterv1.Viewer && (who.UserID == viewer.UserID || who.ReadOnly):
			return clusterv1.Cluster{}, fault.New(fault.Forbidden, "cluster_access_insufficient", "this needs more")
		}
		return c, nil
	})
	if err := server.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = server.Shutdown(context.Background()) })
}

// cluster adds a tenant of its own namespace on the host, as its control plane's chart would leave it. edit may change the
// record and the kubeconfig Secret.
func (w *world) cluster(tb testing.TB, edit func(*clusterv1.Cluster, *corev1.Secret)) clusterv1.Cluster {
	tb.Helper()
	c, _ := w.clusterBehind(tb, edit)
	return c
}

func (w *world) clusterBehind(tb testing.TB, edit func(*clusterv1.Cluster, *corev1.Secret)) (clusterv1.Cluster, *door) {
	tb.Helper()
	ctx, ns := tb.Context(), kubetest.Namespace(tb, w.rest)
	c := clusterv1.Cluster{
		ID: "cl_" + strings.TrimPrefix(ns, "t-"), Name: "demo", VClusterName: "demo", Namespace: ns, OwnerID: owner.UserID,
		ControlPlane: clusterv1.Upstream, ControlPlaneHost: "127.0.0.1", PublicAccessMode: clusterv1.NodePort, Status: clusterv1.Ready,
	}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vc-demo", Namespace: ns}, Data: map[string][]byte{"config": w.kubeconfig()}}
	if edit != nil {
		edit(&c, s)
	}
	must(w.kube.CoreV1().Secrets(ns).Create(ctx, s, metav1.CreateOptions{}))
	d := newDoor(tb, strings.TrimPrefix(w.rest.Host, "https://"))
	must(w.kube.CoreV1().Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: ns},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{
			{Name: "kubelet", Port: 10250}, {Name: "https", Port: 443, NodePort: d.port},
		}},
	}, metav1.CreateOptions{}))
	tb.Cleanup(func() { // frees the node port
		_ = w.kube.CoreV1().Services(ns).Delete(context.Background(), "demo", metav1.DeleteOptions{})
	})
	w.put(c)
	return c, d
}

// door is where a tenant's API is reached: the node port of its Service, behind which stands the one kube-apiserver.
type door struct {
	listener net.Listener
	target   string
	silent   atomic.Bool
	port     int32

	mu   sync.Mutex
	held []net.Conn
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
	defer d.cut()
	for {
		in, err := d.listener.Accept()
		if err != nil {
			return
		}
		if d.hold(in); d.silent.Load() {
			continue
		}
		out, err := net.Dial("tcp", d.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		d.hold(out)
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			wg.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				_ = pair[0].Close()
			})
		}
	}
}

func (d *door) hold(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = append(d.held, c)
}

// cut ends every connection and lets no new one through.
func (d *door) cut() {
	_ = d.listener.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.held {
		_ = c.Close()
	}
}

// hang lets nobody through any more; shut refuses.
func (d *door) hang() { d.silent.Store(true) }
func (d *door) shut() { _ = d.listener.Close() }

func (w *world) put(c clusterv1.Cluster) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clusters[c.ID] = c
}

func (w *world) point(tb testing.TB, c clusterv1.Cluster, text []byte) {
	tb.Helper()
	secrets := w.kube.CoreV1().Secrets(c.Namespace)
	s := must(secrets.Get(tb.Context(), "vc-demo", metav1.GetOptions{}))
	s.Data["config"] = text
	must(secrets.Update(tb.Context(), s, metav1.UpdateOptions{}))
}

// kubeconfig is what a control plane exports, as JSON, which YAML includes.
func (w *world) kubeconfig() []byte {
	return w.kubeconfigOf(map[string]any{"client-certificate-data": w.rest.CertData, "client-key-data": w.rest.KeyData})
}

func (w *world) kubeconfigOf(user map[string]any) []byte {
	return must(json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": "https://localhost:8443", "certificate-authority-data": w.rest.CAData}}},
		"users":    []any{map[string]any{"name": "u", "user": user}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
	}))
}

func (w *world) list(ctx context.Context, who contract.Principal, req nodev1.ListRequest) (nodev1.ListResponse, error) {
	return rpc.Client(w.conn, nodev1.List)(rpc.WithPrincipal(ctx, who), req)
}

// register adds n nodes as kubelets do, with the images that a busy one reports.
func (w *world) register(tb testing.TB, n int, prefix string) {
	tb.Helper()
	quick := rest.CopyConfig(w.rest)
	quick.QPS, quick.Burst = -1, -1
	nodes := must(kubernetes.NewForConfig(quick)).CoreV1().Nodes()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 8 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				node := kubelet(fmt.Sprintf("%s-%04d", prefix, i))
				status := node.Status
				made, err := nodes.Create(tb.Context(), node, metav1.CreateOptions{})
				if err == nil {
					made.Status = status
					_, err = nodes.UpdateStatus(tb.Context(), made, metav1.UpdateOptions{})
				}
				if err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if tb.Failed() {
		tb.FailNow()
	}
}

func (w *world) empty(tb testing.TB) {
	tb.Helper()
	if err := w.kube.CoreV1().Nodes().DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// kubelet is a node as a kubelet of 1.37 reports it: 10 images, 4 conditions.
func kubelet(name string) *corev1.Node {
	now := metav1.Now()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "node-role.kubernetes.io/worker": "",
		}, Annotations: map[string]string{
			"flannel.alpha.coreos.com/backend-data": `{"VNI":1,"VtepMAC":"5e:2c:1b:0d:aa:01"}`, "flannel.alpha.coreos.com/backend-type": "vxlan",
			"flannel.alpha.coreos.com/kube-subnet-manager": "true", "flannel.alpha.coreos.com/public-ip": "198.18.0.11",
			"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
		}},
		Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.18.0.11"}, {Type: corev1.NodeHostName, Address: name}},
			Capacity:  corev1.ResourceList{},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: "5f2b6a1e0f5a4c0e8f8f6c5f3f1f2f3f", SystemUUID: "5f2b6a1e-0f5a-4c0e-8f8f-6c5f3f1f2f3f", BootID: "2f2b6a1e-0f5a-4c0e-8f8f-6c5f3f1f2f3f",
				KernelVersion: "6.1.0-18-amd64", OSImage: "Debian GNU/Linux 12 (bookworm)", ContainerRuntimeVersion: "containerd://2.4.2",
				KubeletVersion: "v1.37.2", OperatingSystem: "linux", Architecture: "amd64",
			},
		},
	}
	for k, v := range map[corev1.ResourceName]string{"cpu": "2", "memory": "4039684Ki", "pods": "110", "ephemeral-storage": "50620216Ki", "hugepages-2Mi": "0"} {
		n.Status.Capacity[k] = resource.MustParse(v)
	}
	n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	for kind, reason := range map[corev1.NodeConditionType]string{
		corev1.NodeMemoryPressure: "KubeletHasSufficientMemory", corev1.NodeDiskPressure: "KubeletHasNoDiskPressure", corev1.NodePIDPressure: "KubeletHasSufficientPID",
		corev1.NodeReady: "KubeletReady",
	} {
		c := corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: "kubelet has no problem of that kind", LastHeartbeatTime: now, LastTransitionTime: now}
		if kind == corev1.NodeReady {
			c.Status = corev1.ConditionTrue
		}
		n.Status.Conditions = append(n.Status.Conditions, c)
	}
	for i := range 10 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 73 << 20, Names: []string{
			fmt.Sprintf("registry.k8s.io/some/image-%d@sha256:%064d", i, i), fmt.Sprintf("registry.k8s.io/some/image-%d:v1.37.2", i),
		}})
	}
	return n
}

func wantFault(t *testing.T, err error, kind fault.Kind, code string) *fault.Error {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != kind || f.Code != code {
		t.Fatalf("got %v, want %s (%s)", err, kind, code)
	}
	return f
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestListIsLive(t *testing.T) {
	w := start(t)
	w.empty(t)
	ctx, cluster := t.Context(), w.cluster(t, nil)
	req := nodev1.ListRequest{ClusterID: cluster.ID}

	got, err := w.list(ctx, owner, req)
	if err != nil || got.Nodes == nil || len(got.Nodes) != 0 {
		t.Fatalf("no node yet: %+v, %v", got, err)
	}
	w.register(t, 3, "w")
	got, err = w.list(ctx, owner, req)
	if err != nil || len(got.Nodes) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := got.Nodes[0]; n.Name != "w-0001" || n.Status != nodev1.Ready || n.InternalIP != "198.18.0.11" || n.KubeletVersion != "v1.37.2" ||
		n.Capacity.CPU != "2" || len(n.Roles) != 1 || n.Roles[0] != "worker" || n.CreatedAt.IsZero() {
		t.Errorf("%+v", n)
	}
	if !sort.SliceIsSorted(got.Nodes, func(i, j int) bool { return got.Nodes[i].Name < got.Nodes[j].Name }) {
		t.Error("they are not in order")
	}

	node := must(w.kube.CoreV1().Nodes().Get(ctx, "w-0002", metav1.GetOptions{}))
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
		}
	}
	must(w.kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}))
	if got = must(w.list(ctx, owner, req)); got.Nodes[1].Status != nodev1.NotReady || got.Nodes[1].Reason != "NodeStatusUnknown" {
		t.Errorf("a change is not seen at once: %+v", got.Nodes[1])
	}
	if err := w.kube.CoreV1().Nodes().Delete(ctx, "w-0003", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got = must(w.list(ctx, owner, req)); len(got.Nodes) != 2 {
		t.Errorf("a removed node is still there: %+v", got.Nodes)
	}

	// R6.1: the table exists and stays empty.
	pool := must(pgxpool.New(ctx, w.dsn))
	defer pool.Close()
	var rows int
	if err := pool.QueryRow(ctx, "SELECT count(*) FROM nodes").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows in nodes, %v", rows, err)
	}
	for _, want := range []string{"storage initialized, driver=postgres", `"node_observer":"client-go"`} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

func TestPages(t *testing.T) {
	w := start(t)
	w.empty(t)
	ctx, cluster := t.Context(), w.cluster(t, nil)
	w.register(t, 25, "p")
	var names []string
	req := nodev1.ListRequest{ClusterID: cluster.ID, Limit: 10}
	for {
		page, err := w.list(ctx, owner, req)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Nodes) > 10 {
			t.Errorf("%d nodes in a page of 10", len(page.Nodes))
		}
		for _, n := range page.Nodes {
			names = append(names, n.Name)
		}
		if req.Continue = page.Continue; req.Continue == "" {
			break
		}
	}
	if len(names) != 25 || !sort.StringsAreSorted(names) {
		t.Errorf("%v", names)
	}
}

func TestBadInput(t *testing.T) {
	w := start(t)
	ctx, good := t.Context(), w.cluster(t, nil)
	status := func(s clusterv1.Status) func(*clusterv1.Cluster, *corev1.Secret) {
		return func(c *clusterv1.Cluster, _ *corev1.Secret) { c.Status = s }
	}
	config := func(text []byte) func(*clusterv1.Cluster, *corev1.Secret) {
		return func(_ *clusterv1.Cluster, s *corev1.Secret) { s.Data["config"] = text }
	}
	for name, c := range map[string]struct {
		edit func(*clusterv1.Cluster, *corev1.Secret) // nil, and no door: the good cluster
		door func(*door)
		who  contract.Principal
		req  nodev1.ListRequest
		kind fault.Kind
		code string
		says string
	}{
		"no such cluster":      {req: nodev1.ListRequest{ClusterID: "cl_missing"}, kind: fault.NotFound, code: "cluster_not_found"},
		"a cluster of others":  {who: stranger, kind: fault.NotFound, code: "cluster_not_found"},
		"limit negative":       {req: nodev1.ListRequest{Limit: -1}, kind: fault.Invalid, code: "limit_out_of_range"},
		"continue of nobody":   {req: nodev1.ListRequest{Continue: "!!!"}, kind: fault.Invalid, code: "continue_invalid"},
		"continue without end": {req: nodev1.ListRequest{Continue: strings.Repeat("a", 5000)}, kind: fault.Invalid, code: "continue_invalid"},
		"provisioning":         {edit: status(clusterv1.Provisioning), kind: fault.Precondition, code: "cluster_not_ready", says: "provisioning"},
		"deleting":             {edit: status(clusterv1.Deleting), kind: fault.Precondition, code: "cluster_not_ready", says: "deleting"},
		"not listening":        {door: (*door).shut, kind: fault.Unavailable, code: "tenant_unreachable", says: "refused"},
		"never answers":        {door: (*door).hang, kind: fault.Unavailable, code: "tenant_unreachable", says: "demo"},
		"refused credential":   {edit: config(w.kubeconfigOf(map[string]any{"token": "wrong"})), kind: fault.Unavailable, code: "tenant_access_refused", says: "demo"},
		"broken kubeconfig":    {edit: config([]byte("{{{")), kind: fault.Precondition, code: "kubeconfig_broken"},
		"no kubeconfig":        {edit: func(_ *clusterv1.Cluster, s *corev1.Secret) { s.Name = "other" }, kind: fault.Precondition, code: "kubeconfig_missing"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, who := good, owner
			if c.edit != nil || c.door != nil {
				var d *door
				if cluster, d = w.clusterBehind(t, c.edit); c.door != nil { //nolint:contextcheck // cleanups outlive the test
					c.door(d)
				}
			}
			if c.who.UserID != "" {
				who = c.who
			}
			if c.req.ClusterID == "" {
				c.req.ClusterID = cluster.ID
			}
			begin := time.Now()
			_, err := w.list(ctx, who, c.req)
			if f := wantFault(t, err, c.kind, c.code); !strings.Contains(f.Message, c.says) {
				t.Errorf("%q does not say %q", f.Message, c.says)
			}
			if took := time.Since(begin); took > 15*time.Second {
				t.Errorf("the answer took %v", took)
			}
		})
	}
	if _, err := rpc.Client(w.conn, nodev1.List)(ctx, nodev1.ListRequest{ClusterID: good.ID}); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("without a principal: %v", err)
	}
	failed := w.cluster(t, status(clusterv1.Failed))
	if _, err := w.list(ctx, owner, nodev1.ListRequest{ClusterID: failed.ID}); err != nil {
		t.Errorf("a cluster in error whose control plane answers: %v", err)
	}
}

// Whoever loses access gets nothing from the next call on, however recently the list was theirs and whatever the tenant,
// which is asked at the same time, has answered by then.
func TestAccessIsCheckedEveryTime(t *testing.T) {
	w := start(t)
	ctx, cluster := t.Context(), w.cluster(t, nil)
	req := nodev1.ListRequest{ClusterID: cluster.ID}
	for range 3 {
		if _, err := w.list(ctx, owner, req); err != nil {
			t.Fatal(err)
		}
	}
	_, err := w.list(ctx, stranger, req)
	wantFault(t, err, fault.NotFound, "cluster_not_found")

	sold := cluster
	sold.OwnerID = stranger.UserID
	w.put(sold)
	w.mu.Lock()
	w.gate = func() { time.Sleep(300 * time.Millisecond) } // the tenant is faster than this
	w.mu.Unlock()
	_, err = w.list(ctx, owner, req)
	wantFault(t, err, fault.NotFound, "cluster_not_found")
	if _, err := w.list(ctx, stranger, req); err != nil {
		t.Errorf("its new owner: %v", err)
	}
}

// An address or credential that was changed counts at once where the old one has stopped working, and not only when the
// kubeconfig is read again anyway.
func TestWhatChangedCountsAtOnce(t *testing.T) {
	w := start(t)
	ctx := t.Context()
	moved, old := w.clusterBehind(t, nil)
	for range 2 {
		if _, err := w.list(ctx, owner, nodev1.ListRequest{ClusterID: moved.ID}); err != nil {
			t.Fatal(err)
		}
	}
	services := w.kube.CoreV1().Services(moved.Namespace)
	service := must(services.Get(ctx, "demo", metav1.GetOptions{}))
	service.Spec.Ports[1].NodePort = newDoor(t, old.target).port
	must(services.Update(ctx, service, metav1.UpdateOptions{}))
	old.cut()
	if _, err := w.list(ctx, owner, nodev1.ListRequest{ClusterID: moved.ID}); err != nil {
		t.Errorf("after its node port changed: %v", err)
	}

	rotated := w.cluster(t, func(_ *clusterv1.Cluster, s *corev1.Secret) {
		s.Data["config"] = w.kubeconfigOf(map[string]any{"token": "old"})
	})
	_, err := w.list(ctx, owner, nodev1.ListRequest{ClusterID: rotated.ID})
	wantFault(t, err, fault.Unavailable, "tenant_access_refused")
	w.point(t, rotated, w.kubeconfig())
	if _, err := w.list(ctx, owner, nodev1.ListRequest{ClusterID: rotated.ID}); err != nil {
		t.Errorf("after its credential changed: %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	w := start(t)
	cluster := w.cluster(t, nil)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := w.list(t.Context(), owner, nodev1.ListRequest{ClusterID: cluster.ID}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestMainRefusesWrongSettings(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"KUBEBYON_DATABASE_DSN":      {},
		"KUBEBYON_NODE_CLIENTS":      {"KUBEBYON_NODE_CLIENTS": "0", "KUBEBYON_DATABASE_DSN": "postgresql://localhost/x"},
		"KUBEBYON_NODE_CLIENT_IDLE":  {"KUBEBYON_NODE_CLIENT_IDLE": "soon", "KUBEBYON_DATABASE_DSN": "postgresql://localhost/x"},
		"KUBEBYON_NODE_CLIENT_FRESH": {"KUBEBYON_NODE_CLIENT_FRESH": "-1s", "KUBEBYON_DATABASE_DSN": "postgresql://localhost/x"},
	} {
		var out bytes.Buffer
		code := app.Main(t.Context(), nil, func(k string) (string, bool) { v, ok := env[k]; return v, ok }, &out)
		if text := out.String(); code != 2 || strings.Count(text, "\n") != 1 || !strings.Contains(text, name) || !strings.Contains(text, "accepts") {
			t.Errorf("%s: %d, %q", name, code, text)
		}
	}
}

// To see the nodes one need not be more than a viewer, and an owner who may only read is that.
func TestViewersSeeTheNodes(t *testing.T) {
	w := start(t)
	w.empty(t)
	w.register(t, 2, "v")
	cluster := w.cluster(t, nil)
	readOnly := owner
	readOnly.ReadOnly = true
	for _, who := range []contract.Principal{viewer, editor, readOnly} {
		for range 2 { // the second time from a guess
			if got, err := w.list(t.Context(), who, nodev1.ListRequest{ClusterID: cluster.ID}); err != nil || len(got.Nodes) != 2 {
				t.Errorf("%+v: %+v, %v", who, got, err)
			}
		}
	}
}
