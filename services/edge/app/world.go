package app

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
	"github.com/kubebyon/kubebyon/services/edge/internal/kube"
)

// world is edge.Source: the published clusters over NATS, the host cluster as it is watched, and the console's upstreams.
type world struct {
	published func(context.Context, clusterv1.PublishedRequest) (clusterv1.PublishedResponse, error)
	host      *kube.Host
	domain    string   // the console's; empty: none
	upstream  []string // host:port of the gateways' TLS ports
}

// World implements edge.Source.
func (w world) World(ctx context.Context) (edge.World, error) {
	if err := w.host.Seen(); err != nil {
		return edge.World{}, err
	}
	clusters, err := w.clusters(ctx)
	if err != nil {
		return edge.World{}, err
	}
	console, err := w.console(ctx)
	if err != nil {
		return edge.World{}, err
	}
	return edge.World{Clusters: clusters, Nodes: w.host.Nodes(), Port: w.host.Port, Console: console}, nil
}

func (w world) clusters(ctx context.Context) ([]clusterv1.PublishedCluster, error) {
	var all []clusterv1.PublishedCluster
	for after := ""; ; {
		page, err := w.published(ctx, clusterv1.PublishedRequest{After: after})
		if err != nil {
			return nil, err
		}
		all = append(all, page.Clusters...)
		if !page.More || len(page.Clusters) == 0 {
			return all, nil
		}
		after = page.Clusters[len(page.Clusters)-1].ID
	}
}

// console looks its upstreams' names up each time: where gateways run in containers, addresses change.
func (w world) console(ctx context.Context) (edge.Route, error) {
	if w.domain == "" || len(w.upstream) == 0 {
		return edge.Route{}, nil
	}
	route := edge.Route{ID: edge.Console, Domain: w.domain, ProxyProtocol: true}
	for _, at := range w.upstream {
		host, _, err := net.SplitHostPort(at)
		if err != nil {
			return edge.Route{}, err // which LoadConfig does not let through
		}
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return edge.Route{}, fault.New(fault.Unavailable, "console_upstream_unknown", "a name of KUBEBYON_CONSOLE_UPSTREAM does not resolve").
				Do("the operator corrects KUBEBYON_CONSOLE_UPSTREAM, or the name").Because(err)
		}
		for _, addr := range addrs {
			route.Targets = append(route.Targets, netip.AddrPortFrom(addr.Unmap(), portOf(at)))
		}
	}
	slices.SortFunc(route.Targets, netip.AddrPort.Compare)
	route.Targets = slices.Compact(route.Targets)
	return route, nil
}
