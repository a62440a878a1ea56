package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
	"github.com/kubebyon/kubebyon/services/cluster/internal/tenantaccess"
)

const (
	// readerName is the identity's in every tenant.
	readerName = "kubebyon-reader"
	tokenTTL   = time.Hour
	// renewBefore is how long before its end a token is no longer begun with.
	renewBefore = 10 * time.Minute
	// patience is how long a tenant and its host may take together; callers are promised an answer within 5 s.
	patience = 4500 * time.Millisecond
	// settling is how long a new role may take to count.
	settling = time.Second
	// mendAfter is how old a reader is before a refusal makes us look whether its role is still what it was.
	mendAfter = time.Minute
	// maxReaders bounds how many are held; the least recently used goes first.
	maxReaders = 1024
)

// reader is the way to one tenant's API, as an identity that only reads. It holds a credential: never log it.
type reader struct {
	clusterID string
	ref       tenant.Ref
	endpoint  string
	base      *url.URL
	transport http.RoundTripper
	made      time.Time
	renew     time.Time
}

// String keeps what it holds out of logs.
func (r *reader) String() string { return "reader of " + r.clusterID }

// readers makes and keeps them, in memory alone.
type readers struct {
	host          kubernetes.Interface
	allowLoopback bool
	now           func() time.Time
	flights       singleflight.Group

	mu   sync.Mutex
	held *lru.Cache[string, *reader] // by cluster
}

func newReaders(host kubernetes.Interface, allowLoopback bool, now func() time.Time) (*readers, error) {
	held, err := lru.NewWithEvict(maxReaders, func(_ string, r *reader) { utilnet.CloseIdleConnectionsFor(r.transport) })
	if err != nil {
		return nil, err
	}
	return &readers{host: host, allowLoopback: allowLoopback, now: now, held: held}, nil
}

func (rs *readers) ref(c cluster.Cluster) tenant.Ref {
	return tenant.Ref{Namespace: c.Namespace, Name: c.VClusterName, Host: c.ControlPlaneHost,
		Published: c.PublicAccessMode == clusterv1.LoadBalancer, AllowLoopback: rs.allowLoopback}
}

// get gives the cluster's reader, which is made anew where there is none, where the cluster has moved, and instead of stale. Its errors
// are faults that name the cluster.
func (rs *readers) get(ctx context.Context, c cluster.Cluster, stale *reader) (*reader, error) {
	ref := rs.ref(c)
	rs.mu.Lock()
	r, ok := rs.held.Get(c.ID)
	rs.mu.Unlock()
	if ok && r != stale && r.ref == ref && rs.now().Before(r.renew) {
		return r, nil
	}
	// Everyone who waits for this tenant waits for one making, which outlives any one of them.
	flight := rs.flights.DoChan(c.ID+"\x00"+ref.Namespace+"\x00"+ref.Name+"\x00"+ref.Host, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		return rs.make(ctx, c, ref)
	})
	select {
	case res := <-flight:
		if res.Err != nil {
			return nil, res.Err
		}
		return res.Val.(*reader), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// make uses the tenant's administrator for the identity alone.
func (rs *readers) make(ctx context.Context, c cluster.Cluster, ref tenant.Ref) (*reader, error) {
	began := context.WithoutCancel(ctx) // its own end is the tenant's fault
	conn, err := tenant.Access(ctx, rs.host, ref)
	if err != nil {
		return nil, tenant.Explain(began, c.Name, "", err)
	}
	explain := func(err error) error { return tenant.Explain(began, c.Name, conn.Endpoint, err) }
	admin, err := rest.HTTPClientFor(conn.Config)
	if err != nil {
		return nil, explain(err)
	}
	defer utilnet.CloseIdleConnectionsFor(admin.Transport)
	client, err := kubernetes.NewForConfigAndClient(conn.Config, admin)
	if err != nil {
		return nil, explain(err)
	}
	if err := tenantaccess.Grant(ctx, client, tenantaccess.Identity{Name: readerName, Access: clusterv1.Viewer}); err != nil {
		return nil, explain(err)
	}
	token, expires, err := tenantaccess.Token(ctx, client, readerName, tokenTTL)
	if err != nil {
		return nil, explain(err)
	}
	cfg := rest.CopyConfig(conn.Config)
	cfg.CertData, cfg.KeyData, cfg.BearerToken = nil, nil, token
	cfg.DisableCompression = true // its API server would spend more time on compressing a list than on making it
	cfg.QPS = -1
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, explain(err)
	}
	base, err := url.Parse(conn.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("the endpoint of cluster %s: %w", c.ID, err)
	}
	now := rs.now()
	r := &reader{clusterID: c.ID, ref: ref, endpoint: conn.Endpoint, base: base, transport: transport, made: now, renew: expires.Add(-renewBefore)}
	if err := settle(ctx, cfg, transport); err != nil {
		return nil, explain(err)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, id := range rs.held.Keys() { // those of clusters that are gone
		if old, ok := rs.held.Peek(id); ok && now.After(old.renew.Add(renewBefore)) {
			rs.held.Remove(id)
		}
	}
	rs.held.Remove(c.ID)
	rs.held.Add(c.ID, r)
	return r, nil
}

// settle waits until the role of the identity counts at the API, so that the first command is not refused. What still does not then
// is for the command to tell.
func settle(ctx context.Context, cfg *rest.Config, transport http.RoundTripper) error {
	client, err := kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: transport})
	if err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	for {
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(patient, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"}},
		}, metav1.CreateOptions{})
		if err == nil && review.Status.Allowed || patient.Err() != nil && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return err
		}
		pause := time.NewTimer(20 * time.Millisecond)
		select {
		case <-pause.C:
		case <-patient.Done():
			pause.Stop()
		}
	}
}

// drop forgets a reader that did not work.
func (rs *readers) drop(r *reader) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if held, ok := rs.held.Peek(r.clusterID); ok && held == r {
		rs.held.Remove(r.clusterID)
	}
}

// session is the api of one run.
type session struct {
	readers *readers
	cluster cluster.Cluster

	mu      sync.Mutex
	current *reader
}

func (s *session) reader() *reader {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// ask implements api. Where the reader no longer works (the cluster has another address, CA or key, or somebody in the tenant took the
// identity away) it is made anew, once.
func (s *session) ask(ctx context.Context, q question, header http.Header, body []byte) (*http.Response, error) {
	r := s.reader()
	res, err := send(ctx, r, q, header, body)
	switch {
	case errors.Is(err, tenant.ErrTooLarge):
		return nil, err
	case ctx.Err() != nil:
		if err != nil {
			s.readers.drop(r)
		}
		return res, err
	case err == nil && !s.suspicious(r, res):
		return res, nil
	}
	fresh, failed := s.readers.get(ctx, s.cluster, r)
	if failed != nil {
		if err == nil && res.StatusCode == http.StatusForbidden {
			return res, nil
		}
		if err == nil {
			_ = res.Body.Close()
		}
		return nil, failed
	}
	if err == nil {
		_ = res.Body.Close()
	}
	s.mu.Lock()
	s.current = fresh
	s.mu.Unlock()
	return send(ctx, fresh, q, header, body)
}

// suspicious answers are those that a reader which no longer counts explains.
func (s *session) suspicious(r *reader, res *http.Response) bool {
	return res.StatusCode == http.StatusUnauthorized ||
		res.StatusCode == http.StatusForbidden && s.readers.now().Sub(r.made) > mendAfter
}

func send(ctx context.Context, r *reader, q question, header http.Header, body []byte) (*http.Response, error) {
	req, err := request(ctx, r.base, q, header, bytes.Clone(body))
	if err != nil {
		return nil, err
	}
	return r.transport.RoundTrip(req)
}
