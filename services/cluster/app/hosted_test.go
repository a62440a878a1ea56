package app

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

// tokenService stands for the token service in a removal.
type tokenService struct {
	mu    sync.Mutex
	away  bool
	asked map[string]int // by cluster
}

func serveTokens(t *testing.T, conn *nats.Conn) *tokenService {
	t.Helper()
	s := &tokenService{asked: map[string]int{}}
	server := rpc.NewServer(conn, rpc.Options{Service: tokenv1.Queue, Queue: tokenv1.Queue, Log: quiet()})
	rpc.Serve(server, tokenv1.Forget, func(_ context.Context, req tokenv1.ForgetRequest) (tokenv1.ForgetResponse, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.away {
			return tokenv1.ForgetResponse{}, fault.New(fault.Unavailable, "database_unavailable", "the tokens' database does not answer")
		}
		s.asked[req.ClusterID]++
		return tokenv1.ForgetResponse{}, nil
	})
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx)
	})
	return s
}

func (s *tokenService) set(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *tokenService) times(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[id]
}

// hosted is a service with a real host cluster, whose controllers run and whose nodes do not: control planes are installed,
// and never start.
type hosted struct {
	*testing.T
	conn   *nats.Conn
	pool   *pgxpool.Pool
	rest   *rest.Config
	kube   kubernetes.Interface
	tokens *tokenService
}

func startHosted(t *testing.T) *hosted {
	t.Helper()
	url, dsn := natstest.New(t), pgtest.New(t)
	w := &hosted{T: t, rest: kubetest.Start(t, kubetest.ControllerManager())}
	run(t, map[string]string{"KUBEBYON_DATABASE_DSN": dsn, "KUBEBYON_NATS_URL": url, "KUBEBYON_KUBECONFIG_PATH": kubetest.Kubeconfig(t, w.rest),
		"KUBEBYON_PROVISION_TIMEOUT": "2h", "KUBEBYON_DELETE_TIMEOUT": "10s", "KUBEBYON_CLUSTER_WORKERS": "2", "KUBEBYON_ALLOW_LOOPBACK_HOSTS": "true"})
	w.conn = dial(t, url)
	w.tokens = serveTokens(t, w.conn)
	eventually(t, 20*time.Second, "the service", func() bool { return answers(w.conn) })
	var err error
	if w.pool, err = pgxpool.New(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	w.kube = kubernetes.NewForConfigOrDie(w.rest)
	return w
}

// in is the same world for a test of its own within it.
func (w *hosted) in(t *testing.T) *hosted {
	t.Helper()
	sub := *w
	sub.T = t
	return &sub
}

// installed makes a cluster whose Pod and claim exist.
func (w *hosted) installed(req clusterv1.CreateRequest) clusterv1.Cluster {
	w.Helper()
	if req.ControlPlaneHost == "" {
		req.ControlPlaneHost = "127.0.0.1"
	}
	c, err := ask(w.T, w.conn, alice, clusterv1.Create, req)
	if err != nil {
		w.Fatal(err)
	}
	eventually(w.T, 30*time.Second, "the control plane's Pod and claim", func() bool {
		_, noPod := w.kube.CoreV1().Pods(c.Namespace).Get(w.Context(), c.VClusterName+"-0", metav1.GetOptions{})
		_, noClaim := w.kube.CoreV1().PersistentVolumeClaims(c.Namespace).Get(w.Context(), "data-"+c.VClusterName+"-0", metav1.GetOptions{})
		return noPod == nil && noClaim == nil && strings.Contains(w.timeline(c.ID), "chart_applied")
	})
	return c
}

func (w *hosted) remove(id string) clusterv1.Cluster {
	w.Helper()
	c, err := ask(w.T, w.conn, alice, clusterv1.Delete, clusterv1.DeleteRequest{ID: id})
	if err != nil || c.Status != clusterv1.Deleting || c.Removal == nil || c.Removal.Remaining == nil || time.Until(c.Removal.Deadline) > 11*time.Second {
		w.Fatalf("%+v, %+v, %v", c, c.Removal, err)
	}
	return c
}

func (w *hosted) gone(id string) bool {
	_, err := ask(w.T, w.conn, alice, clusterv1.Get, clusterv1.GetRequest{ID: id})
	return fault.Is(err, fault.NotFound)
}

func (w *hosted) untilGone(c clusterv1.Cluster) {
	w.Helper()
	for end := time.Now().Add(40 * time.Second); !w.gone(c.ID); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("it does not go: %+v\n%s", get(w.T, w.conn, c.ID).Removal, w.timeline(c.ID))
		}
	}
}

// left is what remains, as Kind name (why) in a line each.
func (w *hosted) left(id string) string {
	c, err := ask(w.T, w.conn, alice, clusterv1.Get, clusterv1.GetRequest{ID: id})
	if err != nil || c.Removal == nil {
		return ""
	}
	var out strings.Builder
	for _, one := range c.Removal.Remaining {
		fmt.Fprintf(&out, "%s %s (%s)\n", one.Kind, one.Name, one.Why)
	}
	return out.String()
}

func (w *hosted) shows(id, what string) {
	w.Helper()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(w.left(id), what); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("waited in vain for %q in\n%s\n%s", what, w.left(id), w.timeline(id))
		}
	}
}

func (w *hosted) timeline(id string) string {
	events, err := ask(w.T, w.conn, alice, clusterv1.Events, clusterv1.EventsRequest{ID: id})
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, e := range events.Events {
		fmt.Fprintf(&out, "%s %s: %s [%s]\n", e.Level, e.Code, e.Message, e.Action)
	}
	return out.String()
}

func (w *hosted) namespace(name string) *corev1.Namespace {
	w.Helper()
	found, err := w.kube.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return found
}

func (w *hosted) noNamespace(name string) {
	w.Helper()
	if _, err := w.kube.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		w.Errorf("the namespace %s is left: %v", name, err)
	}
}

// nodePort answers at the node port of a cluster's Service, with the one API server or not at all.
func (w *hosted) nodePort(c clusterv1.Cluster, silent bool) {
	w.Helper()
	var door net.Listener
	port := 30000 + rand.IntN(2000)
	for ; door == nil && port < 32767; port++ {
		door, _ = new(net.ListenConfig).Listen(w.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	}
	if door == nil {
		w.Fatal("no node port is free on 127.0.0.1")
	}
	var all sync.WaitGroup
	w.Cleanup(func() { _ = door.Close(); all.Wait() })
	all.Go(func() {
		for {
			in, err := door.Accept()
			if err != nil {
				return
			}
			w.Cleanup(func() { _ = in.Close() })
			if silent {
				continue
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(w.rest.Host, "https://"))
			if err != nil {
				_ = in.Close()
				continue
			}
			all.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			all.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
	service, err := w.kube.CoreV1().Services(c.Namespace).Get(w.Context(), c.VClusterName, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	service.Spec.Ports[0].NodePort = int32(port - 1)
	if _, err := w.kube.CoreV1().Services(c.Namespace).Update(w.Context(), service, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func claim(name string, finalizers ...string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
	}}
}

// kubeconfigOf is what a control plane exports, of the one API server that there is.
func kubeconfigOf(cfg *rest.Config) []byte {
	encoded := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
		"clusters":[{"name":"a","cluster":{"server":%q,"certificate-authority-data":%q}}],
		"users":[{"name":"a","user":{"client-certificate-data":%q,"client-key-data":%q}}]}`,
		cfg.Host, encoded(cfg.CAData), encoded(cfg.CertData), encoded(cfg.KeyData))
}
