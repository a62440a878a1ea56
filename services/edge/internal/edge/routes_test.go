package edge

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

func id(n int) string { return fmt.Sprintf("cl_%020d", n) }

func node(n int) Node {
	return Node{Name: fmt.Sprintf("node-%d", n), Addr: netip.AddrFrom4([4]byte{198, 18, 7, byte(n)})}
}

func TestWishes(t *testing.T) {
	long := strings.Repeat(strings.Repeat("a", 61)+".", 4)
	for name, c := range map[string]struct {
		host   string
		status clusterv1.Status
		port   uint16
		nodes  int
		domain string // of its route
		state  clusterv1.EdgeState
		code   string
	}{
		"a domain":                  {host: "api.demo.example.com", domain: "api.demo.example.com", state: clusterv1.EdgePending, code: "route_pending"},
		"upper case, from before":   {host: "API.Demo.Example.COM.", domain: "api.demo.example.com", state: clusterv1.EdgePending, code: "route_pending"},
		"punycode":                  {host: "xn--mnchen-3ya.example", domain: "xn--mnchen-3ya.example", state: clusterv1.EdgePending, code: "route_pending"},
		"253 characters":            {host: long + "aa.io", domain: long + "aa.io", state: clusterv1.EdgePending, code: "route_pending"},
		"63 characters of a label":  {host: strings.Repeat("a", 63) + ".io", domain: strings.Repeat("a", 63) + ".io", state: clusterv1.EdgePending, code: "route_pending"},
		"an IP":                     {host: "157.245.196.126", state: clusterv1.EdgeSkipped, code: "host_is_ip"},
		"an IPv6":                   {host: "2001:db8::1", state: clusterv1.EdgeSkipped, code: "host_is_ip"},
		"an IPv6 in brackets":       {host: "[2001:db8::1]", state: clusterv1.EdgeSkipped, code: "host_is_ip"},
		"nothing":                   {host: "", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"one label":                 {host: "localhost", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"a number at last":          {host: "demo.127", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"a wildcard":                {host: "*.example.com", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"an underscore":             {host: "a_b.example.com", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"an empty label":            {host: "a..example.com", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"two trailing dots":         {host: "example.com..", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"not ASCII":                 {host: "münchen.example", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"64 characters of a label":  {host: strings.Repeat("a", 64) + ".io", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"254 characters":            {host: long + "aaa.io", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"an instruction to HAProxy": {host: "a.io } or { always_true", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"a new line":                {host: "a.io\n  bind :1", state: clusterv1.EdgeSkipped, code: "host_is_no_domain"},
		"the console's":             {host: "Console.example.com", state: clusterv1.EdgeSkipped, code: "domain_taken"},
		"no node port":              {host: "a.io", port: 1, state: clusterv1.EdgePending, code: "control_plane_starting"},
		"no node port, in error":    {host: "a.io", port: 1, status: clusterv1.Failed, state: clusterv1.EdgePending, code: "control_plane_missing"},
		"no node":                   {host: "a.io", nodes: -1, state: clusterv1.EdgePending, code: "host_nodes_unknown"},
	} {
		w := World{
			Clusters: []clusterv1.PublishedCluster{{ID: id(1), Host: c.host, VClusterName: "demo", Namespace: "space", Status: c.status}},
			Port: func(namespace, service string) uint16 {
				if namespace != "space" || service != "demo" || c.port == 1 {
					return 0
				}
				return 30443
			},
			Console: Route{ID: Console, Domain: "console.example.com", Targets: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8443")}, ProxyProtocol: true},
		}
		for n := range c.nodes + 1 {
			w.Nodes = append(w.Nodes, node(n+1))
		}
		got := w.wishes()
		if len(got) != 2 || got[0].id != Console || got[0].route == nil || !got[0].route.ProxyProtocol {
			t.Fatalf("%s: %+v", name, got)
		}
		wish := got[1]
		if wish.id != id(1) || wish.host != c.host || wish.state != c.state || wish.reason.Code != c.code || wish.reason.Message == "" ||
			wish.state == clusterv1.EdgeSkipped && wish.reason.Action == "" {
			t.Errorf("%s: %+v", name, wish)
		}
		switch {
		case c.domain == "":
			if wish.route != nil {
				t.Errorf("%s: a route %v", name, wish.route)
			}
		case wish.route == nil || wish.route.ID != id(1) || wish.route.Domain != c.domain || fmt.Sprint(wish.route.Targets) != "[198.18.7.1:30443]" || wish.route.ProxyProtocol:
			t.Errorf("%s: %+v", name, wish.route)
		}
	}
}

func TestWishesOfSeveral(t *testing.T) {
	w := World{
		Clusters: []clusterv1.PublishedCluster{
			{ID: id(3), Host: "A.example.com"}, {ID: id(1), Host: "a.example.com"}, {ID: id(2), Host: "b.example.com", Status: clusterv1.Deleting},
			{ID: "../etc", Host: "c.example.com"}, {ID: id(4), Host: "d.example.com", Status: clusterv1.Ready},
		},
		Nodes: []Node{node(1)}, Port: func(string, string) uint16 { return 30443 },
	}
	var got []string
	for _, wish := range w.wishes() {
		got = append(got, fmt.Sprintf("%s %s %v %v", wish.id, wish.state, wish.route != nil, wish.ready))
	}
	want := []string{id(1) + " pending true false", id(2) + " skipped false false", id(3) + " skipped false false", id(4) + " pending true true"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v", got)
	}
}

// A node that comes or goes moves no more than it must.
func TestTargets(t *testing.T) {
	var nodes []Node
	for n := range 10 {
		nodes = append(nodes, node(n+1))
	}
	used, moved := map[netip.AddrPort]int{}, 0
	for n := range 300 {
		before := targets(id(n), nodes, 30001)
		if len(before) != maxTargets {
			t.Fatalf("%v", before)
		}
		after := targets(id(n), nodes[1:], 30001)
		gone := netip.AddrPortFrom(nodes[0].Addr, 30001)
		for _, at := range before {
			used[at]++
			if at == gone {
				moved++
				continue
			}
			if !strings.Contains(fmt.Sprint(after), at.String()) {
				t.Fatalf("%v became %v", before, after)
			}
		}
	}
	if len(used) != len(nodes) || moved == 0 || moved > 300 {
		t.Errorf("%v, %d moved", used, moved)
	}
}

func FuzzIsDomain(f *testing.F) {
	for _, s := range []string{"a.io", "xn--a.io", "a.b.c", "-a.io", "a-.io", "1.2.3.4", "a.io }", "a.0x1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if isDomain(s) && (strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" || isAddress(s) || len(s) > 253) {
			t.Errorf("%q", s)
		}
	})
}
