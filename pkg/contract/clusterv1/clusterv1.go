// Package clusterv1 is the cluster service's contract. It must hold no behaviour.
package clusterv1

import (
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
)

// Queue is the queue group that the service's replicas share.
const Queue = "cluster"

// The methods. Every one but Ping needs a principal; a cluster that it may not see is not_found.
var (
	PingMethod = contract.Method[contract.Ping, contract.Pong]{Subject: "kubebyon.v1.cluster.ping", Timeout: time.Second, Idempotent: true}
	Create     = contract.Method[CreateRequest, Cluster]{Subject: "kubebyon.v1.cluster.create", Timeout: 5 * time.Second}
	List       = contract.Method[ListRequest, ListResponse]{Subject: "kubebyon.v1.cluster.list", Timeout: 5 * time.Second, Idempotent: true}
	Get        = contract.Method[GetRequest, Cluster]{Subject: "kubebyon.v1.cluster.get", Timeout: 5 * time.Second, Idempotent: true}
	Update     = contract.Method[UpdateRequest, Cluster]{Subject: "kubebyon.v1.cluster.update", Timeout: 5 * time.Second}
	Delete     = contract.Method[DeleteRequest, Cluster]{Subject: "kubebyon.v1.cluster.delete", Timeout: 5 * time.Second}
	Events     = contract.Method[EventsRequest, EventsResponse]{Subject: "kubebyon.v1.cluster.events", Timeout: 5 * time.Second, Idempotent: true}
	Kubeconfig = contract.Method[KubeconfigRequest, KubeconfigResponse]{Subject: "kubebyon.v1.cluster.kubeconfig", Timeout: 10 * time.Second, Idempotent: true}

	Retry   = contract.Method[RetryRequest, Cluster]{Subject: "kubebyon.v1.cluster.retry", Timeout: 5 * time.Second}
	Kubectl = contract.Method[KubectlRequest, KubectlResponse]{Subject: "kubebyon.v1.cluster.kubectl", Timeout: 22 * time.Second, Idempotent: true}

	CreateKubeconfig    = contract.Method[CreateKubeconfigRequest, CreateKubeconfigResponse]{Subject: "kubebyon.v1.cluster.create_kubeconfig", Timeout: 10 * time.Second}
	Kubeconfigs         = contract.Method[KubeconfigsRequest, KubeconfigsResponse]{Subject: "kubebyon.v1.cluster.kubeconfigs", Timeout: 5 * time.Second, Idempotent: true}
	RevokeKubeconfig    = contract.Method[RevokeKubeconfigRequest, PersonalKubeconfig]{Subject: "kubebyon.v1.cluster.revoke_kubeconfig", Timeout: 10 * time.Second, Idempotent: true}
	RevokeKubeconfigsOf = contract.Method[RevokeKubeconfigsOfRequest, RevokeKubeconfigsOfResponse]{Subject: "kubebyon.v1.cluster.revoke_kubeconfigs_of", Timeout: 5 * time.Second, Idempotent: true}

	Members      = contract.Method[MembersRequest, MembersResponse]{Subject: "kubebyon.v1.cluster.members", Timeout: 5 * time.Second, Idempotent: true}
	SetMember    = contract.Method[SetMemberRequest, Member]{Subject: "kubebyon.v1.cluster.set_member", Timeout: 5 * time.Second}
	RemoveMember = contract.Method[RemoveMemberRequest, RemoveMemberResponse]{Subject: "kubebyon.v1.cluster.remove_member", Timeout: 5 * time.Second}
)

// What the edge service asks and says as itself; no principal is needed.
var (
	Published  = contract.Method[PublishedRequest, PublishedResponse]{Subject: "kubebyon.v1.cluster.published", Timeout: 5 * time.Second, Idempotent: true}
	ReportEdge = contract.Method[ReportEdgeRequest, ReportEdgeResponse]{Subject: "kubebyon.v1.cluster.report_edge", Timeout: 5 * time.Second, Idempotent: true}
)

// Changed tells that a cluster was created, changed, became ready or failed, or is gone.
var Changed = contract.Event[ChangedEvent]{Subject: "kubebyon.v1.cluster.changed"}

// ControlPlane says which software runs a tenant's control plane.
type ControlPlane string

// The control planes.
const (
	VCluster ControlPlane = "vcluster" // the vendor's chart with private nodes
	Upstream ControlPlane = "upstream" // our chart of unmodified Kubernetes images
)

// AccessMode says how a tenant's API is reached from outside.
type AccessMode string

// The access modes.
const (
	NodePort     AccessMode = "nodeport"     // https://<control_plane_host>:<node port>
	LoadBalancer AccessMode = "loadbalancer" // https://<control_plane_host>:443 through the edge
)

// Status is where a cluster is in its life.
type Status string

// The statuses. Ready means that a node could join now.
const (
	Provisioning Status = "provisioning"
	Ready        Status = "ready"
	Failed       Status = "error"
	Deleting     Status = "deleting"
)

// Access is what a principal may do with one cluster. Each includes what stands before it.
type Access string

// The accesses. Whoever created a cluster is an owner of it for good; an administrator has Owner everywhere.
const (
	Viewer Access = "viewer" // see the cluster, its events, nodes and tokens
	Editor Access = "editor" // change it, make and revoke join tokens
	Owner  Access = "owner"  // delete it, download the administrator's kubeconfig, choose its members
)

// Cluster is a tenant's control plane as its users see it. It holds no credential.
type Cluster struct {
	ID                string       `json:"id"` // cl_ + 20 of [a-z0-9]
	Name              string       `json:"name"`
	VClusterName      string       `json:"vcluster_name"`    // the Helm release, a DNS-1123 label
	Namespace         string       `json:"namespace"`        // on the host cluster
	OwnerID           string       `json:"owner_id"`         // who created it
	Access            Access       `json:"access,omitempty"` // the asking principal's
	ControlPlane      ControlPlane `json:"control_plane"`
	ControlPlaneHost  string       `json:"control_plane_host"` // an IP or a DNS name, without port
	PublicAccessMode  AccessMode   `json:"public_access_mode"`
	APIEndpoint       string       `json:"api_endpoint,omitempty"` // https://host:port, once known
	KubernetesVersion string       `json:"kubernetes_version,omitempty"`
	Status            Status       `json:"status"`
	Reason            *Reason      `json:"reason,omitempty"`  // why it is not ready, or what it waits for
	Edge              *Edge        `json:"edge,omitempty"`    // of public_access_mode loadbalancer alone
	Removal           *Removal     `json:"removal,omitempty"` // of status deleting alone, and not in a list
	// DeletionProtection refuses Delete until it is taken away.
	DeletionProtection bool      `json:"deletion_protection"`
	CreatedAt          time.Time `json:"created_at"`
	UpdatedAt          time.Time `json:"updated_at"`
}

// EdgeState says whether the domain of a cluster leads to its API through the edge.
type EdgeState string

// The states.
const (
	EdgeServing EdgeState = "serving" // a TLS handshake with the domain reached the cluster's API
	EdgePending EdgeState = "pending" // it is on its way, or waits for the cluster
	EdgeSkipped EdgeState = "skipped" // no route can be made of what the cluster has; its owner has to change that
	EdgeFailed  EdgeState = "failed"  // the route does not work
)

// RouteRemoved is the code of an edge that is skipped since its cluster is being deleted: no route leads there any more.
const RouteRemoved = "route_removed"

// Edge is what the edge found out about a cluster's domain last. Reason is nil where it is serving.
type Edge struct {
	State  EdgeState `json:"state"`
	Reason *Reason   `json:"reason,omitempty"`
	Since  time.Time `json:"since"` // when it became so
}

// Reason explains a status and says what to do.
type Reason struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Action  string `json:"action,omitempty"`
}

// Removal is how far a removal has come.
type Removal struct {
	Deadline  time.Time   `json:"deadline"`          // after it the cluster's reason says that it takes too long; the removal goes on
	Remaining []Remaining `json:"remaining"`         // at most MaxRemaining, in the order in which they have to go; empty: not looked yet
	Workers   []Worker    `json:"workers,omitempty"` // at most MaxWorkers machines that had joined; each has to be cleaned up by whom it belongs to
}

// MaxWorkers bounds what a Removal lists.
const MaxWorkers = 200

// MaxRemaining bounds what a Removal lists.
const MaxRemaining = 50

// Remaining is one thing that a removal waits for.
type Remaining struct {
	Kind string `json:"kind"` // Release, Pod, PersistentVolumeClaim, Secret, Route, JoinToken, Namespace, …
	Name string `json:"name"`
	Why  string `json:"why,omitempty"` // what holds it, such as a finalizer
}

// Worker is a machine that had joined a cluster that is being removed.
type Worker struct {
	Name       string `json:"name"`                  // of its Node
	InternalIP string `json:"internal_ip,omitempty"` // as it said itself
}

// CreateRequest asks for a new control plane. Name is required; the rest has defaults.
type CreateRequest struct {
	Name             string       `json:"name"`
	VClusterName     string       `json:"vcluster_name,omitempty"`
	Namespace        string       `json:"namespace,omitempty"`
	ControlPlane     ControlPlane `json:"control_plane,omitempty"`
	ControlPlaneHost string       `json:"control_plane_host,omitempty"`
	PublicAccessMode AccessMode   `json:"public_access_mode,omitempty"`

	DeletionProtection bool `json:"deletion_protection,omitempty"`
}

// ListRequest asks for every cluster that the principal may see.
type ListRequest struct{}

// ListResponse is ordered by creation, newest first. Its list is not null: the gateway passes it on as it is.
type ListResponse struct {
	Clusters []Cluster `json:"clusters"`
}

// GetRequest names one cluster. Other services ask with it whether a principal may do what needs an access: one that the
// principal sees but may not do that with is forbidden (cluster_access_insufficient).
type GetRequest struct {
	ID   string `json:"id"`
	Need Access `json:"need,omitempty"` // empty: Viewer
}

// UpdateRequest changes what is not nil.
type UpdateRequest struct {
	ID               string      `json:"id"`
	Name             *string     `json:"name,omitempty"`
	ControlPlaneHost *string     `json:"control_plane_host,omitempty"`
	PublicAccessMode *AccessMode `json:"public_access_mode,omitempty"`
	// DeletionProtection: an editor may set it; to take it away needs Owner.
	DeletionProtection *bool `json:"deletion_protection,omitempty"`
}

// RetryRequest begins the work on a cluster in error again. One in another status is a conflict (cluster_not_failed).
type RetryRequest struct {
	ID string `json:"id"`
}

// DeleteRequest starts the removal; the answer has the status deleting.
type DeleteRequest struct {
	ID string `json:"id"`
}

// EventsRequest asks for a cluster's timeline.
type EventsRequest struct {
	ID string `json:"id"`
}

// EventsResponse is ordered oldest first and holds the newest 500.
type EventsResponse struct {
	Events []Event `json:"events"`
}

// Level grades an event.
type Level string

// The levels.
const (
	Info    Level = "info"
	Warning Level = "warning"
	Error   Level = "error"
)

// Event is one thing that happened to a cluster.
type Event struct {
	At      time.Time `json:"at"`
	Level   Level     `json:"level"`
	Code    string    `json:"code"` // stable, snake_case
	Message string    `json:"message"`
	Action  string    `json:"action,omitempty"`
}

// MaxKubectlOutput bounds both outputs of a KubectlResponse together, in bytes of their JSON.
const MaxKubectlOutput = 768 << 10

// KubectlRequest runs kubectl with Args, which stand after the word kubectl, and with an identity that only reads and never sees
// what Secrets hold. What is not allowed by name is refused (invalid, kubectl_refused).
type KubectlRequest struct {
	ID   string   `json:"id"`
	Args []string `json:"args"`
}

// KubectlResponse is what kubectl said. Control characters but for line feeds and tabs are shown, as ^[ for an escape; what is
// no UTF-8 is U+FFFD.
type KubectlResponse struct {
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	ExitCode   int    `json:"exit_code"` // 124: it was ended at its time limit, as stderr says
	Truncated  bool   `json:"truncated"` // there was more than MaxKubectlOutput
	DurationMS int64  `json:"duration_ms"`
}

// The lifetimes of a PersonalKubeconfig. Kubernetes gives no token that ends sooner than the shortest.
const (
	MinKubeconfigTTL     = 10 * time.Minute
	DefaultKubeconfigTTL = 8 * time.Hour
	MaxKubeconfigTTL     = 24 * time.Hour
)

// KubeconfigState is where a personal kubeconfig is in its life.
type KubeconfigState string

// The states.
const (
	KubeconfigActive   KubeconfigState = "active"
	KubeconfigExpired  KubeconfigState = "expired"
	KubeconfigRevoking KubeconfigState = "revoking" // asked for, but the tenant's API does not answer; it is tried until it does
	KubeconfigRevoked  KubeconfigState = "revoked"
)

// PersonalKubeconfig is one that was made for an account. It holds no credential.
type PersonalKubeconfig struct {
	ID        string          `json:"id"` // kc_ + 20 of [a-z0-9]
	ClusterID string          `json:"cluster_id"`
	UserID    string          `json:"user_id"`
	Identity  string          `json:"identity"` // the user's name in the tenant, as its audit log shows it
	Access    Access          `json:"access"`
	State     KubeconfigState `json:"state"`
	CreatedAt time.Time       `json:"created_at"`
	ExpiresAt time.Time       `json:"expires_at"`
	RevokedAt *time.Time      `json:"revoked_at,omitempty"`
	RevokedBy string          `json:"revoked_by,omitempty"` // a user id; empty: by us, since its owner lost the access
}

// CreateKubeconfigRequest asks for a kubeconfig of the principal's own. Access is at most what the principal has.
type CreateKubeconfigRequest struct {
	ID         string `json:"id"`
	UserName   string `json:"user_name"`             // what the identity in the tenant is named after: the account's address, from the gateway
	Access     Access `json:"access,omitempty"`      // empty: what the principal has, but Editor at most
	TTLSeconds *int64 `json:"ttl_seconds,omitempty"` // nil: DefaultKubeconfigTTL
}

// CreateKubeconfigResponse holds a credential: never log it.
type CreateKubeconfigResponse struct {
	PersonalKubeconfig
	Kubeconfig string `json:"kubeconfig"` // YAML
	FileName   string `json:"file_name"`
}

// KubeconfigsRequest asks for a cluster's personal kubeconfigs: an owner sees all, others their own.
type KubeconfigsRequest struct {
	ID string `json:"id"`
}

// KubeconfigsResponse holds the newest 200, newest first.
type KubeconfigsResponse struct {
	Kubeconfigs []PersonalKubeconfig `json:"kubeconfigs"`
}

// RevokeKubeconfigRequest ends one. An owner may end any, others their own. One that has ended already is left as it is.
type RevokeKubeconfigRequest struct {
	ID           string `json:"id"`
	KubeconfigID string `json:"kubeconfig_id"`
}

// RevokeKubeconfigsOfRequest ends those of an account in every cluster, for an administrator: the account was disabled or is gone.
type RevokeKubeconfigsOfRequest struct {
	UserID string `json:"user_id"`
}

// RevokeKubeconfigsOfResponse counts those that were active.
type RevokeKubeconfigsOfResponse struct {
	Revoked int `json:"revoked"`
}

// KubeconfigRequest asks for the administrator's kubeconfig, for an owner; the cluster must be ready.
type KubeconfigRequest struct {
	ID string `json:"id"`
}

// KubeconfigResponse holds a credential: never log it.
type KubeconfigResponse struct {
	Kubeconfig string `json:"kubeconfig"` // YAML
	FileName   string `json:"file_name"`
}

// Member is an account that may use a cluster.
type Member struct {
	UserID  string    `json:"user_id"`
	Access  Access    `json:"access"`
	AddedBy string    `json:"added_by,omitempty"` // empty: it created the cluster
	AddedAt time.Time `json:"added_at"`
}

// MembersRequest asks who may use a cluster.
type MembersRequest struct {
	ID string `json:"id"`
}

// MembersResponse begins with the one who created the cluster; the rest is ordered by time.
type MembersResponse struct {
	Members []Member `json:"members"`
}

// SetMemberRequest adds a member or changes what it may do. The user id is one that the gateway has looked up.
type SetMemberRequest struct {
	ID     string `json:"id"`
	UserID string `json:"user_id"`
	Access Access `json:"access"`
}

// RemoveMemberRequest takes a member's access away. Members may remove themselves; whoever created the cluster stays.
type RemoveMemberRequest struct {
	ID     string `json:"id"`
	UserID string `json:"user_id"`
}

// RemoveMemberResponse says nothing: the member is gone.
type RemoveMemberResponse struct{}

// ChangedEvent names the cluster.
type ChangedEvent struct {
	ID string `json:"id"`
}

// MaxPublished is how many clusters one answer to Published holds at most.
const MaxPublished = 1000

// PublishedRequest asks for the clusters of public_access_mode loadbalancer whose id comes after After, in that order.
type PublishedRequest struct {
	After string `json:"after,omitempty"`
}

// PublishedResponse is one page; More says that another one follows.
type PublishedResponse struct {
	Clusters []PublishedCluster `json:"clusters"`
	More     bool               `json:"more,omitempty"`
}

// PublishedCluster is what a route is made of. A cluster that is being deleted is listed until it is gone.
type PublishedCluster struct {
	ID           string `json:"id"`
	Host         string `json:"host"` // control_plane_host as it is stored: an old one may be no domain
	VClusterName string `json:"vcluster_name"`
	Namespace    string `json:"namespace"`
	Status       Status `json:"status"`
}

// ReportEdgeRequest holds at most MaxPublished reports.
type ReportEdgeRequest struct {
	Reports []EdgeReport `json:"reports"`
}

// EdgeReport is what was found out about one cluster. It counts where the cluster is still published under Host.
type EdgeReport struct {
	ID   string `json:"id"`
	Host string `json:"host"`
	Edge
}

// ReportEdgeResponse says nothing: what still counts is stored.
type ReportEdgeResponse struct{}
