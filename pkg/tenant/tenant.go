// Package tenant finds the way to a tenant's own API: it reads the kubeconfig that the control plane exports into a Secret
// on the host cluster and gives access by it. It must never run, read or follow anything that such a kubeconfig names, and
// never write to the host cluster.
package tenant

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/tenant/internal/kubeconfig"
)

// Ref names a tenant's control plane.
type Ref struct {
	Namespace string // on the host cluster
	Name      string // the Helm release: the Secret is vc-<Name>, the Service <Name>
	Host      string // control_plane_host: an IP or a DNS name, without port; needed where the kubeconfig says localhost
	// Published says that it is reached from outside at https://<Host>:443, through the edge. We then connect to a host node.
	Published bool
	// AllowLoopback lets its API be at a loopback address. It is for tests on one machine.
	AllowLoopback bool
}

// Connection is access to a tenant's API, as its administrator. It holds credentials: never log it.
type Connection struct {
	Config     *rest.Config // under Guard; QPS and burst are set, a timeout is not: give each call a context
	Endpoint   string       // https://host:port, as it is reached from outside
	CAPEM      []byte       // what the API's certificate is checked against, and nothing else
	Kubeconfig []byte       // the exported one, with the endpoint put right and only what was taken from it
}

// Access reads the Secret vc-<Name> and, where its kubeconfig says localhost (R4.4), the Service <Name>; for a published tenant
// each connection reads the Service and lists the host's nodes, and fails as below. The Secret itself stays as it is. It asks
// nothing of the tenant's API. The faults:
//
//	precondition kubeconfig_missing            there is no such Secret yet, or it has no kubeconfig
//	precondition kubeconfig_broken             it cannot be used, or carries what we refuse; the message says what
//	precondition control_plane_host_unset      it says localhost, and the cluster has no host
//	precondition control_plane_host_invalid    that host is no IP or DNS name
//	precondition control_plane_service_missing there is no Service <Name> with a port https that has a node port
//	unavailable  host_cluster_unavailable      the host cluster does not answer, or refuses us
//	unavailable  host_nodes_unknown            it has no Ready node with an address
func Access(ctx context.Context, host kubernetes.Interface, ref Ref) (*Connection, error) {
	name := "vc-" + ref.Name
	secret, err := host.CoreV1().Secrets(ref.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil, fault.New(fault.Precondition, "kubeconfig_missing", "the control plane has not exported its kubeconfig: there is no Secret %s in the namespace %s", name, ref.Namespace).
				Do("wait until the cluster is ready; if it was, look at its events").Because(err)
		}
		return nil, hostFault(ctx, err)
	}
	data := secret.Data["config"]
	if len(data) == 0 {
		return nil, fault.New(fault.Precondition, "kubeconfig_missing", "the Secret %s in the namespace %s has no key config", name, ref.Namespace).
			Do("wait until the cluster is ready; if it was, look at its events")
	}
	k, err := kubeconfig.Parse(data)
	if err != nil {
		return nil, fault.New(fault.Precondition, "kubeconfig_broken", "the kubeconfig in the Secret %s of the namespace %s cannot be used: %s", name, ref.Namespace, err).
			Do("have the operator restore the Secret, or delete and create the cluster")
	}
	if k.Local || ref.Published {
		if err := checkHost(ref.Host); err != nil {
			return nil, err
		}
	}
	switch {
	case ref.Published: // whatever it says
		k.Server, k.ServerName = "https://"+net.JoinHostPort(ref.Host, publishedPort), ""
	case k.Local:
		port, err := nodePort(ctx, host, ref)
		if err != nil {
			return nil, err
		}
		k.Server = "https://" + net.JoinHostPort(ref.Host, strconv.Itoa(int(port)))
	}
	text, err := k.Write(ref.Name)
	if err != nil {
		return nil, fmt.Errorf("tenant: the kubeconfig of %s/%s cannot be written: %w", ref.Namespace, ref.Name, err)
	}
	cfg := &rest.Config{
		Host: k.Server, BearerToken: k.Token, QPS: tenantQPS, Burst: tenantBurst, UserAgent: userAgent, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{CAData: k.CA, CertData: k.Cert, KeyData: k.Key, ServerName: k.ServerName},
	}
	Guard(cfg, ref.AllowLoopback)
	if ref.Published {
		cfg.Dial = dialPublished(host, ref)
	}
	cfg.Wrap(traced)
	return &Connection{
		Config: cfg, Endpoint: k.Server, CAPEM: k.CA, Kubeconfig: text,
	}, nil
}

func checkHost(name string) error {
	if name == "" {
		return fault.New(fault.Precondition, "control_plane_host_unset", "the control plane's address is not known: the cluster has no control_plane_host").
			In("control_plane_host").Do("set control_plane_host to an IP address or a DNS name of the host")
	}
	if !kubeconfig.ValidHost(name) {
		return fault.New(fault.Precondition, "control_plane_host_invalid", "control_plane_host is neither an IP address nor a DNS name that a node could be reached by").
			In("control_plane_host").Do("set control_plane_host to an IP address or a DNS name of the host, without scheme and port")
	}
	return nil
}

// nodePort is that of the Service's port named https. A Service may have other ports before it.
func nodePort(ctx context.Context, host kubernetes.Interface, ref Ref) (int32, error) {
	missing := fault.New(fault.Precondition, "control_plane_service_missing", "the Service %s in the namespace %s has no node port for its port https", ref.Name, ref.Namespace).
		Do("wait until the cluster is ready; if it was, look at its events")
	svc, err := host.CoreV1().Services(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, missing.Because(err)
	}
	if err != nil {
		return 0, hostFault(ctx, err)
	}
	for _, p := range svc.Spec.Ports {
		if p.Name == "https" && p.NodePort > 0 && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") {
			return p.NodePort, nil
		}
	}
	return 0, missing
}

func hostFault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("tenant: the host cluster was asked for too long: %w", errors.Join(ctx.Err(), err))
	}
	return fault.New(fault.Unavailable, "host_cluster_unavailable", "the host cluster does not answer as it should").
		Do("try again in a moment; if it stays, have the operator look at the host cluster").Because(err)
}
