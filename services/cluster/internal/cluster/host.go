package cluster

import (
	"net/netip"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/reach"
)

// Policy is what the operator allows tenants to ask for.
type Policy struct {
	// AllowLoopback lets control_plane_host be a loopback address. It is for tests on one machine.
	AllowLoopback bool
	// ReservedNamespaces are refused in addition to the built-in ones: KubeBYON's own.
	ReservedNamespaces []string
	// DefaultControlPlane stands where a request names none.
	DefaultControlPlane clusterv1.ControlPlane
	// DeleteWithin is how long a removal may take before it says that it takes too long.
	DeleteWithin time.Duration
	// Domains says which names tenants may be published under.
	Domains Domains
}

// metadataHosts answer with a cloud's credentials to whoever asks from inside.
var metadataHosts = map[string]bool{"metadata": true, "metadata.google.internal": true, "instance-data": true, "instance-data.ec2.internal": true}

const hostField = "control_plane_host"

// cleanHost checks the address under which a control plane is reached from outside: an IP or a DNS name and nothing
// else, in its canonical form (lower case, no trailing dot, IPv4 for mapped IPv6). Through the load balancer it is a domain that
// a tenant may have.
func (p Policy) cleanHost(raw string, mode clusterv1.AccessMode) (string, error) {
	host := strings.TrimSpace(raw)
	if strings.Contains(host, "://") || strings.ContainsAny(host, "/\\?#@") {
		return "", fault.New(fault.Invalid, "host_is_url", "control_plane_host is a host alone, not a URL").
			In(hostField).Do("give an IP address or a DNS name, such as k8s.example.com")
	}
	if _, err := netip.ParseAddrPort(host); err == nil || strings.ContainsAny(host, "[]") {
		return "", hostHasPort()
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return p.cleanAddr(addr, mode)
	}
	if strings.Contains(host, ":") {
		return "", hostHasPort()
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if text, action := wrongName(host); text != "" {
		return "", fault.New(fault.Invalid, "host_invalid", "control_plane_host is neither an IP address nor a DNS name: %s", text).In(hostField).Do("%s", action)
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		if p.AllowLoopback && mode != clusterv1.LoadBalancer {
			return host, nil
		}
		return "", refusedHost()
	}
	if metadataHosts[host] || strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".cluster.local") {
		return "", refusedHost()
	}
	if mode != clusterv1.LoadBalancer {
		return host, nil
	}
	if !strings.Contains(host, ".") {
		return "", hostMustBeDomain()
	}
	if err := p.Domains.refuse(host); err != nil {
		return "", err
	}
	return host, nil
}

func (p Policy) cleanAddr(addr netip.Addr, mode clusterv1.AccessMode) (string, error) {
	if addr.Zone() != "" {
		return "", fault.New(fault.Invalid, "host_invalid", "control_plane_host carries an interface's zone").In(hostField)
	}
	addr = addr.Unmap()
	if addr.IsLoopback() && !p.AllowLoopback || !addr.IsLoopback() && reach.Forbidden(addr) {
		return "", refusedHost()
	}
	if mode == clusterv1.LoadBalancer {
		return "", hostMustBeDomain()
	}
	return addr.String(), nil
}

// fitsHost says whether the control plane can be reached at a host that cleanHost let through: an upstream tenant's network
// is IPv4, and its Pods are led to this address.
func (c Cluster) fitsHost(host string) error {
	if addr, err := netip.ParseAddr(host); err == nil && addr.Is6() && c.ControlPlane == clusterv1.Upstream {
		return fault.New(fault.Invalid, "host_not_ipv4", "an upstream control plane cannot be reached at an IPv6 address").
			In(hostField).Do("give an IPv4 address or a DNS name")
	}
	return nil
}

func hostHasPort() error {
	return fault.New(fault.Invalid, "host_has_port", "control_plane_host is a host alone, without port or brackets").
		In(hostField).Do("the port is found by KubeBYON; give the IP address or DNS name only")
}

func refusedHost() error {
	return fault.New(fault.Invalid, "host_refused", "no worker could reach a control plane at this host").
		In(hostField).Do("give the address of the host node as workers see it")
}

func hostMustBeDomain() error {
	return fault.New(fault.Invalid, "host_must_be_domain", "public access through the load balancer goes by domain name, and this is none").
		In(hostField).Do("give a domain such as demo.example.com, or use public_access_mode nodeport")
}
