// Package kube lists the nodes of tenants with client-go and keeps one client per tenant. Of the host cluster it reads
// one Secret and one Service per tenant; it must never write, neither there nor in a tenant.
package kube

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/services/node/internal/node"
)

const (
	// patience is how long a tenant and its host may take together; callers are promised an answer within 5 s.
	patience = 4500 * time.Millisecond
	// maxAnswer keeps a list below NATS' 1 MiB with room for the envelope.
	maxAnswer = 960 << 10
)

// Options of a Pool.
type Options struct {
	Size int           // clients held at most; the least recently used goes first
	Idle time.Duration // a client unused for so long is dropped, and its connections closed
	// Fresh is for how long a tenant's kubeconfig is not read again. One that stops working is read at once whatever its age.
	Fresh time.Duration
	Now   func() time.Time
	// AllowLoopback lets tenants' APIs be at a loopback address. It is for tests on one machine.
	AllowLoopback bool
}

// Pool is node.Tenants over the host cluster's API. Close it.
type Pool struct {
	host    kubernetes.Interface
	options Options
	flights singleflight.Group
	running sync.WaitGroup

	mu      sync.Mutex
	clients *lru.Cache[string, *client] // by cluster id
}

// client is one tenant's. Its fields but checked and used never change.
type client struct {
	target     node.Target
	kubeconfig []byte
	core       rest.Interface
	http       *http.Client
	endpoint   string

	checked, used time.Time // under Pool.mu
}

// New reaches tenants through host, whose credential needs get on secrets and services, and list on nodes.
func New(host kubernetes.Interface, o Options) (*Pool, error) {
	p := &Pool{host: host, options: o}
	clients, err := lru.NewWithEvict(o.Size, func(_ string, c *client) { c.close() })
	if err != nil {
		return nil, err
	}
	p.clients = clients
	return p, nil
}

func (c *client) close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// Nodes lists one page live. A kubeconfig that no longer works is read again once, and where it has changed the list is
// tried again with the new one.
func (p *Pool) Nodes(ctx context.Context, t node.Target, page node.Page) (nodev1.ListResponse, error) {
	inner, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := p.client(inner, t, nil)
	if err != nil {
		return nodev1.ListResponse{}, tenant.Explain(ctx, t.ClusterName, "", err)
	}
	nodes, err := p.page(inner, c, page)
	if err != nil && suspicious(err) {
		p.drop(c)
		if again, e := p.client(inner, t, c); e == nil && !bytes.Equal(again.kubeconfig, c.kubeconfig) {
			if nodes, err = p.page(inner, again, page); err != nil && suspicious(err) {
				p.drop(again)
			}
		}
	}
	if err != nil {
		return nodev1.ListResponse{}, tenant.Explain(ctx, t.ClusterName, c.endpoint, err)
	}
	return nodes, nil
}

// suspicious errors are those that a change of address, CA or credential explains.
func suspicious(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)
}

// page lists, and where a page does not fit a message, or is more than is taken from a tenant, lists half of it.
func (p *Pool) page(ctx context.Context, c *client, page node.Page) (nodev1.ListResponse, error) {
	for limit := page.Limit; ; limit = max(1, limit/2) {
		options := metav1.ListOptions{Limit: limit, Continue: page.Continue}
		body, err := c.core.Get().Resource("nodes").VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Raw()
		switch {
		case errors.Is(err, tenant.ErrTooLarge) && limit > 1:
			limit /= 4 // and half of that: what came so far was for nothing
			continue
		case apierrors.IsResourceExpired(err):
			return nodev1.ListResponse{}, node.ContinueExpired(err)
		case apierrors.IsBadRequest(err) && page.Continue != "":
			return nodev1.ListResponse{}, node.ContinueInvalid(err)
		case err != nil:
			return nodev1.ListResponse{}, err
		}
		list, err := decode(body)
		if err != nil {
			return nodev1.ListResponse{}, fault.New(fault.Unavailable, "tenant_unhealthy", "the control plane of cluster %q answered with something else than its nodes", c.target.ClusterName).
				Do("try again; if it stays, look at the cluster's events").Because(err)
		}
		if out, fits := answer(list, p.options.Now()); fits || limit == 1 {
			return out, nil
		}
	}
}

func answer(list *corev1.NodeList, now time.Time) (nodev1.ListResponse, bool) {
	out := nodev1.ListResponse{Nodes: make([]nodev1.Node, 0, len(list.Items)), Continue: list.Continue}
	total := len(list.Continue)
	for i := range list.Items {
		n := shape(&list.Items[i], now)
		if total += size(&n); total > maxAnswer {
			return out, false
		}
		out.Nodes = append(out.Nodes, n)
	}
	return out, true
}

// client gives the tenant's client. One that stale names is not taken from the cache however fresh it is.
func (p *Pool) client(ctx context.Context, t node.Target, stale *client) (*client, error) {
	p.mu.Lock()
	now := p.options.Now()
	if c, ok := p.clients.Get(t.ClusterID); ok && c != stale && c.target == t && now.Sub(c.checked) < p.options.Fresh {
		c.used = now
		p.mu.Unlock()
		return c, nil
	}
	// Everyone who waits for this tenant waits for one reading, which outlives any one of them.
	p.running.Add(1)
	p.mu.Unlock()
	flight := p.flights.DoChan(t.ClusterID+"\x00"+t.Namespace+"\x00"+t.Name+"\x00"+t.Host, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		return p.connect(ctx, t)
	})
	done := make(chan singleflight.Result, 1)
	go func() {
		defer p.running.Done()
		done <- <-flight
	}()
	select {
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*client), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// connect reads the tenant's kubeconfig and keeps the client that exists where nothing has changed.
func (p *Pool) connect(ctx context.Context, t node.Target) (*client, error) {
	conn, err := tenant.Access(ctx, p.host, tenant.Ref{Namespace: t.Namespace, Name: t.Name, Host: t.Host, Published: t.Published, AllowLoopback: p.options.AllowLoopback})
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.clients.Remove(t.ClusterID)
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.options.Now()
	if c, ok := p.clients.Get(t.ClusterID); ok && c.target == t && bytes.Equal(c.kubeconfig, conn.Kubeconfig) {
		c.checked, c.used = now, now
		return c, nil
	}
	config := rest.CopyConfig(conn.Config)
	config.AcceptContentTypes = runtime.ContentTypeProtobuf
	// Its API server is near, and would spend more time on compressing a list than on making it.
	config.DisableCompression = true
	// A client-side limit would queue many watchers of one tenant behind each other. The service's own pool of workers
	// bounds what it asks at once, and kube-apiserver's priority and fairness what that costs.
	config.QPS = -1
	client0, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	core, err := typedv1.NewForConfigAndClient(config, client0)
	if err != nil {
		return nil, err
	}
	c := &client{target: t, kubeconfig: conn.Kubeconfig, core: core.RESTClient(), http: client0, endpoint: conn.Endpoint, checked: now, used: now}
	p.clients.Remove(t.ClusterID) // closes the connections of the one before
	p.clients.Add(t.ClusterID, c)
	return c, nil
}

func (p *Pool) drop(c *client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if held, ok := p.clients.Peek(c.target.ClusterID); ok && held == c {
		p.clients.Remove(c.target.ClusterID)
	}
	c.close()
}

// Sweep drops clients that were idle for too long, until ctx ends.
func (p *Pool) Sweep(ctx context.Context) error {
	tick := time.NewTicker(max(p.options.Idle/4, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.sweep()
		}
	}
}

func (p *Pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.options.Now()
	for _, id := range p.clients.Keys() {
		if c, ok := p.clients.Peek(id); ok && now.Sub(c.used) >= p.options.Idle {
			p.clients.Remove(id)
		}
	}
}

// Close waits for what is under way, at most 5 s, and closes every connection.
func (p *Pool) Close() {
	p.running.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients.Purge()
}
