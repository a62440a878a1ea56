package token

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Clusters asks the cluster service.
type Clusters interface {
	// For gives a cluster to which the caller of ctx has the access need; forbidden where it has less, not_found where it
	// has none.
	For(ctx context.Context, id string, need clusterv1.Access) (clusterv1.Cluster, error)
	// Any gives a cluster whoever asks; not_found when it is gone.
	Any(ctx context.Context, id string) (clusterv1.Cluster, error)
}

// Tenants is where bootstrap tokens take effect: the control plane of each cluster.
type Tenants interface {
	// Issue makes v a bootstrap token of the cluster until expires and gives the address of its API, https://host:port.
	// conflict (token_id_taken) when v's id is in use there; unavailable (tenant_unreachable) within 5 s.
	Issue(ctx context.Context, c clusterv1.Cluster, v Value, expires time.Time) (endpoint string, err error)
	// Withdraw removes the bootstrap token; one that is not there is no error. unavailable as above.
	Withdraw(ctx context.Context, c clusterv1.Cluster, tokenID string) error
	// Facts reads what a joining machine must know.
	Facts(ctx context.Context, c clusterv1.Cluster) (Facts, error)
}

// Facts of a tenant, for the join script.
type Facts struct {
	Endpoint          string // https://host:port
	CAPEM             []byte
	DNS               string // the cluster DNS Service's address
	KubernetesVersion string // v1.x.y
}

// Store keeps the records. Its errors are faults only where their meaning is known.
type Store interface {
	Insert(ctx context.Context, r Record) error
	// ByCluster is ordered newest first.
	ByCluster(ctx context.Context, clusterID string) ([]Record, error)
	// ByTokenID gives every record with that public half, over all clusters.
	ByTokenID(ctx context.Context, tokenID string) ([]Record, error)
	// Revoke sets RevokedAt unless it is set already, and gives the record; not_found when there is none.
	Revoke(ctx context.Context, clusterID, id string, at time.Time) (Record, error)
	// Forget removes every record of a cluster, and says how many there were.
	Forget(ctx context.Context, clusterID string) (int64, error)
	// Used sets LastUsedAt.
	Used(ctx context.Context, id string, at time.Time) error
}

// Script is what a join script is made of.
type Script struct {
	ClusterID         string
	ClusterName       string
	APIServer         string // https://host:port
	CAPEM             string
	Token             Value
	KubernetesVersion string
	ClusterDNS        string
	MirrorURL         string // <join_base_url>/node/mirror
	Mirror            []tokenv1.MirrorFile
}

// Service is the whole domain.
type Service struct {
	Clusters Clusters
	Tenants  Tenants
	Store    Store
	Render   func(Script) (string, error)
	Now      func() time.Time
	Random   io.Reader
	Log      *slog.Logger
}

// Create makes a bootstrap token and the command that uses it. The Secret in the tenant comes first and the record
// second: where the record cannot be written the Secret is removed again, and where even that fails (or the process
// dies between) what remains is a Secret that ends by itself and whose secret nobody was ever told.
func (s *Service) Create(ctx context.Context, who contract.Principal, req tokenv1.CreateRequest) (tokenv1.CreateResponse, error) {
	life, err := lifetime(req.TTLSeconds)
	if err != nil {
		return tokenv1.CreateResponse{}, err
	}
	cluster, err := s.Clusters.For(ctx, req.ClusterID, clusterv1.Editor)
	if err != nil {
		return tokenv1.CreateResponse{}, err
	}
	if err := mustBeReady(cluster); err != nil {
		return tokenv1.CreateResponse{}, err
	}
	base := ""
	if cluster.ControlPlane == clusterv1.Upstream {
		if base, err = baseURL(req.JoinBaseURL); err != nil {
			return tokenv1.CreateResponse{}, err
		}
	}
	suffix, err := draw(s.Random, recordLength)
	if err != nil {
		return tokenv1.CreateResponse{}, err
	}
	// Times are whole seconds, as the Secret's are: both ends agree on when it is over.
	now := s.Now().UTC().Truncate(time.Second)
	record := Record{ID: "tok_" + suffix, ClusterID: cluster.ID, CreatedBy: who.UserID, CreatedAt: now, ExpiresAt: now.Add(life)}

	value, endpoint, err := s.issue(ctx, cluster, record.ExpiresAt)
	if err != nil {
		return tokenv1.CreateResponse{}, err
	}
	record.TokenID, record.Hash = value.ID(), value.Hash()
	if err := s.Store.Insert(ctx, record); err != nil {
		s.undo(ctx, cluster, value.ID())
		return tokenv1.CreateResponse{}, err
	}
	s.Log.InfoContext(ctx, "bootstrap token issued", "cluster_id", cluster.ID, "token_id", value.ID(), "expires_at", record.ExpiresAt)

	// The gateway may have it wait its turn: curl does, by Retry-After, and sh sees nothing of it.
	command := `curl -fsSL --retry 10 "` + base + `/node/join?token=` + value.Reveal() + `" | sh -`
	if cluster.ControlPlane != clusterv1.Upstream {
		// A vCluster serves its own script, under a certificate that no machine knows yet.
		command = `curl -fsSLk "` + endpoint + `/node/join?token=` + value.Reveal() + `" | sh -`
	}
	return tokenv1.CreateResponse{Token: record.Public(now), JoinCommand: command}, nil
}

// issue draws again when an id is taken, which happens once in two thousand million times per token that exists.
func (s *Service) issue(ctx context.Context, cluster clusterv1.Cluster, expires time.Time) (Value, string, error) {
	for attempt := 1; ; attempt++ {
		value, err := newValue(s.Random)
		if err != nil {
			return Value{}, "", err
		}
		endpoint, err := s.Tenants.Issue(ctx, cluster, value, expires)
		if err == nil {
			return value, endpoint, nil
		}
		if attempt == 3 || !fault.Is(err, fault.Conflict) {
			return Value{}, "", err
		}
	}
}

// undo outlives the request's context: the caller may have gone, and the Secret must go too.
func (s *Service) undo(ctx context.Context, cluster clusterv1.Cluster, tokenID string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.Tenants.Withdraw(ctx, cluster, tokenID); err != nil {
		s.Log.WarnContext(ctx, "a bootstrap token without a record could not be removed; it ends by itself",
			"cluster_id", cluster.ID, "token_id", tokenID, "error", err)
	}
}

// List gives a cluster's tokens, newest first.
func (s *Service) List(ctx context.Context, req tokenv1.ListRequest) (tokenv1.ListResponse, error) {
	cluster, err := s.Clusters.For(ctx, req.ClusterID, clusterv1.Viewer)
	if err != nil {
		return tokenv1.ListResponse{}, err
	}
	records, err := s.Store.ByCluster(ctx, cluster.ID)
	if err != nil {
		return tokenv1.ListResponse{}, err
	}
	now, out := s.Now(), tokenv1.ListResponse{Tokens: make([]tokenv1.Token, 0, len(records))}
	for _, r := range records {
		out.Tokens = append(out.Tokens, r.Public(now))
	}
	return out, nil
}

// Revoke ends a token. The record is marked first, so our join script is refused from then on whatever follows; where
// the tenant cannot be reached the fault says so and the call can be repeated until the Secret is gone as well.
func (s *Service) Revoke(ctx context.Context, req tokenv1.RevokeRequest) (tokenv1.Token, error) {
	cluster, err := s.Clusters.For(ctx, req.ClusterID, clusterv1.Editor)
	if err != nil {
		return tokenv1.Token{}, err
	}
	now := s.Now().UTC().Truncate(time.Second)
	record, err := s.Store.Revoke(ctx, cluster.ID, req.ID, now)
	if err != nil {
		return tokenv1.Token{}, err
	}
	// An expired Secret is refused by the tenant itself.
	if now.Before(record.ExpiresAt) {
		if err := s.Tenants.Withdraw(ctx, cluster, record.TokenID); err != nil {
			f := fault.From(err)
			return tokenv1.Token{}, fault.New(f.Kind, f.Code,
				"the token is marked as revoked and its join script is refused, but it could not be removed from the cluster: %s", f.Message).
				Do("revoke it again once the cluster answers; without that it ends at %s", record.ExpiresAt.UTC().Format(time.RFC3339)).
				Because(err)
		}
	}
	s.Log.InfoContext(ctx, "bootstrap token revoked", "cluster_id", cluster.ID, "token_id", record.TokenID)
	return record.Public(now), nil
}

// Forget removes what is known of the tokens of a cluster that goes: from then on their join scripts are refused. What stands in the
// tenant goes with it. A token that is being made at this moment may be recorded after it: whoever removes the cluster asks
// again at the end.
func (s *Service) Forget(ctx context.Context, req tokenv1.ForgetRequest) (tokenv1.ForgetResponse, error) {
	switch cluster, err := s.Clusters.Any(ctx, req.ClusterID); {
	case fault.Is(err, fault.NotFound):
	case err != nil:
		return tokenv1.ForgetResponse{}, err
	case cluster.Status != clusterv1.Deleting:
		return tokenv1.ForgetResponse{}, fault.New(fault.Precondition, "cluster_not_deleting", "the cluster %q is not being deleted, it is %s", cluster.Name, cluster.Status)
	}
	n, err := s.Store.Forget(ctx, req.ClusterID)
	if err == nil && n > 0 {
		s.Log.InfoContext(ctx, "bootstrap tokens of a removed cluster forgotten", "cluster_id", req.ClusterID, "tokens", n)
	}
	return tokenv1.ForgetResponse{Forgotten: n}, err
}

// JoinScript gives a machine the script that joins it to its token's cluster. The token alone admits it.
func (s *Service) JoinScript(ctx context.Context, req tokenv1.JoinScriptRequest) (tokenv1.JoinScriptResponse, error) {
	value, err := Parse(req.Token)
	if err != nil {
		return tokenv1.JoinScriptResponse{}, err
	}
	records, err := s.Store.ByTokenID(ctx, value.ID())
	if err != nil {
		return tokenv1.JoinScriptResponse{}, err
	}
	now := s.Now()
	record, err := admit(records, value, now)
	if err != nil {
		return tokenv1.JoinScriptResponse{}, err
	}
	cluster, err := s.Clusters.Any(ctx, record.ClusterID)
	switch {
	case fault.Is(err, fault.NotFound):
		return tokenv1.JoinScriptResponse{}, fault.New(fault.NotFound, "cluster_gone", "the cluster of this join token no longer exists").
			Do("create a join token for a cluster that does").Because(err)
	case err != nil:
		return tokenv1.JoinScriptResponse{}, err
	}
	if err := mustBeReady(cluster); err != nil {
		return tokenv1.JoinScriptResponse{}, err
	}
	if cluster.ControlPlane != clusterv1.Upstream {
		return tokenv1.JoinScriptResponse{}, fault.New(fault.Invalid, "join_script_elsewhere", "the cluster of this join token serves its own join script").
			Do("use the join command as it was given, with the address of the cluster: %s", cluster.APIEndpoint)
	}
	base, err := baseURL(req.JoinBaseURL)
	if err != nil {
		return tokenv1.JoinScriptResponse{}, err
	}
	facts, err := s.Tenants.Facts(ctx, cluster)
	if err != nil {
		return tokenv1.JoinScriptResponse{}, err
	}
	script, err := s.Render(Script{
		ClusterID: cluster.ID, ClusterName: cluster.Name, APIServer: facts.Endpoint, CAPEM: string(facts.CAPEM), Token: value,
		KubernetesVersion: facts.KubernetesVersion, ClusterDNS: facts.DNS, MirrorURL: base + "/node/mirror", Mirror: req.Mirror,
	})
	if err != nil {
		return tokenv1.JoinScriptResponse{}, noScript(cluster, err)
	}
	// When it was last used is a help to its owner; a machine is not held back for it.
	if err := s.Store.Used(ctx, record.ID, now.UTC().Truncate(time.Second)); err != nil {
		s.Log.WarnContext(ctx, "a token's last use could not be recorded", "id", record.ID, "error", err)
	}
	s.Log.InfoContext(ctx, "join script served", "cluster_id", cluster.ID, "token_id", value.ID())
	return tokenv1.JoinScriptResponse{Script: script}, nil
}

func mustBeReady(c clusterv1.Cluster) error {
	if c.Status == clusterv1.Ready {
		return mustBeReached(c)
	}
	f := fault.New(fault.Precondition, "cluster_not_ready", "the cluster %q is not ready, it is %s", c.Name, c.Status)
	switch {
	case c.Reason != nil && c.Reason.Action != "":
		return f.Do("%s", c.Reason.Action)
	case c.Status == clusterv1.Provisioning:
		return f.Do("wait until its status is ready, then try again")
	default:
		return f.Do("look at the cluster's events for what to do")
	}
}

// mustBeReached: no machine can join a cluster whose domain does not lead to it yet.
func mustBeReached(c clusterv1.Cluster) error {
	if c.PublicAccessMode != clusterv1.LoadBalancer || c.Edge != nil && c.Edge.State == clusterv1.EdgeServing {
		return nil
	}
	why, action := "", "wait until the cluster's edge is serving, then try again"
	if c.Edge != nil && c.Edge.Reason != nil {
		why = ": " + c.Edge.Reason.Message
		if c.Edge.Reason.Action != "" {
			action = c.Edge.Reason.Action
		}
	}
	return fault.New(fault.Precondition, "edge_not_serving", "the cluster %q is ready, but not reached at %s%s", c.Name, c.ControlPlaneHost, why).Do("%s", action)
}

// noScript says that what the tenant or the settings gave cannot go into a script. The machine did nothing wrong, so it is
// not the renderer's invalid.
func noScript(c clusterv1.Cluster, err error) error {
	f := fault.From(err)
	return fault.New(fault.Unavailable, "join_script_unavailable", "the join script of cluster %q cannot be made: %s", c.Name, f.Message).
		Do("the operator corrects this part of the cluster's set-up").Because(err)
}
