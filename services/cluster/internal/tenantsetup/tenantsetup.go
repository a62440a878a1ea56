// Package tenantsetup gives a fresh upstream tenant what a worker needs to join and to run Pods: the administrator's
// binding, bootstrap RBAC, cluster-info, default/kubernetes, CoreDNS, kube-proxy and flannel. It must never create a
// credential, nor log one, and it must never be run against the host cluster.
package tenantsetup

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// Params is what differs between tenants. Validate reports what is wrong with it.
type Params struct {
	Endpoint          string           // host:port at which workers reach the tenant's API; the host is in its certificate
	APIServers        []netip.AddrPort // where default/kubernetes leads the tenant's Pods: the host's node addresses and the node port
	CA                []byte           // PEM, the tenant's cluster CA (SetupCA reads it)
	PodCIDR           netip.Prefix     // the chart's networking.podCIDR
	ServiceCIDR       netip.Prefix     // the chart's networking.serviceCIDR
	DNSIP             netip.Addr       // zero: the tenth address of ServiceCIDR
	KubernetesVersion string           // v1.37.2, of kube-proxy
	Images            Images           // zero fields: the defaults
}

// Images are the addons' image references.
type Images struct {
	KubeProxy     string
	CoreDNS       string
	Flannel       string
	FlannelPlugin string
}

// SetupConfig is the client configuration for Apply and NodeCanJoin: the setup token and CA of the Secret
// <release>-pki, at the given https://host:port. It is a credential of group system:masters; never store or log it.
func SetupConfig(server string, pki *corev1.Secret) (*rest.Config, error) {
	return nil, fmt.Errorf("not yet")
}

// Apply waits until the tenant's API is ready and then writes every object, by server-side apply, several at a time.
// It is safe to repeat, also with other Params. It ends with an error when ctx does, saying what it was waiting for,
// or at once when the tenant refuses an object for good.
func Apply(ctx context.Context, cfg *rest.Config, params Params) error { return fmt.Errorf("not yet") }

// NodeCanJoin is nil when a worker with a bootstrap token could join now; otherwise a fault of kind Precondition (or
// Unavailable, when the API does not answer) that says what is missing.
func NodeCanJoin(ctx context.Context, cfg *rest.Config) error { return fmt.Errorf("not yet") }

// WaitNodeCanJoin asks NodeCanJoin again and again, and gives its last answer when ctx ends.
func WaitNodeCanJoin(ctx context.Context, cfg *rest.Config, every time.Duration) error {
	return fmt.Errorf("not yet")
}
