package edge

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

// maxTargets is how many host nodes a route leads to. A node port answers on every node; three outlive the loss of two.
const maxTargets = 3

// Node is a host node that a route may lead to.
type Node struct {
	Name string
	Addr netip.Addr
}

// World is what routes are made of, as it is known now.
type World struct {
	Clusters []clusterv1.PublishedCluster
	Nodes    []Node
	// Port gives the node port of a cluster's API, or 0 while there is none.
	Port func(namespace, service string) uint16
	// Console is the route to the gateway; no Domain: none.
	Console Route
}

// wish is what one cluster, or the console, wants, and why there is no route for it yet.
type wish struct {
	id, host string // the host as the cluster has it
	route    *Route
	ready    bool // whatever is behind the route should answer by now
	leaving  bool // there is to be no route any more
	state    clusterv1.EdgeState
	reason   clusterv1.Reason
}

// wishes are in the order of the clusters' ids, so that the older configuration does not depend on who was asked first.
func (w World) wishes() []wish {
	out := make([]wish, 0, len(w.Clusters)+1)
	taken := map[string]bool{}
	if w.Console.Domain != "" {
		route := w.Console
		taken[route.Domain] = true
		out = append(out, wish{id: route.ID, host: route.Domain, route: &route, ready: true})
	}
	clusters := slices.Clone(w.Clusters)
	slices.SortFunc(clusters, func(a, b clusterv1.PublishedCluster) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range clusters {
		switch {
		case !clusterID.MatchString(c.ID):
		case c.Status == clusterv1.Deleting:
			out = append(out, wish{id: c.ID, host: c.Host, leaving: true, state: clusterv1.EdgeSkipped,
				reason: clusterv1.Reason{Code: clusterv1.RouteRemoved, Message: "the cluster is being deleted, and no route leads to it any more"}})
		default:
			out = append(out, w.wish(c, taken))
		}
	}
	return out
}

var clusterID = regexp.MustCompile(`^cl_[a-z0-9]{20}$`)

func (w World) wish(c clusterv1.PublishedCluster, taken map[string]bool) wish {
	out := wish{id: c.ID, host: c.Host, ready: c.Status == clusterv1.Ready}
	domain := strings.TrimSuffix(strings.ToLower(c.Host), ".")
	skip := func(code, message, action string) wish {
		out.state, out.reason = clusterv1.EdgeSkipped, clusterv1.Reason{Code: code, Message: message, Action: action}
		return out
	}
	wait := func(code, message, action string) wish {
		out.state, out.reason = clusterv1.EdgePending, clusterv1.Reason{Code: code, Message: message, Action: action}
		return out
	}
	const change = "PATCH the cluster's control_plane_host to a domain such as demo.example.com, or its public_access_mode to nodeport"
	switch {
	case isAddress(c.Host):
		return skip("host_is_ip", "the edge finds a cluster by its domain name, and control_plane_host is an IP address", change)
	case !isDomain(domain):
		return skip("host_is_no_domain", "the edge finds a cluster by its domain name, and control_plane_host is none", change)
	case taken[domain]:
		return skip("domain_taken", "this domain leads to something else already", change)
	}
	taken[domain] = true
	port := w.Port(c.Namespace, c.VClusterName)
	switch {
	case port == 0 && c.Status == clusterv1.Failed:
		return wait("control_plane_missing", "the control plane is in error, and has no node port", "mend what the cluster's own reason says")
	case port == 0:
		return wait("control_plane_starting", "the control plane has no node port yet", "")
	case len(w.Nodes) == 0:
		return wait("host_nodes_unknown", "no node of the host cluster has an address that the edge could lead to",
			"the operator looks at the host cluster's nodes and at KUBEBYON_HAPROXY_NODE_ADDRESS_TYPE")
	}
	out.route = &Route{ID: c.ID, Domain: domain, Targets: targets(c.ID, w.Nodes, port)}
	out.state, out.reason = clusterv1.EdgePending, clusterv1.Reason{Code: "route_pending", Message: "the route is being made"}
	return out
}

// targets spreads clusters over the nodes, and moves no more of them than it has to when nodes come and go.
func targets(id string, nodes []Node, port uint16) []netip.AddrPort {
	score := func(n Node) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(id + "/" + n.Name))
		return h.Sum64()
	}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Node) int {
		switch x, y := score(a), score(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	var out []netip.AddrPort
	for _, n := range nodes[:min(len(nodes), maxTargets)] {
		out = append(out, netip.AddrPortFrom(n.Addr, port))
	}
	return out
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// isDomain holds for the lower-case names of two labels or more that a TLS client sends: no wildcard, no underscore, nothing
// that a resolver takes for an address.
func isDomain(name string) bool {
	labels := strings.Split(name, ".")
	if len(name) > 253 || len(labels) < 2 {
		return false
	}
	for _, l := range labels {
		if !label.MatchString(l) {
			return false
		}
	}
	last := labels[len(labels)-1]
	return strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x")
}

func (r Route) String() string { return fmt.Sprintf("%s → %v", r.Domain, r.Targets) }

func (r Route) equal(other Route) bool {
	return r.ID == other.ID && r.Domain == other.Domain && r.ProxyProtocol == other.ProxyProtocol && slices.Equal(r.Targets, other.Targets)
}
