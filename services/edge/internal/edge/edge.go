// Package edge is which domain leads where, and whether it does: the routes that the published clusters ask for, the loop
// that keeps one HAProxy to them, and the proof of each. It must never import NATS, SQL, Kubernetes or HAProxy: it says what
// it needs of them in small interfaces.
package edge

import (
	"context"
	"net/netip"
	"time"
)

// Route is one server name and where its connections go.
type Route struct {
	// ID is the cluster's, cl_ + 20 of [a-z0-9], or Console.
	ID      string
	Domain  string           // a lower-case DNS name without trailing dot
	Targets []netip.AddrPort // at least one; the same ones in the same order for the same hosts
	// ProxyProtocol tells the target who connects (version 2 of the PROXY protocol). A kube-apiserver would not understand.
	ProxyProtocol bool
}

// Console is the ID of the route to the gateway's own TLS port.
const Console = "console"

// Plane is one HAProxy, as whatever writes its configuration shows it.
type Plane interface {
	// Apply makes routes the only ones of ours, in one change and at most one reload; what others wrote into the configuration
	// stays. It returns once HAProxy runs with them, and leaves the last configuration that worked where it fails. The faults,
	// all unavailable; their messages may hold HAProxy's own words:
	//
	//	data_plane_unreachable  nobody answers there, or what answers is no Data Plane API
	//	data_plane_refused      it does not take our credentials
	//	data_plane_busy         others kept changing the configuration under us
	//	haproxy_missing         there is no HAProxy on this machine
	//	haproxy_refused         HAProxy does not accept the configuration
	//	haproxy_reload_failed   HAProxy accepted it and could not start with it: the port is taken, say
	Apply(ctx context.Context, routes []Route) (Applied, error)
	// State is what HAProxy says of itself. It fails as Apply does.
	State(ctx context.Context) (PlaneState, error)
}

// Applied is what Apply did.
type Applied struct {
	Changed  bool // false: everything was as it should be
	Reloaded bool // false also where addresses alone changed
}

// PlaneState is HAProxy as it runs.
type PlaneState struct {
	API        string // v2 or v3
	HAProxy    string // its version
	Mode       string // rules or map
	Workers    []Worker
	LastReload *Reload
	Backends   map[string]Traffic // by Route.ID; only of ours
}

// Worker is one process of HAProxy.
type Worker struct {
	PID    int64
	Old    bool // it was replaced, and serves the connections that it has
	Uptime time.Duration
}

// Reload is one reload of HAProxy, or its start.
type Reload struct {
	At      time.Time
	OK      bool
	Message string
}

// Traffic of one route since the last reload.
type Traffic struct {
	Servers                 []Server
	Sessions, SessionsTotal int64
	BytesIn, BytesOut       int64
	Errors                  int64
}

// Server is one target as HAProxy's checks see it.
type Server struct {
	Address netip.AddrPort
	Up      bool
}
