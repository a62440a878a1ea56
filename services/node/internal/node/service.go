// Package node is the domain of a tenant's machines: who may see them and how a live list is asked for. It must never
// write anything, neither to the tenant nor to a table, and it knows no SQL, NATS or Kubernetes.
package node

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// MaxPage is the most nodes that one answer holds.
const MaxPage = 1000

// maxContinue bounds a continuation that a client hands back; Kubernetes' own are a few hundred characters.
const maxContinue = 4096

// Clusters asks the cluster service.
type Clusters interface {
	// Visible gives a cluster that the caller of ctx is at least a viewer of; not_found otherwise.
	Visible(ctx context.Context, id string) (clusterv1.Cluster, error)
}

// Tenants reads the tenants' APIs.
type Tenants interface {
	// Nodes gives one page, ordered by name, small enough for one message. unavailable (tenant_unreachable) within 5 s;
	// invalid (continue_invalid) and conflict (continue_expired) for a continuation that cannot be followed.
	Nodes(ctx context.Context, t Target, p Page) (nodev1.ListResponse, error)
}

// Target is where a cluster's control plane is to be found.
type Target struct {
	ClusterID   string
	ClusterName string
	Namespace   string // on the host cluster
	Name        string // the vcluster_name
	Host        string // the control_plane_host
	Published   bool   // through the edge
}

// Page of a list. Limit is 1 to MaxPage.
type Page struct {
	Limit    int64
	Continue string
}

// Service lists nodes.
type Service struct {
	clusters Clusters
	tenants  Tenants
	now      func() time.Time
	seen     *lru.Cache[sight, seen]
}

// sight is one account looking at one cluster; seen is what it was allowed to look at, and when.
type (
	sight struct{ userID, clusterID string }
	seen  struct {
		target Target
		at     time.Time
	}
)

// How many sights are remembered, and for how long one is worth a guess.
const (
	maxSeen  = 4096
	seenLife = time.Minute
)

// New makes the service.
func New(clusters Clusters, tenants Tenants, now func() time.Time) (*Service, error) {
	cache, err := lru.New[sight, seen](maxSeen)
	if err != nil {
		return nil, err
	}
	return &Service{clusters: clusters, tenants: tenants, now: now, seen: cache}, nil
}

// List gives a cluster's nodes, live. Every call asks whether the account may see the cluster. Where it could a moment
// ago, the tenant is asked at the same time, and what it says is kept back until access is confirmed.
func (s *Service) List(ctx context.Context, who contract.Principal, req nodev1.ListRequest) (nodev1.ListResponse, error) {
	page, err := pageOf(req)
	if err != nil {
		return nodev1.ListResponse{}, err
	}
	key := sight{who.UserID, req.ClusterID}
	guess, early := s.guess(ctx, key, page)
	defer early.stop()

	cluster, err := s.clusters.Visible(ctx, req.ClusterID)
	if err == nil {
		err = mayList(cluster)
	}
	if err != nil {
		s.seen.Remove(key)
		return nodev1.ListResponse{}, err
	}
	target := Target{ClusterID: cluster.ID, ClusterName: cluster.Name, Namespace: cluster.Namespace, Name: cluster.VClusterName, Host: cluster.ControlPlaneHost,
		Published: cluster.PublicAccessMode == clusterv1.LoadBalancer}
	var nodes nodev1.ListResponse
	if early != nil && guess == target {
		nodes, err = early.wait()
	} else {
		early.stop()
		nodes, err = s.tenants.Nodes(ctx, target, page)
	}
	if err != nil {
		s.seen.Remove(key)
		return nodev1.ListResponse{}, err
	}
	s.seen.Add(key, seen{target, s.now()})
	return nodes, nil
}

// early is a list that was begun before access was confirmed. A nil one is none.
type early struct {
	cancel context.CancelFunc
	done   chan struct{}
	nodes  nodev1.ListResponse
	err    error
}

func (s *Service) guess(ctx context.Context, key sight, page Page) (Target, *early) {
	last, ok := s.seen.Get(key)
	if !ok || s.now().Sub(last.at) > seenLife {
		return Target{}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	e := &early{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		e.nodes, e.err = s.tenants.Nodes(ctx, last.target, page)
	}()
	return last.target, e
}

func (e *early) wait() (nodev1.ListResponse, error) {
	<-e.done
	return e.nodes, e.err
}

// stop ends the list and waits for it: no goroutine outlives the call that began it.
func (e *early) stop() {
	if e != nil {
		e.cancel()
		<-e.done
	}
}

func pageOf(req nodev1.ListRequest) (Page, error) {
	switch {
	case req.Limit < 0:
		return Page{}, fault.New(fault.Invalid, "limit_out_of_range", "limit is %d; it accepts 1 to %d, or 0 for as many as fit", req.Limit, MaxPage).In("limit")
	case len(req.Continue) > maxContinue:
		return Page{}, ContinueInvalid(nil)
	case req.Limit == 0 || req.Limit > MaxPage:
		return Page{Limit: MaxPage, Continue: req.Continue}, nil
	default:
		return Page{Limit: req.Limit, Continue: req.Continue}, nil
	}
}

// ContinueInvalid says that a continuation is none of ours.
func ContinueInvalid(cause error) error {
	return fault.New(fault.Invalid, "continue_invalid", "this continuation was not given by an earlier answer").In("continue").
		Do("begin again without it").Because(cause)
}

// ContinueExpired says that a continuation is too old to be followed.
func ContinueExpired(cause error) error {
	return fault.New(fault.Conflict, "continue_expired", "the list has moved on since that continuation was given").In("continue").
		Do("begin again without it").Because(cause)
}

// mayList lets a cluster in error be looked at: its control plane may well answer after an upgrade that failed.
func mayList(c clusterv1.Cluster) error {
	if c.Status == clusterv1.Ready || c.Status == clusterv1.Failed {
		return nil
	}
	f := fault.New(fault.Precondition, "cluster_not_ready", "the cluster %q is not ready, it is %s", c.Name, c.Status)
	if c.Reason != nil && c.Reason.Action != "" {
		return f.Do("%s", c.Reason.Action)
	}
	return f.Do("look at the cluster's events for how far it is")
}
