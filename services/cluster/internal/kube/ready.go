package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/reach"
	"github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
	"github.com/kubebyon/kubebyon/services/cluster/internal/tenantsetup"
)

const (
	pollEvery = 100 * time.Millisecond
	podsEvery = 500 * time.Millisecond
	// attempt bounds one request to a tenant that may not be there yet.
	attempt = 3 * time.Second
	// silentFor is how long a control plane whose Pod is ready may stay silent before its address is suspected.
	silentFor = 10 * time.Second
)

// AwaitJoinable implements cluster.Host. While it waits it watches the Pods and tells why they do not start; what no
// waiting mends (a refused licence) ends it.
func (h *Host) AwaitJoinable(ctx context.Context, c cluster.Cluster, a cluster.Applied, report func(clusterv1.Reason)) (endpoint, version string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	podsRun := false
	var missing atomic.Pointer[fault.Error]
	watching.Go(func() { podsRun = h.watchPods(ctx, c, missing.Load, report, cancel) })
	endpoint, version, err = h.join(ctx, c, a, missing.Store)
	var known *fault.Error
	if err != nil && errors.As(context.Cause(ctx), &known) {
		err = known
	}
	over := ctx.Err() != nil
	cancel(nil)
	watching.Wait()
	if over && podsRun && errors.As(err, &known) { // the Pods have nothing to tell; the tenant may
		report(clusterv1.Reason{Code: known.Code, Message: known.Message, Action: known.Action})
	}
	return endpoint, version, err
}

// join tells missing what the tenant itself lacks, while its Pods run.
func (h *Host) join(ctx context.Context, c cluster.Cluster, a cluster.Applied, missing func(*fault.Error)) (endpoint, version string, err error) {
	port, err := h.rolledOut(ctx, c)
	if err != nil {
		return "", "", err
	}
	public := net.JoinHostPort(c.ControlPlaneHost, strconv.Itoa(int(port)))
	if c.PublicAccessMode == clusterv1.LoadBalancer {
		public = net.JoinHostPort(c.ControlPlaneHost, "443")
	}
	var cfg *rest.Config
	endpoint = "https://" + public
	if c.ControlPlane == clusterv1.Upstream {
		cfg, err = h.joinUpstream(ctx, c, a, public, port)
	} else if cfg, err = h.joinVCluster(ctx, c, missing); err == nil {
		endpoint = cfg.Host // not behind the edge it is what the vendor's chart exports, where the operator's values decide that
	}
	if err != nil {
		return "", "", err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return "", "", err
	}
	if info, err := client.Discovery().ServerVersion(); err == nil {
		version = info.GitVersion
	}
	return endpoint, version, nil
}

// rolledOut waits until the Pods are those of the release's last revision, and gives the node port of its API.
func (h *Host) rolledOut(ctx context.Context, c cluster.Cluster) (int32, error) {
	for {
		set, err := h.client.AppsV1().StatefulSets(c.Namespace).Get(ctx, c.VClusterName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return 0, fault.New(fault.Unavailable, "release_incomplete", "the control plane's StatefulSet is gone; the chart is applied again").Because(err)
		case err != nil:
			return 0, hostFault(err, "to read the control plane's StatefulSet")
		}
		replicas := int32(1)
		if set.Spec.Replicas != nil {
			replicas = *set.Spec.Replicas
		}
		if set.Status.ObservedGeneration >= set.Generation && set.Status.UpdatedReplicas >= replicas {
			break
		}
		if err := pause(ctx, pollEvery); err != nil {
			return 0, err
		}
	}
	for {
		service, err := h.client.CoreV1().Services(c.Namespace).Get(ctx, chart.ServiceName(c.VClusterName), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return 0, fault.New(fault.Unavailable, "release_incomplete", "the control plane's Service is gone; the chart is applied again").Because(err)
		case err != nil:
			return 0, hostFault(err, "to read the control plane's Service")
		}
		for _, port := range service.Spec.Ports {
			if port.Name == chart.HTTPSPort && port.NodePort != 0 {
				return port.NodePort, nil
			}
		}
		if err := pause(ctx, pollEvery); err != nil {
			return 0, err
		}
	}
}

// joinUpstream gives the tenant what workers need, and waits until one could join.
func (h *Host) joinUpstream(ctx context.Context, c cluster.Cluster, a cluster.Applied, public string, port int32) (*rest.Config, error) {
	pki, err := h.client.CoreV1().Secrets(c.Namespace).Get(ctx, chart.PKISecretName(c.VClusterName), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fault.New(fault.Unavailable, "release_incomplete", "the control plane's keys are gone; the chart is applied again").Because(err)
	case err != nil:
		return nil, hostFault(err, "to read the control plane's keys")
	}
	cfg, err := tenantsetup.SetupConfig("https://"+net.JoinHostPort(c.ControlPlaneHost, strconv.Itoa(int(port))), pki)
	if err != nil {
		return nil, err
	}
	nodes, err := h.nodeAddresses(ctx)
	if err != nil {
		return nil, err
	}
	tenant.Guard(cfg, h.opts.AllowLoopback)
	cfg.Dial = h.dial(c, nodes[0], port)
	params := tenantsetup.Params{
		Endpoint: public, CA: pki.Data[chart.CACertKey], KubernetesVersion: a.KubernetesVersion,
		APIServers: apiServers(c, nodes, uint16(port)), //nolint:gosec // a port
	}
	if params.PodCIDR, err = netip.ParsePrefix(a.PodCIDR); err == nil {
		params.ServiceCIDR, err = netip.ParsePrefix(a.ServiceCIDR)
	}
	if err != nil {
		return nil, fault.New(fault.Precondition, "tenant_network_invalid", "networking.podCIDR or networking.serviceCIDR of the values is no network").
			Do("the operator has to correct KUBEBYON_UPSTREAM_VALUES_FILE").Because(err)
	}
	if err := tenantsetup.Apply(ctx, cfg, params); err != nil {
		return nil, err
	}
	if err := tenantsetup.WaitNodeCanJoin(ctx, cfg, pollEvery); err != nil {
		if fault.Is(err, fault.Precondition) { // it says "not yet"
			return nil, fault.New(fault.Unavailable, fault.From(err).Code, "%s", fault.From(err).Message).Because(err)
		}
		return nil, err
	}
	return cfg, nil
}

// apiServers are where the tenant's Pods are led for its API: the address that workers reach it at, or the host nodes'
// where that is a name.
func apiServers(c cluster.Cluster, nodes []netip.Addr, port uint16) []netip.AddrPort {
	if addr, err := netip.ParseAddr(c.ControlPlaneHost); err == nil && addr.Is4() {
		return []netip.AddrPort{netip.AddrPortFrom(addr, port)}
	}
	var out []netip.AddrPort
	for _, node := range nodes {
		if node.Is4() {
			out = append(out, netip.AddrPortFrom(node, port))
		}
	}
	return out
}

// joinVCluster waits for what the vendor's control plane prepares by itself once its API answers.
func (h *Host) joinVCluster(ctx context.Context, c cluster.Cluster, missing func(*fault.Error)) (*rest.Config, error) {
	var last error
	for {
		cfg, err := h.vclusterJoinable(ctx, c)
		if err == nil || errors.Is(err, reach.ErrForbidden) { // which waiting does not mend
			return cfg, err
		}
		if last == nil || ctx.Err() == nil {
			last = err
			var known *fault.Error
			if errors.As(err, &known) {
				missing(known)
			}
		}
		if pause(ctx, pollEvery) != nil {
			return nil, last
		}
	}
}

func (h *Host) vclusterJoinable(ctx context.Context, c cluster.Cluster) (*rest.Config, error) {
	connection, err := tenant.Access(ctx, h.client, h.ref(c))
	if err != nil {
		return nil, err
	}
	cfg := connection.Config
	transport, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	defer utilnet.CloseIdleConnectionsFor(transport.Transport) // ten attempts a second must not leave ten connections
	client, err := kubernetes.NewForConfigAndClient(cfg, transport)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	if err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); errors.Is(err, reach.ErrForbidden) {
		return nil, fault.From(err)
	} else if err != nil {
		return nil, fault.New(fault.Unavailable, "tenant_api_starting", "the tenant's API is not ready").Because(err)
	}
	for _, needed := range []struct{ namespace, name string }{{"kube-system", "kubeadm-config"}, {"kube-public", "cluster-info"}} {
		if _, err := client.CoreV1().ConfigMaps(needed.namespace).Get(ctx, needed.name, metav1.GetOptions{}); err != nil {
			return nil, fault.New(fault.Unavailable, "tenant_incomplete", "the tenant does not have %s/%s yet", needed.namespace, needed.name).Because(err)
		}
	}
	return cfg, nil
}

// dial reaches a tenant's API. Behind the load balancer it goes to the host node, since the balancer may not know the
// tenant yet; TLS checks the public name all the same. Otherwise it goes to the public address, wherever its name leads
// now, except to addresses that no tenant may send us to.
func (h *Host) dial(c cluster.Cluster, node netip.Addr, port int32) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: attempt, KeepAlive: 15 * time.Second, Control: reach.Control(h.opts.AllowLoopback)}
	if c.PublicAccessMode != clusterv1.LoadBalancer {
		return dialer.DialContext
	}
	target := net.JoinHostPort(node.String(), strconv.Itoa(int(port)))
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, target)
	}
}

// answers reports whether something listens there.
func (h *Host) answers(ctx context.Context, host string, port int32) bool {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	conn, err := (&net.Dialer{Control: reach.Control(h.opts.AllowLoopback)}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// Kubeconfig implements cluster.Tenants: a copy of the exported one, rebuilt from what may be taken from it, with the public address.
func (h *Host) Kubeconfig(ctx context.Context, c cluster.Cluster) (string, error) {
	inner, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	connection, err := tenant.Access(inner, h.client, h.ref(c))
	if err != nil {
		return "", tenant.Explain(ctx, c.Name, "", err)
	}
	return string(connection.Kubeconfig), nil
}

func (h *Host) ref(c cluster.Cluster) tenant.Ref {
	return tenant.Ref{Namespace: c.Namespace, Name: c.VClusterName, Host: c.ControlPlaneHost,
		Published: c.PublicAccessMode == clusterv1.LoadBalancer, AllowLoopback: h.opts.AllowLoopback}
}

// watchPods reports why the control plane does not run, until ctx ends. podsRun says whether it ran at last.
func (h *Host) watchPods(ctx context.Context, c cluster.Cluster, missing func() *fault.Error, report func(clusterv1.Reason), stop context.CancelCauseFunc) (podsRun bool) {
	var readySince time.Time
	said := "" // by a container that crashed; its log is not always there
	began := time.Now()
	for {
		if pause(ctx, podsEvery) != nil {
			return podsRun
		}
		view, err := h.look(ctx, c, time.Since(began))
		if err != nil {
			continue
		}
		if view.lastLine == "" {
			view.lastLine = said
		}
		said = view.lastLine
		found := explain(view)
		if found.hopeless {
			stop(fault.New(fault.Precondition, found.Code, "%s", found.Message).Do("%s", found.Action))
			return false
		}
		podsRun = found.ready
		if lacks := missing(); podsRun && lacks != nil {
			found.Reason = clusterv1.Reason{Code: lacks.Code, Message: lacks.Message, Action: lacks.Action}
		}
		if !found.ready {
			readySince = time.Time{}
		} else if readySince.IsZero() {
			readySince = time.Now()
		} else if time.Since(readySince) > silentFor {
			if reason, suspect := h.suspectAddress(ctx, c); suspect {
				found.Reason, podsRun = reason, false
			}
		}
		if found.Code != "" && ctx.Err() == nil {
			report(found.Reason)
		}
	}
}

// suspectAddress finds out whether the control plane answers at a host node but not at its public address.
func (h *Host) suspectAddress(ctx context.Context, c cluster.Cluster) (clusterv1.Reason, bool) {
	service, err := h.client.CoreV1().Services(c.Namespace).Get(ctx, chart.ServiceName(c.VClusterName), metav1.GetOptions{})
	if err != nil || c.PublicAccessMode == clusterv1.LoadBalancer {
		return clusterv1.Reason{}, false
	}
	nodes, err := h.nodeAddresses(ctx)
	if err != nil {
		return clusterv1.Reason{}, false
	}
	for _, port := range service.Spec.Ports {
		if port.Name != chart.HTTPSPort || port.NodePort == 0 || h.answers(ctx, c.ControlPlaneHost, port.NodePort) ||
			!h.answers(ctx, nodes[0].String(), port.NodePort) {
			continue
		}
		return clusterv1.Reason{Code: "control_plane_host_unreachable",
			Message: fmt.Sprintf("the control plane runs, but %s does not answer on port %d", c.ControlPlaneHost, port.NodePort),
			Action:  "check that control_plane_host leads to the host node and that its firewall lets the port through, or change control_plane_host"}, true
	}
	return clusterv1.Reason{}, false
}

// look gathers what explain needs. Events and logs are read only when something lasts or crashes.
func (h *Host) look(ctx context.Context, c cluster.Cluster, after time.Duration) (view, error) {
	var v view
	pods, err := h.client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return v, err
	}
	v.pods = pods.Items
	waits := len(v.pods) == 0
	for _, pod := range v.pods {
		waits = waits || pod.Status.Phase == corev1.PodPending
		if name, crashed := crashedContainer(pod); crashed {
			v.lastLine = h.lastLine(ctx, pod, name)
		}
	}
	if waits && after > 2*time.Second {
		if claims, err := h.client.CoreV1().PersistentVolumeClaims(c.Namespace).List(ctx, metav1.ListOptions{}); err == nil {
			v.claims = claims.Items
		}
		if events, err := h.client.CoreV1().Events(c.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning", Limit: 200}); err == nil {
			v.warnings = events.Items
		}
	}
	return v, nil
}

// lastLine of the log of a container that ended; empty where there is none.
func (h *Host) lastLine(ctx context.Context, pod corev1.Pod, container string) string {
	lines, limit := int64(5), int64(8<<10)
	for _, previous := range []bool{false, true} {
		text, err := h.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: container, Previous: previous, TailLines: &lines, LimitBytes: &limit,
		}).DoRaw(ctx)
		// A runtime that has removed the log says so in its place.
		if line := lastLine(string(text)); err == nil && line != "" && !strings.HasPrefix(line, "unable to retrieve container logs") {
			return line
		}
	}
	return ""
}
