// Package helm is the one door to the Helm SDK: it installs, upgrades, mends and removes a cluster's release. It must
// never wait for what a chart runs, never stop in the middle of an operation, and never read Helm's own environment.
package helm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"helm.sh/helm/v3/pkg/action"
	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	helmkube "helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

const (
	// parallel operations; each renders a chart in memory.
	parallel = 5
	// requestTimeout bounds each request, and so an operation whose API server has gone silent.
	requestTimeout = time.Minute
	hookTimeout    = 2 * time.Minute
	keepRevisions  = 3
	// capabilitiesFor is how long the host cluster's version and API groups are believed.
	capabilitiesFor = 10 * time.Minute
	// clusterLabel of Helm's own records says whose a release is. Those of before have none.
	clusterLabel = "kubebyon.io/cluster-id"
)

// Options say what is installed.
type Options struct {
	VCluster          *Source
	VClusterValues    map[string]any
	UpstreamValues    map[string]any
	KubernetesVersion string // of upstream tenants; empty: what the values file or the chart says
}

// Charts implements cluster.Releases.
type Charts struct {
	opts      Options
	getter    *getter
	slots     chan struct{}
	releasing keyed
	log       *slog.Logger

	mu    sync.Mutex
	caps  *chartutil.Capabilities
	until time.Time
}

// New prepares operations on the cluster of cfg. It does not connect.
func New(cfg *rest.Config, opts Options, log *slog.Logger) (*Charts, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = 200, 400
	cfg.Timeout = requestTimeout
	cfg.WarningHandler = rest.NoWarnings{}
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("helm: %w", err)
	}
	cached := memory.NewMemCacheClient(client)
	return &Charts{
		opts: opts, slots: make(chan struct{}, parallel), log: log,
		getter: &getter{cfg: cfg, discovery: cached, mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached)},
	}, nil
}

// Warm learns the host cluster's API groups ahead of the first operation.
func (h *Charts) Warm() error {
	_, err := h.capabilities()
	return err
}

// Apply implements cluster.Releases.
func (h *Charts) Apply(ctx context.Context, c cluster.Cluster) (cluster.Applied, error) {
	chrt, values, err := h.render(ctx, c)
	if err != nil {
		return cluster.Applied{}, err
	}
	out := cluster.Applied{Chart: chrt.Metadata.Name + " " + chrt.Metadata.Version}
	if full, err := chartutil.CoalesceValues(chrt, values); err == nil {
		out.KubernetesVersion = digText(full, "controlPlane", "distro", "k8s", "image", "tag")
		out.PodCIDR = digText(full, "networking", "podCIDR")
		out.ServiceCIDR = digText(full, "networking", "serviceCIDR")
	}
	err = h.operate(ctx, c, func(cfg *action.Configuration) error {
		var err error
		out.Recovered, err = apply(ctx, cfg, c, chrt, values)
		return err
	})
	return out, err
}

func (h *Charts) render(ctx context.Context, c cluster.Cluster) (*helmchart.Chart, map[string]any, error) {
	if c.ControlPlane == clusterv1.Upstream {
		chrt, err := chart.Load()
		return chrt, upstreamValues(h.opts.UpstreamValues, h.opts.KubernetesVersion, c), err
	}
	chrt, err := h.opts.VCluster.Load(ctx)
	return chrt, vclusterValues(h.opts.VClusterValues, c), err
}

// apply decides by what Helm has recorded, not by what it was asked for last.
func apply(ctx context.Context, cfg *action.Configuration, c cluster.Cluster, chrt *helmchart.Chart, values map[string]any) (recovered string, err error) {
	last, err := cfg.Releases.Last(c.VClusterName)
	switch {
	case errors.Is(err, driver.ErrReleaseNotFound):
		return "", install(ctx, cfg, c, chrt, values)
	case err != nil:
		return "", err
	}
	switch status := last.Info.Status; {
	case status == release.StatusUninstalling || status == release.StatusUninstalled:
		if err := uninstall(cfg, c.VClusterName); err != nil {
			return "", err
		}
		return "the release was half removed; it is installed anew", install(ctx, cfg, c, chrt, values)
	case status.IsPending() || status == release.StatusUnknown:
		// Whoever was at it is dead: the cluster's lock is ours. What it has made already is found by the upgrade.
		recovered = fmt.Sprintf("the release was left %s by a process that stopped; the operation is repeated", status)
		last.SetStatus(release.StatusFailed, "interrupted")
		if err := cfg.Releases.Update(last); err != nil {
			return "", err
		}
	}
	upgrade := action.NewUpgrade(cfg)
	upgrade.Namespace, upgrade.MaxHistory, upgrade.Timeout = c.Namespace, keepRevisions, hookTimeout
	upgrade.DisableOpenAPIValidation, upgrade.ResetValues = true, true
	upgrade.Labels = map[string]string{clusterLabel: c.ID}
	// Helm would go on after ctx has ended, and record a failure that is none.
	_, err = upgrade.RunWithContext(context.WithoutCancel(ctx), c.VClusterName, chrt, values)
	return recovered, err
}

func install(ctx context.Context, cfg *action.Configuration, c cluster.Cluster, chrt *helmchart.Chart, values map[string]any) error {
	op := action.NewInstall(cfg)
	op.ReleaseName, op.Namespace, op.Timeout = c.VClusterName, c.Namespace, hookTimeout
	op.DisableOpenAPIValidation = true
	op.Labels = map[string]string{clusterLabel: c.ID}
	_, err := op.RunWithContext(context.WithoutCancel(ctx), chrt, values)
	return err
}

func uninstall(cfg *action.Configuration, name string) error {
	if _, err := cfg.Releases.Last(name); errors.Is(err, driver.ErrReleaseNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	op := action.NewUninstall(cfg)
	op.Timeout = hookTimeout
	_, err := op.Run(name)
	return err
}

// Holds implements cluster.Releases.
func (h *Charts) Holds(ctx context.Context, c cluster.Cluster, owns cluster.Ownership) (held bool, err error) {
	err = h.operate(ctx, c, func(cfg *action.Configuration) error {
		last, err := cfg.Releases.Last(c.VClusterName)
		switch {
		case errors.Is(err, driver.ErrReleaseNotFound):
			return nil
		case err != nil:
			return err
		}
		held = owns == cluster.Own || last.Labels[clusterLabel] == c.ID
		return nil
	})
	return held, err
}

// Uninstall implements cluster.Releases.
func (h *Charts) Uninstall(ctx context.Context, c cluster.Cluster) error {
	return h.operate(ctx, c, func(cfg *action.Configuration) error { return uninstall(cfg, c.VClusterName) })
}

// operate waits for a slot and runs op to its end, whatever becomes of ctx.
func (h *Charts) operate(ctx context.Context, c cluster.Cluster, op func(*action.Configuration) error) error {
	// A lock that was lost may have let a second job of this process in while the first one's operation still runs.
	unlock, err := h.releasing.lock(ctx, c.Namespace+"/"+c.VClusterName)
	if err != nil {
		return err
	}
	defer unlock()
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	caps, err := h.capabilities()
	if err != nil {
		return classify(err)
	}
	cfg := new(action.Configuration)
	debug := func(format string, args ...any) {
		h.log.DebugContext(ctx, "helm", slog.String("cluster", c.ID), slog.String("text", fmt.Sprintf(format, args...)))
	}
	if err := cfg.Init(h.getter.in(c.Namespace), c.Namespace, "secret", debug); err != nil {
		return classify(err)
	}
	if client, ok := cfg.KubeClient.(*helmkube.Client); ok {
		client.Namespace = c.Namespace
	}
	cfg.Capabilities = caps
	return classify(op(cfg))
}

func (h *Charts) capabilities() (*chartutil.Capabilities, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.caps != nil && time.Now().Before(h.until) {
		return h.caps.Copy(), nil
	}
	h.getter.discovery.Invalidate()
	h.getter.mapper.Reset()
	version, err := h.getter.discovery.ServerVersion()
	if err != nil {
		return nil, unreachable(err)
	}
	groups, err := action.GetVersionSet(h.getter.discovery)
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}
	h.caps = &chartutil.Capabilities{
		APIVersions: groups,
		KubeVersion: chartutil.KubeVersion{Version: version.GitVersion, Major: version.Major, Minor: version.Minor},
		HelmVersion: chartutil.DefaultCapabilities.HelmVersion,
	}
	h.until = time.Now().Add(capabilitiesFor)
	return h.caps.Copy(), nil
}

func unreachable(cause error) error {
	return fault.New(fault.Unavailable, "host_cluster_unreachable", "the host cluster's API does not answer").
		Do("it is tried again; the operator should look at the host cluster").Because(cause)
}

// classify tells what time may mend from what somebody has to mend.
func classify(err error) error {
	var known *fault.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	var network net.Error
	text := strings.Join(strings.Fields(err.Error()), " ")
	switch {
	case errors.As(err, &network), strings.Contains(text, "cluster unreachable"), strings.Contains(text, "connection refused"):
		return unreachable(err)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return fault.New(fault.Unavailable, "namespace_terminating", "the namespace is still being deleted").Because(err)
	case apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err),
		apierrors.IsInternalError(err), apierrors.IsConflict(err), strings.Contains(text, "another operation"):
		return fault.New(fault.Unavailable, "host_cluster_busy", "the host cluster could not take the chart just now").Because(err)
	case apierrors.IsForbidden(err):
		return fault.New(fault.Precondition, "host_cluster_forbidden", "the host cluster forbids KubeBYON to install the chart: %s", shorten(text)).
			Do("the operator has to give KubeBYON's account the permission").Because(err)
	}
	return fault.New(fault.Precondition, "chart_failed", "Helm could not install the chart: %s", shorten(text)).
		Do("the operator has to correct the chart or its values file").Because(err)
}

func shorten(text string) string {
	const limit = 400
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit]) + "…"
	}
	return text
}

// getter gives every operation the same connection, discovery and mapper.
type getter struct {
	cfg       *rest.Config
	discovery discovery.CachedDiscoveryInterface
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	namespace string
}

func (g *getter) in(namespace string) *getter {
	out := *g
	out.namespace = namespace
	return &out
}

func (g *getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.cfg), nil }

func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return g.discovery, nil
}

func (g *getter) ToRESTMapper() (meta.RESTMapper, error) {
	return restmapper.NewShortcutExpander(g.mapper, g.discovery, nil), nil
}

func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(clientcmdapi.Config{},
		&clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: g.namespace}})
}

// keyed is a mutex per key.
type keyed struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

func (k *keyed) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		if k.held == nil {
			k.held = map[string]chan struct{}{}
		}
		busy, taken := k.held[key]
		if !taken {
			mine := make(chan struct{})
			k.held[key] = mine
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(mine)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
