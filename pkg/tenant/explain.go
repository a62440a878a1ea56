package tenant

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Explain gives what went wrong with a tenant its fault, which names the cluster and the reason; a fault passes as it is.
// ctx is the caller's: its own end is not the tenant's fault. An endpoint of "" means that the tenant was not asked yet, the
// host cluster was.
//
//	unavailable host_cluster_unavailable the host cluster did not say how to reach the tenant
//	unavailable tenant_access_refused    the tenant does not take the credential of its own kubeconfig
//	unavailable tenant_unhealthy         it answered with another error, or with too much
//	unavailable tenant_unreachable       it cannot be reached; the message says why, as far as that gives nothing away
func Explain(ctx context.Context, cluster, endpoint string, err error) error {
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
	case errors.Is(err, ErrTooLarge):
		return fault.New(fault.Unavailable, "tenant_unhealthy", "the control plane of cluster %q answered more than is taken from it", cluster).
			Do("look at what makes its objects so large").Because(err)
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
