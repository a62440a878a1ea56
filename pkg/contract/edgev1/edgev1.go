// Package edgev1 is the edge service's contract. It must hold no behaviour.
package edgev1

import (
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

// Queue is the queue group that the service's replicas share.
const Queue = "edge"

// PingMethod answers whether the service lives.
var PingMethod = contract.Method[contract.Ping, contract.Pong]{Subject: "kubebyon.v1.edge.ping", Timeout: time.Second, Idempotent: true}

// Status tells an operator how the edge does. The replica that writes the routes answers.
var Status = contract.Method[StatusRequest, StatusResponse]{Subject: "kubebyon.v1.edge.status", Timeout: 5 * time.Second, Idempotent: true}

// MaxRoutes is how many routes one answer holds at most.
const MaxRoutes = 500

// StatusRequest asks for the routes whose domain comes after After, in that order.
type StatusRequest struct {
	After string `json:"after,omitempty"`
}

// StatusResponse is the edge as a whole and one page of its routes.
type StatusResponse struct {
	Provider   string            `json:"provider"` // haproxy
	BindAddr   string            `json:"bind_addr"`
	DataPlane  DataPlane         `json:"data_plane"`
	LastSync   *time.Time        `json:"last_sync,omitempty"` // when HAProxy was last found to hold, or given, the routes
	LastReload *Reload           `json:"last_reload,omitempty"`
	Workers    []Worker          `json:"workers"` // HAProxy's processes; empty while there is no route
	Count      Count             `json:"count"`
	Routes     []Route           `json:"routes"`
	More       bool              `json:"more,omitempty"`
	Problem    *clusterv1.Reason `json:"problem,omitempty"` // what keeps the whole edge from working
}

// DataPlane is what writes HAProxy's configuration.
type DataPlane struct {
	Kind    string `json:"kind"`              // embedded or remote
	API     string `json:"api,omitempty"`     // v2 or v3; empty until it answered
	HAProxy string `json:"haproxy,omitempty"` // HAProxy's version
	Mode    string `json:"mode"`              // rules, or map above the configured number of routes
}

// Reload is one reload of HAProxy.
type Reload struct {
	At      time.Time `json:"at"`
	OK      bool      `json:"ok"`
	Message string    `json:"message,omitempty"` // HAProxy's own words, where it failed
}

// Worker is one process of HAProxy. An old one serves the connections that it had before a reload.
type Worker struct {
	PID           int64 `json:"pid"`
	Old           bool  `json:"old"`
	UptimeSeconds int64 `json:"uptime_seconds"`
}

// Count is over all routes.
type Count struct {
	Routes   int   `json:"routes"`
	Serving  int   `json:"serving"`
	Pending  int   `json:"pending"`
	Skipped  int   `json:"skipped"`
	Failed   int   `json:"failed"`
	Sessions int64 `json:"sessions"` // connections now
}

// Route is one domain. Its numbers count since HAProxy's last reload.
type Route struct {
	ClusterID     string              `json:"cluster_id,omitempty"` // empty: the console
	Domain        string              `json:"domain"`
	State         clusterv1.EdgeState `json:"state"`
	Reason        *clusterv1.Reason   `json:"reason,omitempty"`
	Since         time.Time           `json:"since"`
	Servers       []Server            `json:"servers"`
	Sessions      int64               `json:"sessions"`
	SessionsTotal int64               `json:"sessions_total"`
	BytesIn       int64               `json:"bytes_in"`
	BytesOut      int64               `json:"bytes_out"`
	Errors        int64               `json:"errors"` // connections and responses that failed, and requests that were refused
}

// Server is a host node's address with the node port.
type Server struct {
	Address string `json:"address"`
	Up      bool   `json:"up"` // by HAProxy's own check
}
