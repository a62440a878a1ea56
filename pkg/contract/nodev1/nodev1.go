// Package nodev1 is the node service's contract. It must hold no behaviour.
package nodev1

import (
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
)

// Queue is the queue group that the service's replicas share.
const Queue = "node"

// The methods. Every one but Ping needs a principal.
var (
	PingMethod = contract.Method[contract.Ping, contract.Pong]{Subject: "kubebyon.v1.node.ping", Timeout: time.Second, Idempotent: true}
	List       = contract.Method[ListRequest, ListResponse]{Subject: "kubebyon.v1.node.list", Timeout: 10 * time.Second, Idempotent: true}
)

// Status of a node: its Ready condition.
type Status string

// The statuses.
const (
	Ready    Status = "ready"
	NotReady Status = "not_ready"
)

// ListRequest asks for a cluster's nodes, live. Limit 0 means all that fit; Continue is a previous answer's.
type ListRequest struct {
	ClusterID string `json:"cluster_id"`
	Limit     int64  `json:"limit,omitempty"`
	Continue  string `json:"continue,omitempty"`
}

// ListResponse is ordered by name. Continue is set when there are more. No list in it is null: the gateway passes it on
// as it is.
type ListResponse struct {
	Continue string `json:"continue,omitempty"` // comes first: who passes the list on knows by it whether this is all
	Nodes    []Node `json:"nodes"`
}

// Node is a machine of a tenant.
type Node struct {
	Name             string      `json:"name"`
	Status           Status      `json:"status"`
	Reason           string      `json:"reason,omitempty"` // of the Ready condition, where it is not true
	Message          string      `json:"message,omitempty"`
	Schedulable      bool        `json:"schedulable"`
	Roles            []string    `json:"roles"`
	InternalIP       string      `json:"internal_ip,omitempty"`
	ExternalIP       string      `json:"external_ip,omitempty"`
	KubeletVersion   string      `json:"kubelet_version"`
	OSImage          string      `json:"os_image"`
	KernelVersion    string      `json:"kernel_version"`
	Architecture     string      `json:"architecture"`
	ContainerRuntime string      `json:"container_runtime"`
	Capacity         Capacity    `json:"capacity"`
	Taints           []Taint     `json:"taints"`
	Conditions       []Condition `json:"conditions"` // all but Ready where they are a problem
	CreatedAt        time.Time   `json:"created_at"`
	AgeSeconds       int64       `json:"age_seconds"`
}

// Capacity as the node reports it, in Kubernetes quantities.
type Capacity struct {
	CPU              string `json:"cpu"`
	Memory           string `json:"memory"`
	Pods             string `json:"pods"`
	EphemeralStorage string `json:"ephemeral_storage,omitempty"`
}

// Taint as Kubernetes has it.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// Condition is a node condition that stands out.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
}
