package kubectl

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
	"github.com/kubebyon/kubebyon/services/cluster/internal/tenantaccess"
	child "github.com/kubebyon/kubebyon/services/cluster/kubectl"
)

// TestMain lets the test be the child that it starts, as the service's main does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == child.Arg {
		os.Exit(child.Main(os.Args[2:], os.LookupEnv, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// world is one API server, which is the host cluster and, at a node port of its own, a tenant.
type world struct {
	*testing.T
	executor  *Executor
	cluster   cluster.Cluster
	client    kubernetes.Interface
	namespace string
	door      *door
	temp      string
	mu        sync.Mutex
	now       time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cfg := kubetest.Shared(t)
	w := &world{T: t, client: kubernetes.NewForConfigOrDie(cfg), namespace: kubetest.Namespace(t, cfg), now: time.Now()}
	var err error
	if w.temp, err = os.MkdirTemp("", "kubectl-test-"); err != nil { // short: a socket's path has to be
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", w.temp)
	t.Cleanup(func() {
		if left, err := os.ReadDir(w.temp); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		_ = os.RemoveAll(w.temp)
	})
	w.door = openDoor(t, strings.TrimPrefix(cfg.Host, "https://"))
	name := "demo-" + w.namespace
	w.cluster = cluster.Cluster{Cluster: clusterv1.Cluster{
		ID: "cl_" + w.namespace, Name: name, Namespace: w.namespace, VClusterName: name, Status: clusterv1.Ready,
		ControlPlaneHost: "127.0.0.1", PublicAccessMode: clusterv1.NodePort,
	}}
	_, err = w.client.CoreV1().Secrets(w.namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "vc-" + name}, Data: map[string][]byte{"config": kubeconfigOf(cfg)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
		Ports: []corev1.ServicePort{{Name: "https", Port: 443, NodePort: w.door.port}}}}
	if _, err := w.client.CoreV1().Services(w.namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // its port is for the next
		_ = w.client.CoreV1().Services(w.namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	w.executor, err = New(w.client, Options{AllowLoopback: true, Now: w.clock,
		Check: func(args []string) ([]string, error) { return args, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) clock() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.now }

func (w *world) later(d time.Duration) { w.mu.Lock(); defer w.mu.Unlock(); w.now = w.now.Add(d) }

// kubeconfigOf is what a control plane exports.
func kubeconfigOf(cfg *rest.Config) []byte {
	encoded := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
		"clusters":[{"name":"a","cluster":{"server":"https://localhost:8443","certificate-authority-data":%q}}],
		"users":[{"name":"a","user":{"client-certificate-data":%q,"client-key-data":%q}}]}`, encoded(cfg.CAData), encoded(cfg.CertData), encoded(cfg.KeyData))
}

// door leads from a node port to the API server, unless it is shut or silent.
type door struct {
	port int32
	to   string
	mu   sync.Mutex
	l    net.Listener
	open []net.Conn
	mute bool
	all  sync.WaitGroup
}

func openDoor(t *testing.T, to string) *door {
	t.Helper()
	d := &door{to: to}
	for port := 30000 + rand.IntN(2000); d.l == nil && port < 32767; port++ {
		d.l, _ = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(port))
		d.port = int32(port)
	}
	if d.l == nil {
		t.Fatal("no node port is free on 127.0.0.1")
	}
	d.all.Go(d.serve)
	t.Cleanup(d.all.Wait)
	t.Cleanup(d.shut)
	return d
}

func (d *door) serve() {
	for {
		in, err := d.l.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		d.open = append(d.open, in)
		mute := d.mute
		d.mu.Unlock()
		if mute {
			continue
		}
		out, err := net.Dial("tcp", d.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		d.mu.Lock()
		d.open = append(d.open, out)
		d.mu.Unlock()
		d.all.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
		d.all.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
	}
}

// hush takes every connection from now on and says nothing.
func (d *door) hush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mute = true
	d.cut()
}

func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.l.Close()
	d.cut()
}

func (d *door) cut() {
	for _, c := range d.open {
		_ = c.Close()
	}
	d.open = nil
}

func (w *world) run(args ...string) clusterv1.KubectlResponse {
	w.Helper()
	res, err := w.executor.Run(w.Context(), "ann", w.cluster, args)
	if err != nil {
		w.Fatalf("%q: %v", args, err)
	}
	return res
}

func (w *world) pod(name, node string) {
	w.Helper()
	if _, err := w.client.CoreV1().Pods(w.namespace).Create(w.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "web", Image: "registry.example.com/web:1"}}}}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// kubelet answers for the logs of the Pods on a node of its own.
func (w *world) kubelet(log http.HandlerFunc) (node string) {
	w.Helper()
	server := httptest.NewTLSServer(log)
	w.Cleanup(server.Close)
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		w.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		w.Fatal(err)
	}
	node = "node-" + w.namespace
	made, err := w.client.CoreV1().Nodes().Create(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = w.client.CoreV1().Nodes().Delete(context.Background(), node, metav1.DeleteOptions{}) })
	made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	made.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err := w.client.CoreV1().Nodes().UpdateStatus(w.Context(), made, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	return node
}

// hanging gives a Pod whose log never comes; asked gets one for each time that it is asked for.
func (w *world) hanging() (pod string, asked <-chan struct{}) {
	came, release := make(chan struct{}, 64), make(chan struct{})
	node := w.kubelet(func(_ http.ResponseWriter, r *http.Request) {
		came <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	w.Cleanup(func() { close(release) })
	w.pod("silent", node)
	return "silent", came
}

// children are the processes that this one has started.
func children(t *testing.T) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(args), child.Arg) {
				out = append(out, pid)
			}
		}
	}
	return out
}

func TestACommandReadsAsAnIdentityOfItsOwn(t *testing.T) {
	w := newWorld(t)
	w.pod("web-1", "")
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"get", "pods", "-n", w.namespace}, 0, "web-1"},
		{[]string{"describe", "pod", "web-1", "-n", w.namespace}, 0, "registry.example.com/web:1"},
		{[]string{"auth", "whoami"}, 0, tenantaccess.UserName(readerName)},
		{[]string{"auth", "can-i", "create", "pods"}, 1, "no"},
		{[]string{"auth", "can-i", "get", "secrets", "-A"}, 1, "no"},
		{[]string{"cluster-info"}, 0, "https://127.0.0.1:" + strconv.Itoa(int(w.door.port))},
		{[]string{"get", "nodes"}, 0, ""},
		{[]string{"get", "secrets", "-n", w.namespace}, 1, "Forbidden"},
		{[]string{"get", "pods,secrets", "-n", w.namespace, "-o", "json"}, 1, "what Secrets hold is not shown here"},
		{[]string{"get", "pods", "absent", "-n", w.namespace}, 1, `pods "absent" not found`},
	} {
		got := w.run(c.args...)
		if got.ExitCode != c.status || !strings.Contains(got.Stdout+got.Stderr, c.says) || got.Truncated || got.DurationMS <= 0 {
			t.Errorf("%q: %+v", c.args, got)
		}
		if strings.Contains(got.Stdout, "certificate-authority-data") || strings.Contains(got.Stdout, base64.StdEncoding.EncodeToString([]byte("apiVersion"))[:12]) {
			t.Errorf("%q shows a Secret", c.args)
		}
	}
	// The identity is refused by the tenant itself where the path would pass.
	r, err := w.executor.readers.get(t.Context(), w.cluster, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api/v1/secrets", "/api/v1/namespaces/" + w.namespace + "/secrets/vc-" + w.cluster.VClusterName} {
		res, err := send(t.Context(), r, question{method: http.MethodGet, path: path}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	if text := fmt.Sprintf("%v %+v %s", r, r, w.executor.readers.held.Keys()); strings.Contains(text, "eyJ") {
		t.Errorf("a token in %s", text)
	}
}

func TestWhatTheFilterRefusesIsNotRun(t *testing.T) {
	w := newWorld(t)
	refused := fault.New(fault.Invalid, "kubectl_refused", "no")
	w.executor.check = func([]string) ([]string, error) { return nil, refused }
	if _, err := w.executor.Run(t.Context(), "ann", w.cluster, []string{"version"}); !errors.Is(err, refused) {
		t.Error(err)
	}
	// What it gives is run, and nothing else.
	w.executor.check = func([]string) ([]string, error) { return []string{"api-versions"}, nil }
	if got := w.run("delete", "pods"); got.ExitCode != 0 || !strings.Contains(got.Stdout, "apps/v1") {
		t.Errorf("%+v", got)
	}
}

func TestMuchOutputIsCutAndSaysSo(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		if _, err := w.client.CoreV1().ConfigMaps(w.namespace).Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("big-", i)}, Data: map[string]string{"a": strings.Repeat("<x>\n", 700<<10/4)},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	got := w.run("get", "configmaps", "-n", w.namespace, "-o", "go-template={{range .items}}{{.data.a}}{{end}}")
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Truncated || got.ExitCode != 0 || len(text) > clusterv1.MaxKubectlOutput+512 || len(text) < clusterv1.MaxKubectlOutput-1024 || !strings.HasPrefix(got.Stdout, "<x>\n") {
		t.Errorf("exit %d, truncated %v, %d bytes, %s", got.ExitCode, got.Truncated, len(text), got.Stderr)
	}
}

func TestALogIsShownAndObeyedByNoTerminal(t *testing.T) {
	w := newWorld(t)
	node := w.kubelet(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, "\x1b]0;title\a\x1b[2J\x1b[31mred\u009b0m \xff\xc3( \u202eexe\n")
	})
	w.pod("loud", node)
	got := w.run("logs", "loud", "-n", w.namespace)
	if want := "^[]0;title^G^[[2J^[[31mred<U+009B>0m \uFFFD\uFFFD( <U+202E>exe\n"; got.ExitCode != 0 || got.Stdout != want {
		t.Errorf("%+v, want %q", got, want)
	}
}

func TestACommandEndsAtItsTime(t *testing.T) {
	w := newWorld(t)
	pod, _ := w.hanging()
	w.run("version")
	w.executor.limit = 1500 * time.Millisecond
	began := time.Now()
	got := w.run("logs", pod, "-n", w.namespace)
	if got.ExitCode != child.ExitTime || !strings.Contains(got.Stderr, "ended it after 1.5s") || time.Since(began) > 5*time.Second || got.DurationMS < 1500 {
		t.Errorf("%+v after %v", got, time.Since(began))
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("it runs on: %v", left)
	}
}

// A child knows nothing that it could give away, and ends with whoever asked.
func TestAChildHoldsNothingAndEndsWithItsCaller(t *testing.T) {
	w := newWorld(t)
	t.Setenv("KUBEBYON_DATABASE_DSN", "postgres://secret")
	pod, asked := w.hanging()
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := w.executor.Run(ctx, "ann", w.cluster, []string{"logs", pod, "-n", w.namespace})
		ended <- err
	}()
	<-asked
	pids := children(t)
	if len(pids) != 1 {
		t.Fatalf("children: %v", pids)
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pids[0]))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range strings.Split(strings.TrimSuffix(string(environ), "\x00"), "\x00") {
		name, value, _ := strings.Cut(one, "=")
		names = append(names, name)
		if name == "HOME" {
			if info, err := os.Stat(value); err != nil || info.Mode().Perm() != 0o700 || filepath.Dir(value) != w.temp {
				t.Errorf("HOME is %s: %v, %v", value, info, err)
			}
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"HOME", child.EnvServer, child.EnvSocket}) {
		t.Errorf("its environment: %q", names)
	}
	leave()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("it runs on")
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestATenantThatIsDownIsNamedInTime(t *testing.T) {
	for name, c := range map[string]struct {
		warm bool
		down func(*door)
		says string
	}{
		"refused, at first": {false, (*door).shut, "the connection was refused"},
		"refused, later":    {true, (*door).shut, "the connection was refused"},
		"silent, at first":  {false, (*door).hush, "it does not answer"},
		"silent, later":     {true, (*door).hush, "it does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if c.warm {
				w.run("version")
			}
			c.down(w.door)
			began := time.Now()
			_, err := w.executor.Run(t.Context(), "ann", w.cluster, []string{"get", "pods"})
			took := time.Since(began)
			if f := fault.From(err); f.Kind != fault.Unavailable || f.Code != "tenant_unreachable" || f.Action == "" || took >= 5*time.Second ||
				!strings.Contains(f.Message, w.cluster.Name) || !strings.Contains(f.Message, c.says) {
				t.Errorf("%v after %v", err, took)
			}
		})
	}
}

// Whatever becomes of the identity in the tenant, the next command has it again.
func TestTheIdentityIsMendedAndRenewed(t *testing.T) {
	w := newWorld(t)
	held := func() *reader {
		t.Helper()
		if got := w.run("get", "pods", "-n", w.namespace); got.ExitCode != 0 {
			t.Fatalf("%+v", got)
		}
		r, err := w.executor.readers.get(t.Context(), w.cluster, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := held()
	if again := held(); again != first {
		t.Error("it is made anew for each command")
	}
	w.later(51 * time.Minute)
	second := held()
	if second == first {
		t.Error("its token is kept to the end")
	}
	if err := tenantaccess.Revoke(t.Context(), w.client, readerName); err != nil {
		t.Fatal(err)
	}
	w.later(2 * time.Minute)
	third := held()
	if third == second {
		t.Error("a revoked one is kept")
	}
	w.cluster.ControlPlaneHost = "localhost"
	if moved := held(); moved == third || moved.endpoint == third.endpoint {
		t.Errorf("it did not follow the cluster: %s", moved.endpoint)
	}
}

func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	w.pod("web-1", "")
	many := usual()
	many.patience = time.Minute // how long it takes is not asked here, on a machine that does other things
	w.executor.turns = newTurns(many)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			got, err := w.executor.Run(t.Context(), "ann", w.cluster, []string{"get", "pods", "-n", w.namespace})
			if err != nil || got.ExitCode != 0 || !strings.Contains(got.Stdout, "web-1") {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	all.Wait()
}

func TestOneWhoRunsTooMuchIsTold(t *testing.T) {
	w := newWorld(t)
	w.executor.turns = newTurns(limits{all: 2, user: 1, tenant: 2, waiting: 1, waitingPerUser: 1, patience: 10 * time.Millisecond})
	w.executor.limit = 3 * time.Second
	pod, asked := w.hanging()
	var first sync.WaitGroup
	first.Go(func() { w.run("logs", pod, "-n", w.namespace) })
	<-asked
	if _, err := w.executor.Run(t.Context(), "ann", w.cluster, []string{"version"}); fault.From(err).Code != "kubectl_busy" || !fault.Is(err, fault.RateLimited) {
		t.Error(err)
	}
	if _, err := w.executor.Run(t.Context(), "bob", w.cluster, []string{"version"}); err != nil {
		t.Error(err)
	}
	first.Wait()
}
