package cluster

import (
	"cmp"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

var kubeconfigID = regexp.MustCompile(`^kc_[a-z0-9]{20}$`)

// MaxKubeconfigs is how many an account has of one cluster at a time.
const MaxKubeconfigs = 20

// IssueWithin is how long after its row was stored a kubeconfig is handed out at the latest. Until then what it needs in the tenant
// may come into being, and the row must not be taken for the end of that.
const IssueWithin = time.Minute

// Kubeconfig is a personal kubeconfig as it is kept.
type Kubeconfig struct {
	ID, ClusterID, UserID string
	Identity              string // of the tenant, without what the tenant puts before it
	Access                clusterv1.Access
	CreatedAt, ExpiresAt  time.Time
	Issued                bool
	RevokedAt             *time.Time
	RevokedBy             string
	Gone                  bool // the identity is no longer in the tenant
}

// State is what there is to say about it now.
func (k Kubeconfig) State(now time.Time) clusterv1.KubeconfigState {
	switch {
	case k.RevokedAt != nil && k.Gone:
		return clusterv1.KubeconfigRevoked
	case k.RevokedAt != nil:
		return clusterv1.KubeconfigRevoking
	case k.Gone, !now.Before(k.ExpiresAt):
		return clusterv1.KubeconfigExpired
	}
	return clusterv1.KubeconfigActive
}

// KubeconfigStore keeps personal kubeconfigs. Whatever takes an account's access to a cluster away revokes those that say more than is
// left, in the same transaction: Store.SetMember and Store.RemoveMember.
type KubeconfigStore interface {
	// AddKubeconfig stores k, not issued. decide sees the cluster under its lock, as Store.Update says, and gives what k may do. It fails with
	// too_many_kubeconfigs.
	AddKubeconfig(ctx context.Context, k Kubeconfig, decide func(Cluster) (clusterv1.Access, error)) (Kubeconfig, error)
	// IssueKubeconfig says that k was handed out, until expires; false where it was revoked before.
	IssueKubeconfig(ctx context.Context, k Kubeconfig, expires time.Time, e clusterv1.Event) (bool, error)
	// DropKubeconfig gives up k, which was not handed out.
	DropKubeconfig(ctx context.Context, k Kubeconfig) error
	// Kubeconfigs gives the newest 200 that were issued, newest first: of userID, or of all where that is empty.
	Kubeconfigs(ctx context.Context, clusterID, userID string) ([]Kubeconfig, error)
	// RevokeKubeconfig marks one as revoked by whom the principal says, unless it has ended. decide sees it and the cluster under the
	// cluster's lock. It fails with kubeconfig_not_found.
	RevokeKubeconfig(ctx context.Context, clusterID, id, by string, decide func(Cluster, Kubeconfig) (clusterv1.Event, error)) (Kubeconfig, error)
	// RevokeKubeconfigsOf marks an account's as revoked in every cluster, and counts those that were active.
	RevokeKubeconfigsOf(ctx context.Context, userID string) (int, error)
	// DueKubeconfigs gives at most limit whose identity has to go, and gives none of them again for a while, to nobody.
	DueKubeconfigs(ctx context.Context, limit int) ([]Kubeconfig, error)
	// KubeconfigGone says that k's identity is no longer in the tenant.
	KubeconfigGone(ctx context.Context, k Kubeconfig) error
	// ForgetKubeconfigs deletes those that ended before.
	ForgetKubeconfigs(ctx context.Context, before time.Time) error
	// ClusterOf gives the cluster for the sweep, which asks for nobody.
	ClusterOf(ctx context.Context, id string) (Cluster, error)
}

// Identities is what a tenant knows accounts by. Its methods answer within five seconds; what is wrong with the tenant is a fault that
// names the cluster.
type Identities interface {
	// Admit makes the identity k, for an account of that name, and gives a kubeconfig with a credential of it, good until expires.
	Admit(ctx context.Context, c Cluster, k Kubeconfig, account string) (kubeconfig string, expires time.Time, err error)
	// Expel ends it; an absent one is no error.
	Expel(ctx context.Context, c Cluster, k Kubeconfig) error
	// UserName is what the tenant's own audit log calls it.
	UserName(k Kubeconfig) string
}

// Kubeconfigs answers the contract's methods on personal kubeconfigs.
type Kubeconfigs struct {
	service *Service
	store   KubeconfigStore
	tenants Identities
	log     *slog.Logger
}

// NewKubeconfigs joins the parts.
func NewKubeconfigs(service *Service, store KubeconfigStore, tenants Identities, log *slog.Logger) *Kubeconfigs {
	return &Kubeconfigs{service: service, store: store, tenants: tenants, log: log}
}

// KubeconfigNotFound is the one answer for a kubeconfig that is absent and for one that the principal may not see.
func KubeconfigNotFound() error {
	return fault.New(fault.NotFound, "kubeconfig_not_found", "there is no such kubeconfig")
}

// TooManyKubeconfigs is the conflict of an account that has MaxKubeconfigs.
func TooManyKubeconfigs() error {
	return fault.New(fault.Conflict, "too_many_kubeconfigs", "you have %d kubeconfigs of this cluster, which is all that you can have", MaxKubeconfigs).
		Do("revoke one that you do not need any more")
}

// Above gives the accesses that say more than access.
func Above(access clusterv1.Access) []string {
	out := []string{}
	for _, a := range accesses {
		if rank(a) > rank(access) {
			out = append(out, string(a))
		}
	}
	return out
}

// Create makes a kubeconfig for the principal itself. The row comes first, so that nothing is left in a tenant that no row tells of;
// whoever loses the access in the middle gets none.
func (s *Kubeconfigs) Create(ctx context.Context, p contract.Principal, req clusterv1.CreateKubeconfigRequest) (clusterv1.CreateKubeconfigResponse, error) {
	var none clusterv1.CreateKubeconfigResponse
	if !idPattern.MatchString(req.ID) {
		return none, NotFound()
	}
	ttl := clusterv1.DefaultKubeconfigTTL
	if req.TTLSeconds != nil {
		if *req.TTLSeconds < int64(clusterv1.MinKubeconfigTTL/time.Second) || *req.TTLSeconds > int64(clusterv1.MaxKubeconfigTTL/time.Second) {
			// Whether there is such a cluster is said first.
			if _, err := s.service.find(ctx, p, req.ID, clusterv1.Viewer); err != nil {
				return none, err
			}
			return none, fault.New(fault.Invalid, "kubeconfig_ttl_invalid", "a kubeconfig is good for %d to %d seconds",
				clusterv1.MinKubeconfigTTL/time.Second, clusterv1.MaxKubeconfigTTL/time.Second).In("ttl_seconds").Do("ask for a time within that")
		}
		ttl = time.Duration(*req.TTLSeconds) * time.Second
	}
	now := s.service.now().UTC().Truncate(time.Microsecond)
	id := s.service.newID()
	k := Kubeconfig{ID: "kc_" + id, ClusterID: req.ID, UserID: p.UserID, Identity: identityName(req.UserName, id), CreatedAt: now, ExpiresAt: now.Add(ttl)}
	var c Cluster
	k, err := s.store.AddKubeconfig(ctx, k, func(found Cluster) (clusterv1.Access, error) {
		c = found
		return mayHave(p, &c, req.Access)
	})
	if err != nil {
		return none, err
	}
	text, expires, err := s.tenants.Admit(ctx, c, k, req.UserName)
	if err == nil {
		k.ExpiresAt = expires.UTC().Truncate(time.Microsecond)
		var issued bool
		issued, err = s.store.IssueKubeconfig(ctx, k, k.ExpiresAt, s.service.event(clusterv1.Info, EventKubeconfigCreated,
			"a kubeconfig of "+p.UserID+" with the access "+string(k.Access)+", good until "+k.ExpiresAt.Format(time.RFC3339)))
		if err == nil && !issued {
			err = fault.New(fault.Conflict, "kubeconfig_revoked", "your access to the cluster changed while the kubeconfig was made").
				Do("look at what you may do there now, and try again")
		}
	}
	if err != nil {
		// It may have come into being: the sweep takes it away.
		if dropped := s.store.DropKubeconfig(context.WithoutCancel(ctx), k); dropped != nil {
			s.log.WarnContext(ctx, "a kubeconfig that was not handed out could not be given up; the sweep does it later",
				slog.String("kubeconfig", k.ID), slog.Any("error", dropped))
		}
		return none, err
	}
	k.Issued = true
	return clusterv1.CreateKubeconfigResponse{PersonalKubeconfig: s.public(k), Kubeconfig: text,
		FileName: c.VClusterName + "-" + string(k.Access) + ".kubeconfig.yaml"}, nil
}

// mayHave gives the access of a kubeconfig: what is asked for, at most what the principal has.
func mayHave(p contract.Principal, c *Cluster, want clusterv1.Access) (clusterv1.Access, error) {
	if err := admit(p, c, clusterv1.Viewer); err != nil {
		return "", err
	}
	switch {
	case p.ReadOnly: // what may only read makes no credential that outlives it
		return "", fault.New(fault.Forbidden, "read_only", "this API token may only read").Do("use a log-in or an API token that may write")
	case want != "" && rank(want) <= 0:
		return "", fault.New(fault.Invalid, "access_unknown", "there is no such access").In("access").Do("use viewer, editor or owner")
	case want == "":
		if want = c.Access; rank(want) > rank(clusterv1.Editor) {
			want = clusterv1.Editor
		}
	}
	if err := admit(p, c, want); err != nil {
		return "", err
	}
	if c.Status != clusterv1.Ready {
		return "", fault.New(fault.Precondition, "cluster_not_ready", "the cluster %q is %s", c.Name, c.Status).
			Do("wait until it is ready; its events say what it waits for")
	}
	return want, nil
}

// List gives an owner all of a cluster's, and everybody else their own.
func (s *Kubeconfigs) List(ctx context.Context, p contract.Principal, req clusterv1.KubeconfigsRequest) (clusterv1.KubeconfigsResponse, error) {
	c, err := s.service.find(ctx, p, req.ID, clusterv1.Viewer)
	if err != nil {
		return clusterv1.KubeconfigsResponse{}, err
	}
	of := p.UserID
	if c.Access == clusterv1.Owner {
		of = ""
	}
	found, err := s.store.Kubeconfigs(ctx, c.ID, of)
	if err != nil {
		return clusterv1.KubeconfigsResponse{}, err
	}
	out := clusterv1.KubeconfigsResponse{Kubeconfigs: make([]clusterv1.PersonalKubeconfig, 0, len(found))}
	for _, k := range found {
		out.Kubeconfigs = append(out.Kubeconfigs, s.public(k))
	}
	return out, nil
}

// Revoke ends one. Where the tenant does not answer its state is revoking, and the sweep goes on.
func (s *Kubeconfigs) Revoke(ctx context.Context, p contract.Principal, req clusterv1.RevokeKubeconfigRequest) (clusterv1.PersonalKubeconfig, error) {
	if !idPattern.MatchString(req.ID) {
		return clusterv1.PersonalKubeconfig{}, NotFound()
	}
	id := req.KubeconfigID
	if !kubeconfigID.MatchString(id) {
		id = "" // which none has
	}
	var c Cluster
	k, err := s.store.RevokeKubeconfig(ctx, req.ID, id, p.UserID, func(found Cluster, k Kubeconfig) (clusterv1.Event, error) {
		c = found
		err := admit(p, &c, clusterv1.Viewer)
		switch {
		case err != nil:
		case p.ReadOnly:
			err = admit(p, &c, clusterv1.Owner) // which it never is
		case k.ID == "", k.UserID != p.UserID && c.Access != clusterv1.Owner:
			err = KubeconfigNotFound()
		}
		return s.service.event(clusterv1.Info, EventKubeconfigRevoked, "a kubeconfig of "+k.UserID+" was revoked by "+p.UserID), err
	})
	if err != nil {
		return clusterv1.PersonalKubeconfig{}, err
	}
	if k.State(s.service.now()) == clusterv1.KubeconfigRevoking {
		if err := s.expel(ctx, c, k); err != nil {
			s.log.WarnContext(ctx, "a revoked kubeconfig's identity could not be ended yet; it is tried again",
				slog.String("cluster", c.ID), slog.String("kubeconfig", k.ID), slog.Any("error", err))
		} else {
			k.Gone = true
		}
	}
	return s.public(k), nil
}

// RevokeOf ends an account's in every cluster: the sweep does it within moments, and goes on where a tenant does not answer.
func (s *Kubeconfigs) RevokeOf(ctx context.Context, p contract.Principal, req clusterv1.RevokeKubeconfigsOfRequest) (clusterv1.RevokeKubeconfigsOfResponse, error) {
	if p.Role != contract.RoleAdmin || p.ReadOnly || len(p.Clusters) > 0 {
		return clusterv1.RevokeKubeconfigsOfResponse{}, fault.New(fault.Forbidden, "admin_required", "only an administrator may do this")
	}
	if !userIDPattern.MatchString(req.UserID) {
		return clusterv1.RevokeKubeconfigsOfResponse{}, fault.New(fault.Invalid, "user_id_invalid", "this is no account's id").In("user_id")
	}
	n, err := s.store.RevokeKubeconfigsOf(ctx, req.UserID)
	if err == nil && n > 0 {
		s.log.InfoContext(ctx, "an account's kubeconfigs are revoked", slog.String("user", req.UserID), slog.Int("kubeconfigs", n))
	}
	return clusterv1.RevokeKubeconfigsOfResponse{Revoked: n}, err
}

func (s *Kubeconfigs) expel(ctx context.Context, c Cluster, k Kubeconfig) error {
	if err := s.tenants.Expel(ctx, c, k); err != nil {
		return err
	}
	return s.store.KubeconfigGone(ctx, k)
}

func (s *Kubeconfigs) public(k Kubeconfig) clusterv1.PersonalKubeconfig {
	return clusterv1.PersonalKubeconfig{ID: k.ID, ClusterID: k.ClusterID, UserID: k.UserID, Identity: s.tenants.UserName(k), Access: k.Access,
		State: k.State(s.service.now()), CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt, RevokedBy: k.RevokedBy}
}

var notOfNames = regexp.MustCompile(`[^a-z0-9]+`)

// identityName is the account's address, as far as a name in a tenant can say it, and what makes it this kubeconfig's own.
func identityName(account, id string) string {
	const most = 40
	slug := strings.Trim(notOfNames.ReplaceAllString(strings.ToLower(account), "-"), "-")
	slug = strings.TrimRight(slug[:min(len(slug), most)], "-")
	return cmp.Or(slug, "user") + "-" + id
}
