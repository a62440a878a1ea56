//go:build e2e

package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

// binary builds the service once for the whole run.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kubebyon-cluster")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kubebyon-cluster")
	out, err := exec.Command("go", "build", "-o", path, "..").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(status)
}

// world is a real host cluster, database and NATS, and the replicas of the service that a test starts.
type world struct {
	t      *testing.T
	kube   kubernetes.Interface
	dsn    string
	url    string
	config string
	conn   *nats.Conn
	tokens *tokenService
	made   []string // namespaces
}

func newWorld(t *testing.T) *world {
	t.Helper()
	path := os.Getenv("KUBEBYON_TEST_HOST_KUBECONFIG")
	if path == "" {
		t.Fatal("KUBEBYON_TEST_HOST_KUBECONFIG is not set: run deploy/test-e2e.sh, or `go run ./deploy/devhost up` and name its host.kubeconfig")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, kube: kubernetes.NewForConfigOrDie(cfg), dsn: pgtest.New(t), url: natstest.New(t), config: path}
	if w.conn, err = rpc.Connect(t.Context(), rpc.NATS{NATSURL: w.url}, "test", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	w.tokens = serveTokens(t, w.conn)
	t.Cleanup(func() { // after the replicas have stopped
		w.conn.Close()
		for _, namespace := range w.made {
			_ = w.kube.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{})
		}
	})
	return w
}

type replica struct {
	t   *testing.T
	cmd *exec.Cmd
	log *lockedBuffer
	end chan struct{}
}

// start runs the binary until the test ends, unless it is killed before.
func (w *world) start(env ...string) *replica {
	w.t.Helper()
	path, err := binary()
	if err != nil {
		w.t.Fatal(err)
	}
	r := &replica{t: w.t, cmd: exec.Command(path), log: &lockedBuffer{}, end: make(chan struct{})}
	r.cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + w.t.TempDir(), "KUBEBYON_DATABASE_DSN=" + w.dsn, "KUBEBYON_NATS_URL=" + w.url,
		"KUBEBYON_KUBECONFIG_PATH=" + w.config, "KUBEBYON_CONTROL_PLANE=upstream"}, env...)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() { defer close(r.end); _ = r.cmd.Wait() }()
	w.t.Cleanup(func() {
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-r.end:
		case <-time.After(30 * time.Second):
			w.t.Error("the service does not stop")
			r.kill()
		}
		if w.t.Failed() {
			w.t.Logf("the service's log:\n%s", r.log)
		}
	})
	w.eventually(3*time.Minute, "the service to answer", func() bool {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		_, err := rpc.Client(w.conn, clusterv1.PingMethod)(ctx, contract.Ping{})
		return err == nil && strings.Contains(r.log.String(), "the cluster service is ready")
	})
	return r
}

func (r *replica) kill() {
	_ = r.cmd.Process.Kill()
	<-r.end
}

func (w *world) eventually(limit time.Duration, what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	w.t.Fatalf("waited %s in vain for %s", limit, what)
}

// call asks as usr_a.
func call[Req, Res any](w *world, m contract.Method[Req, Res], req Req) (Res, error) {
	return callAs(w, contract.Principal{UserID: "usr_a", Role: contract.RoleUser}, m, req)
}

func callAs[Req, Res any](w *world, p contract.Principal, m contract.Method[Req, Res], req Req) (Res, error) {
	return rpc.Client(w.conn, m)(rpc.WithPrincipal(w.t.Context(), p), req)
}

// create expects it to be accepted; what is left of it is removed when the test ends.
func (w *world) create(req clusterv1.CreateRequest) clusterv1.Cluster {
	w.t.Helper()
	c, err := call(w, clusterv1.Create, req)
	if err != nil {
		w.t.Fatal(err)
	}
	if c.Status != clusterv1.Provisioning {
		w.t.Fatalf("the answer has the status %s", c.Status)
	}
	w.made = append(w.made, c.Namespace)
	return c
}

func (w *world) get(id string) clusterv1.Cluster {
	w.t.Helper()
	c, err := call(w, clusterv1.Get, clusterv1.GetRequest{ID: id})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) timeline(id string) string {
	events, err := call(w, clusterv1.Events, clusterv1.EventsRequest{ID: id})
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, e := range events.Events {
		fmt.Fprintf(&out, "%s %s %s: %s\n", e.At.Format("15:04:05.000"), e.Level, e.Code, e.Message)
	}
	return out.String()
}

// until waits for a status, and fails at an error that was not asked for.
func (w *world) until(id string, status clusterv1.Status, limit time.Duration) clusterv1.Cluster {
	w.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		c, err := call(w, clusterv1.Get, clusterv1.GetRequest{ID: id})
		if err == nil && c.Status == status {
			return c
		}
		if (err == nil && c.Status == clusterv1.Failed) || time.Now().After(end) {
			w.t.Fatalf("waited for %s: %+v, %v, %v\n%s", status, c, c.Reason, err, w.timeline(id))
		}
	}
}

// remove deletes the cluster and checks that nothing is left.
func (w *world) remove(c clusterv1.Cluster) {
	w.t.Helper()
	got, err := call(w, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID})
	if err != nil || got.Status != clusterv1.Deleting {
		w.t.Fatal(got, err)
	}
	w.gone(c)
}

func (w *world) gone(c clusterv1.Cluster) {
	w.t.Helper()
	w.eventually(3*time.Minute, "the cluster to go", func() bool {
		_, err := call(w, clusterv1.Get, clusterv1.GetRequest{ID: c.ID})
		return fault.Is(err, fault.NotFound)
	})
	ctx := w.t.Context()
	if _, err := w.kube.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("the namespace is left: %v", err)
	}
	volumes, err := w.kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, v := range volumes.Items {
		if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == c.Namespace {
			w.t.Errorf("the volume %s is left", v.Name)
		}
	}
}

// codes of the timeline, in order.
func (w *world) codes(id string) string {
	w.t.Helper()
	events, err := call(w, clusterv1.Events, clusterv1.EventsRequest{ID: id})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range events.Events {
		out = append(out, e.Code)
	}
	return strings.Join(out, " ")
}

// tenant is a client with the credential that a user downloads.
func (w *world) tenant(id string) kubernetes.Interface {
	w.t.Helper()
	config, err := call(w, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: id})
	if err != nil {
		w.t.Fatal(err)
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig([]byte(config.Kubeconfig))
	if err != nil {
		w.t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return client
}

func (w *world) release(c clusterv1.Cluster) string {
	list, err := w.kube.CoreV1().Secrets(c.Namespace).List(w.t.Context(), metav1.ListOptions{LabelSelector: "owner=helm,name=" + c.VClusterName})
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	newest := list.Items[0]
	for _, s := range list.Items {
		if s.CreationTimestamp.After(newest.CreationTimestamp.Time) {
			newest = s
		}
	}
	return newest.Labels["status"]
}

func TestE2ECreateIsReadyAndDeleteLeavesNothing(t *testing.T) {
	w := newWorld(t)
	r := w.start()
	sent := time.Now()
	c := w.create(clusterv1.CreateRequest{Name: "E2E ready"})
	t.Logf("answered after %s", time.Since(sent).Round(time.Millisecond))
	if _, err := call(w, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: c.ID}); fault.From(err).Code != "cluster_not_ready" {
		t.Errorf("a kubeconfig before it is ready: %v", err)
	}
	w.eventually(3*time.Minute, "the Pod", func() bool {
		pods, err := w.kube.CoreV1().Pods(c.Namespace).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(pods.Items) == 1
	})
	t.Logf("the Pod was created after %s", time.Since(sent).Round(time.Millisecond))
	c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	t.Logf("ready after %s\n%s", time.Since(sent).Round(time.Millisecond), w.timeline(c.ID))
	if !strings.HasPrefix(c.APIEndpoint, "https://"+c.ControlPlaneHost+":") || c.KubernetesVersion == "" || c.Reason != nil {
		t.Errorf("%+v, %v", c, c.Reason)
	}
	for _, line := range []string{"storage initialized, driver=postgres", "using vcluster backend", "control_plane_provisioner=helm-sdk"} {
		if !strings.Contains(r.log.String(), line) {
			t.Errorf("the log lacks %q", line)
		}
	}
	mark := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mark", Namespace: "default"}}
	if _, err := w.tenant(c.ID).CoreV1().ConfigMaps("default").Create(t.Context(), mark, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	for _, p := range []contract.Principal{{UserID: "usr_b", Role: contract.RoleUser}, {UserID: "usr_", Role: contract.RoleUser}} {
		if _, err := callAs(w, p, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: c.ID}); !fault.Is(err, fault.NotFound) {
			t.Errorf("%+v gets a kubeconfig: %v", p, err)
		}
	}
	sent = time.Now()
	if _, err := call(w, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}); err != nil {
		t.Fatal(err)
	}
	var again clusterv1.Cluster
	w.eventually(time.Minute, "the same name, at once", func() bool {
		var err error
		again, err = call(w, clusterv1.Create, clusterv1.CreateRequest{Name: "E2E ready"})
		if err != nil && fault.From(err).Code != "cluster_name_taken" {
			t.Fatal(err)
		}
		return err == nil
	})
	w.made = append(w.made, again.Namespace)
	t.Logf("removed, and made again %s after it was asked for", time.Since(sent).Round(time.Millisecond))
	if again.Namespace != c.Namespace {
		t.Errorf("beside what is left of the old one: %s", again.Namespace)
	}
	again = w.until(again.ID, clusterv1.Ready, 3*time.Minute)
	if _, err := w.tenant(again.ID).CoreV1().ConfigMaps("default").Get(t.Context(), "mark", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a cluster of the same name has the old one's data: %v", err)
	}
	w.remove(again)
}

func TestE2EKilledAtAnyMoment(t *testing.T) {
	w := newWorld(t)
	for i, after := range []time.Duration{0, 40 * time.Millisecond, 80 * time.Millisecond, 120 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second} {
		r := w.start()
		c := w.create(clusterv1.CreateRequest{Name: fmt.Sprintf("e2e-kill-%d", i)})
		time.Sleep(after)
		r.kill()
		left := w.release(c)
		began := time.Now()
		r = w.start()
		c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
		if left != "" && !strings.Contains(w.codes(c.ID), "resumed") {
			t.Errorf("taken up without a word:\n%s", w.timeline(c.ID))
		}
		t.Logf("killed after %s, release %q, ready %s after the restart: %s", after, left, time.Since(began).Round(time.Millisecond), w.codes(c.ID))
		if got := w.release(c); got != "deployed" {
			t.Errorf("the release is %q", got)
		}
		// And while it is being removed.
		if _, err := call(w, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		r.kill()
		r = w.start()
		w.gone(c)
		r.kill() // the next one is alone as well
	}
}

func TestE2EReleaseLeftPendingIsRecovered(t *testing.T) {
	w := newWorld(t)
	var c clusterv1.Cluster
	for try := 0; ; try++ {
		if try == 10 {
			t.Fatal("the process could not be killed in the middle of an installation")
		}
		r := w.start()
		c = w.create(clusterv1.CreateRequest{Name: fmt.Sprintf("e2e-pending-%d", try)})
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if w.release(c) != "" {
				break
			}
		}
		r.kill()
		if w.release(c) == "pending-install" {
			break
		}
		w.forget(c)
	}
	w.start()
	w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	if codes := w.codes(c.ID); !strings.Contains(codes, "release_recovered") || !strings.Contains(codes, "resumed") {
		t.Error(w.timeline(c.ID))
	}
	// An upgrade that was cut looks the same to the next one.
	secrets, err := w.kube.CoreV1().Secrets(c.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm,status=deployed"})
	if err != nil || len(secrets.Items) != 1 {
		t.Fatal(len(secrets.Items), err)
	}
	w.markRelease(c, release.StatusPendingUpgrade)
	mode, host := clusterv1.LoadBalancer, "demo.example.com"
	got, err := call(w, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, PublicAccessMode: &mode, ControlPlaneHost: &host})
	if err != nil || got.Status != clusterv1.Provisioning {
		t.Fatal(got, err)
	}
	c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	if c.APIEndpoint != "https://demo.example.com:443" || strings.Count(w.codes(c.ID), "release_recovered") != 2 {
		t.Errorf("%+v\n%s", c, w.timeline(c.ID))
	}
	config, err := call(w, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: c.ID})
	if err != nil || !strings.Contains(config.Kubeconfig, "server: https://demo.example.com:443") {
		t.Error("the kubeconfig does not lead to the public name", err)
	}
	w.remove(c)
}

// forget removes the row, so that no later process works on it.
func (w *world) forget(c clusterv1.Cluster) {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(w.t.Context(), "DELETE FROM clusters WHERE id = $1", c.ID); err != nil {
		w.t.Fatal(err)
	}
}

// markRelease writes a status into Helm's newest record, as an operation that was cut leaves it.
func (w *world) markRelease(c clusterv1.Cluster, status release.Status) {
	w.t.Helper()
	records := storage.Init(driver.NewSecrets(w.kube.CoreV1().Secrets(c.Namespace)))
	last, err := records.Last(c.VClusterName)
	if err != nil {
		w.t.Fatal(err)
	}
	last.SetStatus(status, "cut")
	if err := records.Update(last); err != nil {
		w.t.Fatal(err)
	}
}

func TestE2EFiveAtOnceOnTwoReplicas(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.start()
	sent := time.Now()
	var all []clusterv1.Cluster
	for i := range 5 {
		all = append(all, w.create(clusterv1.CreateRequest{Name: fmt.Sprintf("e2e-five-%d", i)}))
	}
	for _, c := range all {
		w.until(c.ID, clusterv1.Ready, 3*time.Minute)
		t.Logf("%s is ready %s after the first request", c.Name, time.Since(sent).Round(time.Millisecond))
		if codes := w.codes(c.ID); strings.Count(codes, "chart_applied") != 1 || strings.Contains(codes, "resumed") {
			t.Errorf("worked on twice: %s", codes)
		}
	}
	for _, c := range all {
		if _, err := call(w, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}); err != nil {
			t.Error(err)
		}
	}
	for _, c := range all {
		w.gone(c)
	}
}

func TestE2ENamespacesOfOthersAreLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.start()
	ctx := t.Context()
	const name = "e2e-foreign"
	if _, err := w.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.kube.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	_, err := call(w, clusterv1.Create, clusterv1.CreateRequest{Name: "x", Namespace: name})
	if f := fault.From(err); err == nil || f.Code != "namespace_in_use" || f.Kind != fault.Conflict {
		t.Errorf("a namespace in use: %v", err)
	}
	if list, err := call(w, clusterv1.List, clusterv1.ListRequest{}); err != nil || len(list.Clusters) != 0 {
		t.Errorf("half created: %+v, %v", list, err)
	}
	// A namespace that nobody asked for by name gives way.
	c := w.create(clusterv1.CreateRequest{Name: name})
	if c.Namespace == name || !strings.HasPrefix(c.Namespace, name+"-") {
		t.Errorf("namespace %s", c.Namespace)
	}
	// Removal in the middle of the installation.
	w.eventually(3*time.Minute, "the chart", func() bool { return strings.Contains(w.codes(c.ID), "chart_applied") })
	w.remove(c)
	if _, err := w.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
		t.Errorf("the other's namespace: %v", err)
	}
}

func TestE2EVanishedAndBrokenClusters(t *testing.T) {
	w := newWorld(t)
	w.start()
	ctx := t.Context()
	c := w.create(clusterv1.CreateRequest{Name: "e2e-broken"})
	c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	secrets := w.kube.CoreV1().Secrets(c.Namespace)
	exported, err := secrets.Get(ctx, "vc-"+c.VClusterName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"no YAML": "\x00", "empty": "",
		"a program": "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nclusters: [{name: a, cluster: {server: 'https://localhost:8443'}}]\nusers: [{name: a, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [/tmp/e2e-was-here], interactiveMode: Never}}}]\n",
	} {
		exported.Data["config"] = []byte(text)
		if exported, err = secrets.Update(ctx, exported, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := call(w, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: c.ID})
		if err == nil || fault.Is(err, fault.Internal) {
			t.Errorf("%s: %v", what, err)
		}
		t.Logf("%s: %v", what, err)
	}
	// Somebody removes everything by hand; the cluster can still be mended, and removed.
	background := metav1.DeletePropagationBackground
	for _, s := range []string{"vc-" + c.VClusterName, "sh.helm.release.v1." + c.VClusterName + ".v1"} {
		if err := secrets.Delete(ctx, s, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	if err := w.kube.AppsV1().StatefulSets(c.Namespace).Delete(ctx, c.VClusterName, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Error(err)
	}
	if _, err := call(w, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: c.ID}); err == nil || fault.Is(err, fault.Internal) {
		t.Errorf("a vanished cluster: %v", err)
	}
	host := "k8s.example.com"
	mode := clusterv1.LoadBalancer
	if _, err := call(w, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, ControlPlaneHost: &host, PublicAccessMode: &mode}); err != nil {
		t.Fatal(err)
	}
	w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	if err := w.kube.CoreV1().Namespaces().Delete(ctx, c.Namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.remove(c)
}

func hostPort(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

func TestE2EAnotherReplicaTakesOver(t *testing.T) {
	w := newWorld(t)
	first := w.start()
	w.start()
	var all []clusterv1.Cluster
	for i := range 3 {
		all = append(all, w.create(clusterv1.CreateRequest{Name: fmt.Sprintf("e2e-over-%d", i)}))
	}
	// One of them changes its mind in the middle.
	mode, host := clusterv1.LoadBalancer, "over.example.com"
	if _, err := call(w, clusterv1.Update, clusterv1.UpdateRequest{ID: all[0].ID, PublicAccessMode: &mode, ControlPlaneHost: &host}); err != nil {
		t.Fatal(err)
	}
	w.eventually(3*time.Minute, "the charts", func() bool {
		for _, c := range all {
			if !strings.Contains(w.codes(c.ID), "chart_applied") {
				return false
			}
		}
		return true
	})
	first.kill()
	killed := time.Now()
	for i, c := range all {
		c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
		t.Logf("ready %s after the kill: %s", time.Since(killed).Round(time.Millisecond), w.codes(c.ID))
		if i == 0 && c.APIEndpoint != "https://over.example.com:443" {
			t.Errorf("the last wish does not count: %+v", c)
		}
	}
	for _, c := range all {
		if _, err := call(w, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}); err != nil {
			t.Error(err)
		}
	}
	for _, c := range all {
		w.gone(c)
	}
}

// A cluster that moves to a domain is good for that and stays good for the host that machines joined by.
func TestE2EMovedClusterKeepsItsFormerHost(t *testing.T) {
	w := newWorld(t)
	w.start()
	c := w.create(clusterv1.CreateRequest{Name: "e2e-moved"})
	c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	joined := w.tenant(c.ID) // as a kubelet does, it knows the host of that time and the CA
	config, err := call(w, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: c.ID})
	if err != nil {
		t.Fatal(err)
	}
	before, err := clientcmd.RESTConfigFromKubeConfig([]byte(config.Kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(before.CAData) {
		t.Fatal("the kubeconfig has no CA")
	}
	at, err := url.Parse(before.Host)
	if err != nil {
		t.Fatal(err)
	}
	goodFor := func(name string) error {
		conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12}}).DialContext(t.Context(), "tcp", at.Host)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	if err := goodFor(c.ControlPlaneHost); err != nil {
		t.Fatal(err)
	}
	var host string
	for _, domain := range []string{"moved.example.com", "moved-again.example.com"} {
		if err := goodFor(domain); err == nil {
			t.Errorf("good for %s already", domain)
		}
		mode := clusterv1.LoadBalancer
		host = domain
		if _, err := call(w, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, ControlPlaneHost: &host, PublicAccessMode: &mode}); err != nil {
			t.Fatal(err)
		}
		if moved := w.until(c.ID, clusterv1.Ready, 3*time.Minute); moved.APIEndpoint != "https://"+domain+":443" {
			t.Errorf("it moved to %s", moved.APIEndpoint)
		}
	}
	for _, name := range []string{c.ControlPlaneHost, "moved.example.com", "moved-again.example.com"} {
		if err := goodFor(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := goodFor("other.example.com"); err == nil {
		t.Error("the certificate is good for anything")
	}
	if _, err := joined.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("whoever joined before: %v", err)
	}
	w.remove(c)
}
