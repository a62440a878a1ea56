package tenant

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/reach"
)

// publishedPort is where the edge listens for every tenant.
const publishedPort = "443"

// nodesTried bounds how many host nodes one connection is tried at. A node port answers on each.
const nodesTried = 3

// dialPublished connects to the tenant's node port on a host node, whatever address is asked for: so that we reach a tenant
// before its domain resolves and before the edge leads there. TLS checks the domain all the same. Node and port are looked up
// for each connection, since either may change.
func dialPublished(host kubernetes.Interface, ref Ref) func(ctx context.Context, network, _ string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, Control: reach.Control(ref.AllowLoopback)}
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		port, err := nodePort(ctx, host, ref)
		if err != nil {
			return nil, err
		}
		nodes, err := hostNodes(ctx, host)
		if err != nil {
			return nil, err
		}
		var failed []error
		for _, node := range nodes[:min(len(nodes), nodesTried)] {
			conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(node.String(), strconv.Itoa(int(port))))
			if err == nil {
				return conn, nil
			}
			failed = append(failed, err)
		}
		return nil, errors.Join(failed...)
	}
}

// hostNodes gives the addresses of the Ready host nodes, the inner one where a node has one, the oldest node first.
func hostNodes(ctx context.Context, host kubernetes.Interface) ([]netip.Addr, error) {
	list, err := host.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"}) // from the API server's cache
	if err != nil {
		return nil, hostFault(ctx, err)
	}
	nodes := list.Items
	slices.SortFunc(nodes, func(a, b corev1.Node) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	var out []netip.Addr
	for _, node := range nodes {
		ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if addr, ok := nodeAddr(node); ok && ready {
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		return nil, fault.New(fault.Unavailable, "host_nodes_unknown", "the host cluster has no Ready node with an address").
			Do("the operator looks at the host cluster's nodes")
	}
	return out, nil
}

func nodeAddr(node corev1.Node) (netip.Addr, bool) {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range node.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == kind {
				return addr.Unmap(), true
			}
		}
	}
	return netip.Addr{}, false
}
