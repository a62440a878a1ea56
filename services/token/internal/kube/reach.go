package kube

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/tenant"
)

// reach gives use a client of the cluster's tenant and turns what goes wrong into a fault that names the cluster.
func (t *Tenants) reach(ctx context.Context, c clusterv1.Cluster, use func(context.Context, *tenant.Connection, kubernetes.Interface) error) error {
	inner, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := tenant.Access(inner, t.host, tenant.Ref{Namespace: c.Namespace, Name: c.VClusterName, Host: c.ControlPlaneHost, AllowLoopback: t.allowLoopback})
	if err != nil {
		return explain(ctx, c.Name, "", err)
	}
	transport, err := rest.HTTPClientFor(conn.Config)
	if err != nil {
		return explain(ctx, c.Name, conn.Endpoint, err)
	}
	defer utilnet.CloseIdleConnectionsFor(transport.Transport)
	client, err := kubernetes.NewForConfigAndClient(conn.Config, transport)
	if err != nil {
		return explain(ctx, c.Name, conn.Endpoint, err)
	}
	return explain(ctx, c.Name, conn.Endpoint, use(inner, conn, client))
}

// explain names the cluster and the reason. ctx is the caller's: its own end is not the tenant's fault. An endpoint of ""
// means that the tenant was not asked yet, the host cluster was.
func explain(ctx context.Context, cluster, endpoint string, err error) error {
	var (
		known  *fault.Error
		status apierrors.APIStatus
	)
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("asking the control plane of cluster %q: %w", cluster, ctx.Err())
	case endpoint == "":
		return fault.New(fault.Unavailable, "host_cluster_unavailable", "the host cluster did not say how to reach the control plane of cluster %q: %s", cluster, why(err)).
			Do("try again; if it stays, the operator looks at the host cluster and at KubeBYON's credential there").Because(err)
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
		return fault.New(fault.Unavailable, "tenant_access_refused", "the control plane of cluster %q refuses the credential in its own kubeconfig", cluster).
			Do("try again in a minute; if it stays, the operator renews the cluster's kubeconfig Secret").Because(err)
	case errors.As(err, &status):
		return fault.New(fault.Unavailable, "tenant_unhealthy", "the control plane of cluster %q answered with an error (%d)", cluster, status.Status().Code).
			Do("try again; if it stays, look at the cluster's events").Because(err)
	default:
		return fault.New(fault.Unavailable, "tenant_unreachable", "the control plane of cluster %q at %s cannot be reached: %s", cluster, endpoint, why(err)).
			Do("try again; if it stays, check that the control plane runs and that its port is open to KubeBYON").Because(err)
	}
}

// why is the part of a network error that helps and gives nothing away.
func why(err error) string {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		dns       *net.DNSError
		timeout   net.Error
		status    apierrors.APIStatus
	)
	switch {
	case errors.As(err, &status):
		return fmt.Sprintf("it answered with an error (%d)", status.Status().Code)
	case errors.As(err, &authority):
		return "its certificate is not signed by the cluster's CA"
	case errors.As(err, &hostname):
		return "its certificate is for another name"
	case errors.As(err, &invalid):
		return "its certificate is not valid"
	case errors.As(err, &dns):
		return "its name does not resolve"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no route to it"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it does not answer"
	default:
		return "the connection failed"
	}
}
