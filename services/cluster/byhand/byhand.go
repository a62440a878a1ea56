// Package byhand gives the objects of an upstream tenant as text, for whoever applies them with kubectl: the benchmark
// compares the cluster service with that. It must never write to a cluster, and nothing that runs in production uses it.
package byhand

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/internal/tenantsetup"
)

// ControlPlane is what the chart makes in the host cluster for a tenant reached at host, with the values that the service
// would set. Its keys are fresh in every call.
func ControlPlane(namespace, release string, host netip.Addr) ([]byte, error) {
	chrt, err := chart.Load()
	if err != nil {
		return nil, err
	}
	op := action.NewInstall(new(action.Configuration))
	op.ReleaseName, op.Namespace, op.ClientOnly, op.DryRun = release, namespace, true, true
	rendered, err := op.Run(chrt, chart.Values{ServerNames: []string{host.String()}}.Map())
	if err != nil {
		return nil, fmt.Errorf("render chart: %w", err)
	}
	return []byte(rendered.Manifest), nil
}

// Tenant is what the service writes into the tenant that answers at at.
func Tenant(pki *corev1.Secret, at netip.AddrPort) ([]byte, error) {
	chrt, err := chart.Load()
	if err != nil {
		return nil, err
	}
	values := chartutil.Values(chrt.Values)
	text := func(path string) string {
		value, _ := values.PathValue(path)
		s, _ := value.(string)
		return s
	}
	params := tenantsetup.Params{
		Endpoint: at.String(), APIServers: []netip.AddrPort{at}, CA: pki.Data[chart.CACertKey],
		KubernetesVersion: text("controlPlane.distro.k8s.image.tag"),
	}
	if params.PodCIDR, err = netip.ParsePrefix(text("networking.podCIDR")); err != nil {
		return nil, err
	}
	if params.ServiceCIDR, err = netip.ParsePrefix(text("networking.serviceCIDR")); err != nil {
		return nil, err
	}
	return tenantsetup.Objects(params)
}

// AwaitJoinable returns when the service, too, would say that a node could join.
func AwaitJoinable(ctx context.Context, pki *corev1.Secret, at netip.AddrPort) error {
	cfg, err := tenantsetup.SetupConfig("https://"+at.String(), pki)
	if err != nil {
		return err
	}
	return tenantsetup.WaitNodeCanJoin(ctx, cfg, 20*time.Millisecond)
}
