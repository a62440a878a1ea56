// Package cluster is what a tenant's control plane is and how it lives: what may be asked for, who may ask, and the
// steps from provisioning to ready, error or gone. It must never import NATS, SQL, Helm or Kubernetes: it says what it
// needs of them in small interfaces.
package cluster

import (
	"context"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Cluster is what users see and what the service keeps beside it.
type Cluster struct {
	clusterv1.Cluster

	// Generation counts what was asked for: creation is 1, each change that needs work adds one.
	Generation int64
	// Attempts counts how often the work on this generation was begun. More than one means that a process stopped
	// in the middle.
	Attempts int
	// Membership is what the members say of the account that a method was called for; empty: nothing. A creator has none.
	Membership clusterv1.Access
	// FormerHosts are the control_plane_hosts before this one, the newest first, at most MaxFormerHosts: machines may have
	// joined by any of them.
	FormerHosts []string
}

// MaxFormerHosts is how many former hosts of a cluster are remembered.
const MaxFormerHosts = 8

// ServerNames are the hosts that the API server's certificate must be good for: the one that it has, then the former ones. A
// machine that joined by one of those goes on talking to it.
func (c Cluster) ServerNames() []string {
	return append([]string{c.ControlPlaneHost}, c.FormerHosts...)
}

// Busy reports whether there is work left to do.
func (c Cluster) Busy() bool {
	return c.Status == clusterv1.Provisioning || c.Status == clusterv1.Deleting
}

// Event codes. They are stable: users' tools match them.
const (
	EventCreated           = "created"
	EventUpdated           = "updated"
	EventRenamed           = "renamed"
	EventProtected         = "protected"
	EventUnprotected       = "unprotected"
	EventRetryRequested    = "retry_requested"
	EventResumed           = "resumed"
	EventNamespaceReady    = "namespace_ready"
	EventSecretCopied      = "platform_secret_copied"
	EventChartApplied      = "chart_applied"
	EventRecovered         = "release_recovered"
	EventWaiting           = "waiting"
	EventReady             = "ready"
	EventFailed            = "failed"
	EventRetrying          = "retrying"
	EventDeleteRequested   = "delete_requested"
	EventWorkersLeft       = "workers_left"
	EventWorkersUnknown    = "workers_unknown"
	EventReleaseRemoved    = "release_removed"
	EventDeleteWaiting     = "delete_waiting"
	EventMemberAdded       = "member_added"
	EventMemberChanged     = "member_changed"
	EventMemberRemoved     = "member_removed"
	EventKubeconfigCreated = "kubeconfig_created"
	EventKubeconfigRevoked = "kubeconfig_revoked"
	EventEdgeServing       = "edge_serving"
	EventEdgePending       = "edge_pending"
	EventEdgeSkipped       = "edge_skipped"
	EventEdgeFailed        = "edge_failed"
	EventRouteRemoved      = "route_removed"
)

// TryAgain is what to do once somebody has mended what a cluster's error tells.
const TryAgain = "then try again with POST …/retry"

// Change is an update that was checked.
type Change struct {
	Name             *string
	ControlPlaneHost *string
	PublicAccessMode *clusterv1.AccessMode
	// DeletionProtection is set or taken away.
	DeletionProtection *bool
	// Work says that the host cluster has to be changed too: the row goes back to provisioning.
	Work bool
	// Reason is why it is provisioning, until the work has more to tell.
	Reason *clusterv1.Reason
}

// Store keeps clusters. Every method that starts work also enqueues it, in the same transaction.
type Store interface {
	// Create stores c. The errors are conflicts with the codes cluster_name_taken, namespace_in_use or
	// control_plane_host_taken.
	Create(ctx context.Context, c Cluster, e clusterv1.Event) (Cluster, error)
	// List gives the clusters that userID created or is a member of, every one where all is set, newest first. Where only is
	// not empty, those alone.
	List(ctx context.Context, userID string, all bool, only []string) ([]Cluster, error)
	// Find gives the cluster with userID's membership, and its removal, which List leaves out. It fails with cluster_not_found.
	Find(ctx context.Context, id, userID string) (Cluster, error)
	// Update applies a change to a cluster. decide sees the row and userID's membership as they are under the row's lock,
	// which everything that changes either takes, and gives the change. A host that gives way to another one is remembered, and
	// what the edge said of the cluster is forgotten with a change of the host or the mode.
	Update(ctx context.Context, id, userID string, decide func(Cluster) (Change, clusterv1.Event, error)) (Cluster, error)
	// Delete marks the cluster as deleting and stores r; one that is already so is left as it is. allow is asked under the row's lock.
	Delete(ctx context.Context, id, userID string, r clusterv1.Removal, allow func(Cluster) error, events ...clusterv1.Event) (Cluster, error)
	// Members gives the members, the oldest first; the creator is not one.
	Members(ctx context.Context, id string) ([]clusterv1.Member, error)
	// SetMember stores m, for m.AddedBy. decide sees the row under its lock and what m's account may do before, and is asked
	// whatever that is. Where nothing changes the entry that is there is given. It fails with too_many_members. The account's kubeconfigs
	// that say more than m are revoked with it.
	SetMember(ctx context.Context, id string, m clusterv1.Member, decide func(c Cluster, before clusterv1.Access) (clusterv1.Event, error)) (clusterv1.Member, error)
	// RemoveMember removes member, for userID, where decide lets it under the row's lock, and revokes its kubeconfigs of the cluster. It fails
	// with member_not_found.
	RemoveMember(ctx context.Context, id, userID, member string, decide func(Cluster) (clusterv1.Event, error)) error
	// Events gives the newest 500, oldest first.
	Events(ctx context.Context, id string) ([]clusterv1.Event, error)
}

// HostCluster answers what has to be known before a cluster is accepted.
type HostCluster interface {
	// DefaultAddress is a Ready host node's address. It fails with unavailable where the host cluster or such a node
	// cannot be found.
	DefaultAddress(ctx context.Context) (string, error)
	// NamespaceFree fails with the conflict namespace_in_use where the namespace exists.
	NamespaceFree(ctx context.Context, namespace string) error
}

// Tenants asks a tenant that was ready once.
type Tenants interface {
	// Kubeconfig gives its administrator's credential.
	Kubeconfig(ctx context.Context, c Cluster) (string, error)
	// Workers gives at most clusterv1.MaxWorkers machines that have joined.
	Workers(ctx context.Context, c Cluster) ([]clusterv1.Worker, error)
}

// NotFound is the one answer for a cluster that is absent and for one that the principal may not see.
func NotFound() error {
	return fault.New(fault.NotFound, "cluster_not_found", "there is no such cluster")
}

// NamespaceInUse is the conflict of a namespace that holds something else. owner says what, where it may be shown.
func NamespaceInUse(owner string) *fault.Error {
	text := "the namespace is in use by something else"
	if owner != "" {
		text += ": " + owner
	}
	return fault.New(fault.Conflict, "namespace_in_use", "%s", text).In("namespace").Do("choose another namespace")
}
