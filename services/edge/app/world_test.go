package app_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
	"github.com/kubebyon/kubebyon/services/edge/app"
)

// world is everything around edge services: a real host cluster's API, NATS, PostgreSQL and HAProxy, tenants that speak TLS,
// and the cluster service's two methods.
type world struct {
	t       *testing.T
	rest    *rest.Config
	kube    kubernetes.Interface
	nats    string
	conn    *nats.Conn
	dsn     string
	dir     string // of HAProxy
	bind    string
	changed func(clusterv1.ChangedEvent)

	mu       sync.Mutex
	clusters map[string]clusterv1.PublishedCluster
	shown    map[string]clusterv1.Edge
	states   map[string][]clusterv1.EdgeState
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, rest: kubetest.Start(t, kubetest.Flags("--service-node-port-range=1024-65535")), nats: natstest.New(t), dsn: pgtest.New(t),
		clusters: map[string]clusterv1.PublishedCluster{}, shown: map[string]clusterv1.Edge{}, states: map[string][]clusterv1.EdgeState{}}
	var err error
	if w.kube, err = kubernetes.NewForConfig(w.rest); err != nil {
		t.Fatal(err)
	}
	if w.dir, err = os.MkdirTemp("", "kb-edge-"); err != nil { // a socket's path is short
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(w.dir) })
	w.bind = freeAddr(t)
	log := telemetry.NewLogger(t.Output(), "text", "debug")
	if w.conn, err = rpc.Connect(t.Context(), rpc.NATS{NATSURL: w.nats}, "test", log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.conn.Close)
	server := rpc.NewServer(w.conn, rpc.Options{Service: "cluster", Log: log})
	rpc.Serve(server, clusterv1.Published, w.published)
	rpc.Serve(server, clusterv1.ReportEdge, w.report)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Shutdown(context.Background()) })
	w.changed = rpc.Publish(w.conn, clusterv1.Changed, log)
	w.node("node-1", "127.0.0.1")
	return w
}

func freeAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// published gives two clusters a page, so that pages are turned.
func (w *world) published(_ context.Context, req clusterv1.PublishedRequest) (clusterv1.PublishedResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := clusterv1.PublishedResponse{Clusters: []clusterv1.PublishedCluster{}}
	for _, c := range w.clusters {
		if c.ID > req.After {
			out.Clusters = append(out.Clusters, c)
		}
	}
	slices.SortFunc(out.Clusters, func(a, b clusterv1.PublishedCluster) int { return strings.Compare(a.ID, b.ID) })
	if len(out.Clusters) > 2 {
		out.Clusters, out.More = out.Clusters[:2], true
	}
	return out, nil
}

func (w *world) report(_ context.Context, req clusterv1.ReportEdgeRequest) (clusterv1.ReportEdgeResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range req.Reports {
		if c, ok := w.clusters[r.ID]; ok && c.Host == r.Host {
			w.shown[r.ID] = r.Edge
			w.states[r.ID] = append(w.states[r.ID], r.State)
		}
	}
	return clusterv1.ReportEdgeResponse{}, nil
}

// edge starts a replica; the function ends it and waits.
func (w *world) edge(more ...string) (stop func()) {
	w.t.Helper()
	env := map[string]string{
		"KUBEBYON_NATS_URL": w.nats, "KUBEBYON_DATABASE_DSN": w.dsn, "KUBEBYON_KUBECONFIG_PATH": kubetest.Kubeconfig(w.t, w.rest),
		"KUBEBYON_HAPROXY_BIND_ADDR": w.bind, "KUBEBYON_HAPROXY_STATE_DIR": w.dir, "KUBEBYON_LOG_LEVEL": "debug",
	}
	for i := 0; i+1 < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if code := app.Main(ctx, nil, func(k string) (string, bool) { v, ok := env[k]; return v, ok }, w.t.Output()); code != 0 {
			w.t.Errorf("the edge ended with %d", code)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(stop)
	return stop
}

func (w *world) node(name, addr string) {
	w.t.Helper()
	nodes := w.kube.CoreV1().Nodes()
	n, err := nodes.Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n, err = nodes.Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}
	if err == nil {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		_, err = nodes.UpdateStatus(w.t.Context(), n, metav1.UpdateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func clusterID(n int) string { return fmt.Sprintf("cl_%020d", n) }

// tenant is a TLS server that says its name.
type tenant struct {
	id       string
	port     int32
	listener net.Listener
}

// tenant publishes a cluster under host, behind which a server with a certificate for it answers at addr.
func (w *world) tenant(n int, host, addr string) *tenant {
	w.t.Helper()
	out := w.serve(clusterID(n), host, addr)
	name := fmt.Sprintf("tenant-%d", n)
	_, err := w.kube.CoreV1().Services(metav1.NamespaceDefault).Create(w.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "kubelet", Port: 10250}, {Name: "https", Port: 443, NodePort: out.port}}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.publish(clusterv1.PublishedCluster{ID: out.id, Host: host, VClusterName: name, Namespace: metav1.NamespaceDefault, Status: clusterv1.Ready})
	return out
}

// serve answers connections at addr with a certificate for host: it says id, and then whatever it is told.
func (w *world) serve(id, host, addr string) *tenant {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{strings.ToLower(host)}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", net.JoinHostPort(addr, "0"), &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				if _, err := io.WriteString(conn, id+"\n"); err == nil {
					_, _ = io.Copy(conn, conn)
				}
			}()
		}
	}()
	return &tenant{id: id, port: int32(listener.Addr().(*net.TCPAddr).Port), listener: listener}
}

func (w *world) publish(c clusterv1.PublishedCluster) {
	w.mu.Lock()
	w.clusters[c.ID] = c
	delete(w.shown, c.ID)
	w.mu.Unlock()
	w.changed(clusterv1.ChangedEvent{ID: c.ID})
}

// leave lets the cluster's removal begin.
func (w *world) leave(id string) {
	w.mu.Lock()
	going := w.clusters[id]
	going.Status = clusterv1.Deleting
	w.clusters[id] = going
	w.mu.Unlock()
	w.changed(clusterv1.ChangedEvent{ID: id})
}

// state is how a cluster is shown, as state/code.
func (w *world) state(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.shown[id]
	if e.Reason != nil {
		return string(e.State) + "/" + e.Reason.Code
	}
	return string(e.State)
}

func (w *world) expect(id, want string) {
	w.t.Helper()
	w.until("cluster "+id+" is "+want, func() error {
		if got := w.state(id); got != want {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

func (w *world) until(what string, holds func() error) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("it never came to this: %s: %v", what, err)
		}
	}
}

// dial connects through HAProxy, and says who answered.
func (w *world) dial(domain string) (*tls.Conn, string, error) {
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: &tls.Config{ServerName: domain, InsecureSkipVerify: true}} //nolint:gosec // the tenants' signers are nobody
	conn, err := dialer.DialContext(w.t.Context(), "tcp", w.bind)
	if err != nil {
		return nil, "", err
	}
	var line bytes.Buffer
	one := make([]byte, 1)
	for !strings.HasSuffix(line.String(), "\n") {
		if _, err := conn.Read(one); err != nil {
			_ = conn.Close()
			return nil, "", err
		}
		line.Write(one)
	}
	return conn.(*tls.Conn), strings.TrimSpace(line.String()), nil
}

// answers checks who is behind a domain.
func (w *world) answers(domain, id string) {
	w.t.Helper()
	conn, got, err := w.dial(domain)
	if err != nil || got != id {
		w.t.Errorf("%s leads to %q, %v; want %q", domain, got, err, id)
	}
	if conn != nil {
		_ = conn.Close()
	}
}

func (w *world) refused(domain string) {
	w.t.Helper()
	conn, got, err := w.dial(domain)
	if err == nil {
		w.t.Errorf("%q leads to %q", domain, got)
		_ = conn.Close()
	}
}

// status is asked of the replica that speaks, once there is one.
func (w *world) status() (status edgev1.StatusResponse) {
	w.t.Helper()
	w.until("the edge tells its status", func() (err error) {
		status, err = rpc.Client(w.conn, edgev1.Status)(w.t.Context(), edgev1.StatusRequest{})
		return err
	})
	return status
}
