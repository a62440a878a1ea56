package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Service answers the contract's methods for a principal. It changes rows only; the host cluster follows in the work
// that the store enqueues.
type Service struct {
	store   Store
	host    HostCluster
	tenants Tenants
	policy  Policy
	newID   func() string
	now     func() time.Time
}

// NewService joins the parts. newID gives 20 of [a-z0-9].
func NewService(store Store, host HostCluster, tenants Tenants, policy Policy, newID func() string, now func() time.Time) *Service {
	return &Service{store: store, host: host, tenants: tenants, policy: policy, newID: newID, now: now}
}

var idPattern = regexp.MustCompile(`^cl_[a-z0-9]{20}$`)

// hostCheck bounds what a request waits for the host cluster.
const hostCheck = 2 * time.Second

// Create checks the request, stores the cluster as provisioning and enqueues the work.
func (s *Service) Create(ctx context.Context, p contract.Principal, req clusterv1.CreateRequest) (clusterv1.Cluster, error) {
	if err := mayCreate(p); err != nil {
		return clusterv1.Cluster{}, err
	}
	c, err := s.draft(ctx, p, req)
	if err != nil {
		return clusterv1.Cluster{}, err
	}
	derived, named := strings.TrimSpace(req.Namespace) == "", strings.TrimSpace(req.ControlPlaneHost) != ""
	base := c.Namespace
	for try := 0; ; try++ {
		made, err := s.place(ctx, c)
		if err == nil {
			made.Access = accessOf(p, made.Cluster, noAccess)
			return made.Cluster, nil
		}
		var f *fault.Error
		switch {
		case try == 3 || !errors.As(err, &f):
			return clusterv1.Cluster{}, err
		case derived && f.Code == "namespace_in_use":
			// Nobody asked for this very namespace, and what holds it may be another tenant's: take one beside it.
			c.Namespace = base + "-" + s.newID()[:5]
		case !named && f.Code == "control_plane_host_taken":
			c.ControlPlaneHost = s.policy.Domains.give(c.VClusterName, s.newID())
		default:
			return clusterv1.Cluster{}, err
		}
	}
}

func (s *Service) place(ctx context.Context, c Cluster) (Cluster, error) {
	check, cancel := context.WithTimeout(ctx, hostCheck)
	defer cancel()
	// A host cluster that is away refuses nothing here: the work waits for it, and checks again.
	if err := s.host.NamespaceFree(check, c.Namespace); fault.Is(err, fault.Conflict) {
		return Cluster{}, err
	}
	return s.store.Create(ctx, c, s.event(clusterv1.Info, EventCreated,
		fmt.Sprintf("accepted: %s control plane %s in namespace %s, reached at %s", c.ControlPlane, c.VClusterName, c.Namespace, c.ControlPlaneHost)))
}

// draft turns a request into a row, or says what is wrong with it.
func (s *Service) draft(ctx context.Context, p contract.Principal, req clusterv1.CreateRequest) (Cluster, error) {
	var c Cluster
	var err error
	if c.Name, err = cleanName(req.Name); err != nil {
		return c, err
	}
	if c.VClusterName, err = vclusterName(req.VClusterName, c.Name); err != nil {
		return c, err
	}
	if c.Namespace, err = s.policy.namespaceName(req.Namespace, c.VClusterName); err != nil {
		return c, err
	}
	switch c.ControlPlane = req.ControlPlane; c.ControlPlane {
	case clusterv1.VCluster, clusterv1.Upstream:
	case "":
		c.ControlPlane = s.policy.DefaultControlPlane
	default:
		return c, fault.New(fault.Invalid, "control_plane_unknown", "there is no such control plane").
			In("control_plane").Do("use vcluster or upstream")
	}
	if c.PublicAccessMode, err = cleanMode(req.PublicAccessMode); err != nil {
		return c, err
	}
	switch host := strings.TrimSpace(req.ControlPlaneHost); {
	case host != "":
		c.ControlPlaneHost, err = s.policy.cleanHost(host, c.PublicAccessMode)
	case c.PublicAccessMode == clusterv1.LoadBalancer && s.policy.Domains.Base != "":
		c.ControlPlaneHost = s.policy.Domains.give(c.VClusterName, s.newID())
	case c.PublicAccessMode == clusterv1.LoadBalancer:
		err = fault.New(fault.Invalid, "control_plane_host_required", "public access through the load balancer needs a domain").
			In(hostField).Do("give a domain such as demo.example.com")
	default:
		check, cancel := context.WithTimeout(ctx, hostCheck)
		defer cancel()
		c.ControlPlaneHost, err = s.host.DefaultAddress(check)
	}
	if err == nil {
		err = c.fitsHost(c.ControlPlaneHost)
	}
	if err != nil {
		return c, err
	}
	c.DeletionProtection = req.DeletionProtection
	now := s.now().UTC().Truncate(time.Microsecond)
	c.ID, c.OwnerID, c.Status, c.Generation = "cl_"+s.newID(), p.UserID, clusterv1.Provisioning, 1
	c.CreatedAt, c.UpdatedAt = now, now
	return c, nil
}

func cleanMode(mode clusterv1.AccessMode) (clusterv1.AccessMode, error) {
	switch mode {
	case "":
		return clusterv1.NodePort, nil
	case clusterv1.NodePort, clusterv1.LoadBalancer:
		return mode, nil
	}
	return "", fault.New(fault.Invalid, "public_access_mode_unknown", "there is no such public access mode").
		In("public_access_mode").Do("use nodeport or loadbalancer")
}

func (s *Service) find(ctx context.Context, p contract.Principal, id string, need clusterv1.Access) (Cluster, error) {
	if !idPattern.MatchString(id) {
		return Cluster{}, NotFound()
	}
	c, err := s.store.Find(ctx, id, p.UserID)
	if err == nil {
		err = admit(p, &c, need)
	}
	if err != nil {
		return Cluster{}, err
	}
	return c, nil
}

// List gives what the principal may see.
func (s *Service) List(ctx context.Context, p contract.Principal, _ clusterv1.ListRequest) (clusterv1.ListResponse, error) {
	rows, err := s.store.List(ctx, p.UserID, p.Role == contract.RoleAdmin, p.Clusters)
	if err != nil {
		return clusterv1.ListResponse{}, err
	}
	out := clusterv1.ListResponse{Clusters: make([]clusterv1.Cluster, 0, len(rows))}
	for _, c := range rows {
		if admit(p, &c, clusterv1.Viewer) == nil {
			out.Clusters = append(out.Clusters, c.Cluster)
		}
	}
	return out, nil
}

// Get gives one cluster to who has the access that the request needs.
func (s *Service) Get(ctx context.Context, p contract.Principal, req clusterv1.GetRequest) (clusterv1.Cluster, error) {
	need := req.Need
	if need == "" {
		need = clusterv1.Viewer
	}
	if rank(need) < 0 { // it would rank below all, and let everybody pass
		return clusterv1.Cluster{}, fault.New(fault.Invalid, "access_unknown", "there is no such access").In("need")
	}
	c, err := s.find(ctx, p, req.ID, need)
	return c.Cluster, err
}

// Update changes what is not nil. Editors may, but only an owner takes the protection from deletion away.
func (s *Service) Update(ctx context.Context, p contract.Principal, req clusterv1.UpdateRequest) (clusterv1.Cluster, error) {
	for try := 0; ; try++ {
		given := false
		c, err := s.change(ctx, p, req.ID, func(c *Cluster) (Change, clusterv1.Event, error) {
			need := clusterv1.Editor
			if c.DeletionProtection && req.DeletionProtection != nil && !*req.DeletionProtection {
				need = clusterv1.Owner
			}
			if err := admit(p, c, need); err != nil {
				return Change{}, clusterv1.Event{}, err
			}
			var ch Change
			var e clusterv1.Event
			var err error
			ch, e, given, err = s.decide(*c, req)
			return ch, e, err
		})
		if given && try < 3 && err != nil && fault.From(err).Code == "control_plane_host_taken" {
			continue // another name is given out
		}
		return c, err
	}
}

// Retry begins the work on a cluster in error again.
func (s *Service) Retry(ctx context.Context, p contract.Principal, req clusterv1.RetryRequest) (clusterv1.Cluster, error) {
	return s.change(ctx, p, req.ID, func(c *Cluster) (Change, clusterv1.Event, error) {
		if err := admit(p, c, clusterv1.Editor); err != nil {
			return Change{}, clusterv1.Event{}, err
		}
		if c.Status != clusterv1.Failed {
			return Change{}, clusterv1.Event{}, fault.New(fault.Precondition, "cluster_not_failed", "the cluster is %s, and only one in error can be tried again", c.Status).
				Do("look at the cluster's events for what it does")
		}
		return Change{Work: true}, s.event(clusterv1.Info, EventRetryRequested, "asked to try again"), nil
	})
}

// change applies what decide says under the row's lock, once it has admitted the principal.
func (s *Service) change(ctx context.Context, p contract.Principal, id string, decide func(*Cluster) (Change, clusterv1.Event, error)) (clusterv1.Cluster, error) {
	if !idPattern.MatchString(id) {
		return clusterv1.Cluster{}, NotFound()
	}
	access := noAccess
	c, err := s.store.Update(ctx, id, p.UserID, func(c Cluster) (Change, clusterv1.Event, error) {
		ch, e, err := decide(&c)
		access = c.Access
		return ch, e, err
	})
	if err != nil {
		return clusterv1.Cluster{}, err
	}
	c.Access = access
	return c.Cluster, nil
}

// decide checks an update. given says that the cluster gets a name under the operator's base domain.
func (s *Service) decide(c Cluster, req clusterv1.UpdateRequest) (ch Change, e clusterv1.Event, given bool, err error) {
	if c.Status == clusterv1.Deleting {
		return Change{}, e, false, deleting()
	}
	if req.Name != nil {
		name, err := cleanName(*req.Name)
		if err != nil {
			return Change{}, e, false, err
		}
		if name != c.Name {
			ch.Name = &name
		}
	}
	host, mode, given, err := s.reached(c, req)
	if err != nil {
		return Change{}, e, false, err
	}
	if host != c.ControlPlaneHost {
		ch.ControlPlaneHost = &host
	}
	if mode != c.PublicAccessMode {
		ch.PublicAccessMode = &mode
	}
	ch.Work = ch.ControlPlaneHost != nil || ch.PublicAccessMode != nil
	if ch.Work && c.APIEndpoint != "" {
		ch.Reason = &clusterv1.Reason{Code: "updating",
			Message: fmt.Sprintf("it is to be reached at %s by %s: the certificate, the kubeconfig, join commands and the route follow", host, mode)}
	}
	if p := req.DeletionProtection; p != nil && *p != c.DeletionProtection {
		ch.DeletionProtection = p
	}
	return ch, s.changed(ch, host, mode), given, nil
}

// reached gives the host and the mode that an update leads to. One that names neither asks nothing of those that are there: they may be
// of a time when more was let through.
func (s *Service) reached(c Cluster, req clusterv1.UpdateRequest) (host string, mode clusterv1.AccessMode, given bool, err error) {
	host, mode = c.ControlPlaneHost, c.PublicAccessMode
	if req.PublicAccessMode == nil && req.ControlPlaneHost == nil {
		return host, mode, false, nil
	}
	if req.PublicAccessMode != nil {
		if mode, err = cleanMode(*req.PublicAccessMode); err != nil {
			return "", "", false, err
		}
	}
	if req.ControlPlaneHost != nil {
		if strings.TrimSpace(*req.ControlPlaneHost) == "" {
			return "", "", false, fault.New(fault.Invalid, "control_plane_host_required", "control_plane_host cannot be taken away").In(hostField)
		}
		host = *req.ControlPlaneHost
	}
	host, err = s.policy.cleanHost(host, mode)
	if err != nil && req.ControlPlaneHost == nil && s.policy.Domains.Base != "" && fault.From(err).Code == "host_must_be_domain" {
		host, given, err = s.policy.Domains.give(c.VClusterName, s.newID()), true, nil
	}
	if err == nil {
		err = c.fitsHost(host)
	}
	return host, mode, given, err
}

// changed tells a change in one event, named after what weighs most.
func (s *Service) changed(ch Change, host string, mode clusterv1.AccessMode) clusterv1.Event {
	var code string
	var said []string
	say := func(is bool, as, text string) {
		if is {
			code, said = cmp.Or(code, as), append(said, text)
		}
	}
	say(ch.Work, EventUpdated, fmt.Sprintf("to be reached at %s by %s", host, mode))
	if ch.DeletionProtection != nil {
		say(*ch.DeletionProtection, EventProtected, "protected from deletion")
		say(!*ch.DeletionProtection, EventUnprotected, "no longer protected from deletion")
	}
	say(ch.Name != nil, EventRenamed, "the name was changed")
	return s.event(clusterv1.Info, code, strings.Join(said, "; "))
}

// Delete starts the removal; on a cluster that is already being deleted it changes nothing. The machines that had joined are asked
// for first: soon nobody can say which they were.
func (s *Service) Delete(ctx context.Context, p contract.Principal, req clusterv1.DeleteRequest) (clusterv1.Cluster, error) {
	mayDelete := func(c *Cluster) error {
		err := admit(p, c, clusterv1.Owner)
		if err == nil && c.DeletionProtection && c.Status != clusterv1.Deleting {
			err = fault.New(fault.Precondition, "deletion_protected", "the cluster is protected from deletion").In("deletion_protection").
				Do("take the protection away first: PATCH it with deletion_protection false")
		}
		return err
	}
	c, err := s.find(ctx, p, req.ID, clusterv1.Owner)
	if err == nil {
		err = mayDelete(&c)
	}
	if err != nil {
		return clusterv1.Cluster{}, err
	}
	events := []clusterv1.Event{s.event(clusterv1.Info, EventDeleteRequested, "the removal was asked for")}
	removal := clusterv1.Removal{Deadline: s.now().UTC().Add(s.policy.DeleteWithin).Truncate(time.Microsecond)}
	if c.Status != clusterv1.Deleting && c.APIEndpoint != "" {
		check, cancel := context.WithTimeout(ctx, hostCheck)
		removal.Workers, err = s.tenants.Workers(check, c)
		cancel()
		events = append(events, s.workers(c, removal.Workers, err)...)
	}
	access := noAccess
	c, err = s.store.Delete(ctx, req.ID, p.UserID, removal, func(c Cluster) error {
		err := mayDelete(&c)
		access = c.Access
		return err
	}, events...)
	if err != nil {
		return clusterv1.Cluster{}, err
	}
	c.Access = access
	return c.Cluster, nil
}

// Events gives the timeline.
func (s *Service) Events(ctx context.Context, p contract.Principal, req clusterv1.EventsRequest) (clusterv1.EventsResponse, error) {
	if _, err := s.find(ctx, p, req.ID, clusterv1.Viewer); err != nil {
		return clusterv1.EventsResponse{}, err
	}
	events, err := s.store.Events(ctx, req.ID)
	if events == nil {
		events = []clusterv1.Event{}
	}
	return clusterv1.EventsResponse{Events: events}, err
}

// Kubeconfig gives an owner's download. It holds a credential of the tenant's administrator.
func (s *Service) Kubeconfig(ctx context.Context, p contract.Principal, req clusterv1.KubeconfigRequest) (clusterv1.KubeconfigResponse, error) {
	c, err := s.find(ctx, p, req.ID, clusterv1.Owner)
	if err != nil {
		return clusterv1.KubeconfigResponse{}, err
	}
	if c.Status != clusterv1.Ready {
		return clusterv1.KubeconfigResponse{}, fault.New(fault.Precondition, "cluster_not_ready", "the cluster is %s", c.Status).
			Do("wait until it is ready; its events say what it waits for")
	}
	text, err := s.tenants.Kubeconfig(ctx, c)
	if err != nil {
		return clusterv1.KubeconfigResponse{}, err
	}
	return clusterv1.KubeconfigResponse{Kubeconfig: text, FileName: c.VClusterName + ".kubeconfig.yaml"}, nil
}

func (s *Service) event(level clusterv1.Level, code, message string) clusterv1.Event {
	return clusterv1.Event{At: s.now().UTC(), Level: level, Code: code, Message: message}
}
