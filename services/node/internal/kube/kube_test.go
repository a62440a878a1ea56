package kube

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/services/node/internal/node"
)

// tenants is a pool over a real kube-apiserver as the host, with the kubeconfigs of n tenants. What their servers answer
// does not matter here: the pool connects when a list is asked for.
func tenants(t *testing.T, n int, o Options) (*Pool, *counter, []node.Target) {
	t.Helper()
	cfg := kubetest.Shared(t)
	host, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var targets []node.Target
	for range n {
		ns := kubetest.Namespace(t, cfg)
		text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}],` +
			`"clusters":[{"name":"c","cluster":{"server":"https://tenant.example.com","certificate-authority-data":"` + base64.StdEncoding.EncodeToString(cfg.CAData) + `"}}],` +
			`"users":[{"name":"c","user":{"token":"` + ns + `"}}]}`
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vc-demo"}, Data: map[string][]byte{"config": []byte(text)}}
		if _, err := host.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		targets = append(targets, node.Target{ClusterID: "cl_" + ns, ClusterName: "demo", Namespace: ns, Name: "demo", Host: "127.0.0.1"})
	}
	asked := &counter{}
	counted := rest.CopyConfig(cfg)
	counted.Wrap(asked.wrap)
	if host, err = kubernetes.NewForConfig(counted); err != nil {
		t.Fatal(err)
	}
	pool, err := New(host, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, asked, targets
}

func TestOneClientPerTenantInABoundedPool(t *testing.T) {
	pool, asked, targets := tenants(t, 3, Options{Size: 2, Idle: time.Hour, Fresh: time.Hour, Now: time.Now})
	get := func(i int) *client {
		t.Helper()
		c, err := pool.client(t.Context(), targets[i], nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := get(0)
	if get(0) != first || asked.n() != 1 {
		t.Errorf("the client is not kept: the host was asked %d times", asked.n())
	}
	get(1)
	get(0)
	get(2) // pushes out 1, which was used least recently
	if pool.clients.Len() != 2 || get(0) != first || asked.n() != 3 {
		t.Errorf("%d clients; the host was asked %d times", pool.clients.Len(), asked.n())
	}
	if get(1); asked.n() != 4 {
		t.Errorf("the host was asked %d times", asked.n())
	}
}

func TestManyWhoWaitForOneTenantAskTheHostOnce(t *testing.T) {
	pool, asked, targets := tenants(t, 1, Options{Size: 2, Idle: time.Hour, Fresh: time.Hour, Now: time.Now})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := pool.client(t.Context(), targets[0], nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// A caller that came just after the flight had landed may begin another; the cache answers the rest.
	if asked.n() > 2 {
		t.Errorf("the host was asked %d times", asked.n())
	}
}

func TestAnUnchangedKubeconfigKeepsItsClient(t *testing.T) {
	now := time.Now()
	pool, asked, targets := tenants(t, 1, Options{Size: 2, Idle: time.Hour, Fresh: 10 * time.Second, Now: func() time.Time { return now }})
	first, err := pool.client(t.Context(), targets[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(11 * time.Second)
	again, err := pool.client(t.Context(), targets[0], nil)
	if err != nil || again != first || asked.n() != 2 {
		t.Errorf("%p and %p, %v; the host was asked %d times", first, again, err, asked.n())
	}
	moved := targets[0]
	moved.Host = "127.0.0.2"
	if other, err := pool.client(t.Context(), moved, nil); err != nil || other == first {
		t.Errorf("a cluster whose host changed kept its client: %v", err)
	}
}

func TestIdleClientsGo(t *testing.T) {
	now := time.Now()
	pool, _, targets := tenants(t, 2, Options{Size: 2, Idle: time.Minute, Fresh: time.Hour, Now: func() time.Time { return now }})
	for i, after := range []time.Duration{0, 40 * time.Second} {
		now = now.Add(after)
		if _, err := pool.client(t.Context(), targets[i], nil); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(30 * time.Second) // 70 s and 30 s ago
	pool.sweep()
	if keys := pool.clients.Keys(); len(keys) != 1 || keys[0] != targets[1].ClusterID {
		t.Errorf("%v are left", keys)
	}
}

func TestSweepUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, err := New(nil, Options{Size: 1, Idle: time.Minute, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		pool.clients.Add("cl_x", &client{http: &http.Client{Transport: &http.Transport{}}, used: time.Now()})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- pool.Sweep(ctx) }()
		time.Sleep(59 * time.Second)
		if pool.clients.Len() != 1 {
			t.Error("it went too early")
		}
		time.Sleep(30 * time.Second)
		if pool.clients.Len() != 0 {
			t.Error("it stayed")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// counter counts the requests to the host cluster.
type counter struct{ requests atomic.Int64 }

func (c *counter) n() int { return int(c.requests.Load()) }

func (c *counter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		c.requests.Add(1)
		return next.RoundTrip(r)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A name that a tenant gave may lead to our own machine, now or later: it is found out at the connection.
func TestATenantsHostDoesNotLeadToUs(t *testing.T) {
	for _, allow := range []bool{false, true} {
		pool, _, targets := tenants(t, 1, Options{Size: 1, Idle: time.Hour, Now: time.Now, AllowLoopback: allow})
		target := targets[0]
		secrets := pool.host.CoreV1().Secrets(target.Namespace)
		secret, err := secrets.Get(t.Context(), "vc-demo", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		secret.Data["config"] = bytes.ReplaceAll(secret.Data["config"], []byte("tenant.example.com"), []byte("localhost:8443"))
		if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.host.CoreV1().Services(target.Namespace).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "demo"},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		target.Host = "localhost"
		want := "host_refused"
		if allow {
			want = "tenant_unreachable" // nothing listens at the node port
		}
		if _, err := pool.Nodes(t.Context(), target, node.Page{Limit: 1}); fault.From(err).Code != want {
			t.Errorf("allowed %v: %v", allow, err)
		}
	}
}

// A tenant fills its nodes' status as it likes. What is taken of an answer is bounded, and the nodes are listed all the
// same. How long that may take is Nodes' to bound: here no clock is asked.
func TestFatNodesAreListedInSmallerPages(t *testing.T) {
	const fat = 36 // MiB together; 32 are taken at once
	cfg := rest.CopyConfig(kubetest.Shared(t))
	cfg.QPS = -1
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	tenant.Guard(cfg, true)
	tenantAPI, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	nodes := tenantAPI.CoreV1().Nodes()
	t.Cleanup(func() {
		// One by one: a collection's deletion answers with all that it deleted, which is more than is taken.
		for i := range fat {
			if err := nodes.Delete(context.Background(), fatName(i), metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range fat {
		made, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fatName(i)}}, metav1.CreateOptions{})
		if err == nil {
			made.Status.Images = []corev1.ContainerImage{{Names: []string{strings.Repeat("x", 1<<20)}}}
			_, err = nodes.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pool, err := New(nil, Options{Size: 1, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	c := &client{core: tenantAPI.CoreV1().RESTClient()}
	var seen []string
	for page, pages := (node.Page{Limit: 500}), 1; ; pages++ {
		got, err := pool.page(t.Context(), c, page)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Nodes {
			if strings.HasPrefix(got.Nodes[i].Name, "fat-") {
				seen = append(seen, got.Nodes[i].Name)
			}
		}
		if page.Continue = got.Continue; page.Continue == "" {
			if pages == 1 {
				t.Error("one page held them all")
			}
			break
		}
	}
	slices.Sort(seen)
	if len(slices.Compact(seen)) != fat {
		t.Errorf("%d nodes: %q", len(seen), seen)
	}
}

func fatName(i int) string { return fmt.Sprintf("fat-%02d", i) }
