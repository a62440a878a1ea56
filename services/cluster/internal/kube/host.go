// Package kube is the host cluster's side of a control plane: its namespace, the platform's Secret, the wait until nodes
// can join and the removal of what is left. It must never install charts, and never touch a namespace that is not the
// cluster's own.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "kubebyon"
	clusterLabel   = "kubebyon.io/cluster-id"
)

// Options of the host cluster.
type Options struct {
	PlatformSecret    string // its name, in PlatformNamespace and in every vCluster's namespace
	PlatformNamespace string
	// NodeAddress is the type of the host nodes' address that workers reach.
	NodeAddress corev1.NodeAddressType
	// AllowLoopback lets tenants be reached on a loopback address. It is for tests on one machine.
	AllowLoopback bool
}

// Host implements cluster.Host, cluster.HostCluster and cluster.Tenants.
type Host struct {
	client kubernetes.Interface
	names  metadata.Interface // of anything, without what it holds
	opts   Options
	log    *slog.Logger
}

// New prepares calls to the cluster of cfg. It does not connect.
func New(cfg *rest.Config, opts Options, log *slog.Logger) (*Host, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = 200, 400
	cfg.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("host cluster: %w", err)
	}
	names, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("host cluster: %w", err)
	}
	return &Host{client: client, names: names, opts: opts, log: log}, nil
}

// hostFault gives an error of the host cluster the meaning that it has for a tenant.
func hostFault(err error, doing string) error {
	var known *fault.Error
	var status apierrors.APIStatus
	switch {
	case err == nil, errors.As(err, &known), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case !errors.As(err, &status):
		return fault.New(fault.Unavailable, "host_cluster_unreachable", "the host cluster's API does not answer").
			Do("the operator should look at the host cluster").Because(fmt.Errorf("%s: %w", doing, err))
	case apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return fault.New(fault.Precondition, "host_cluster_forbidden", "the host cluster forbids KubeBYON %s", doing).
			Do("the operator has to give KubeBYON's account the permission").Because(err)
	case apierrors.IsUnauthorized(err):
		return fault.New(fault.Unavailable, "host_cluster_refuses_us", "the host cluster refuses KubeBYON's credential").
			Do("the operator has to renew KUBEBYON_KUBECONFIG_PATH").Because(err)
	}
	return fault.New(fault.Unavailable, "host_cluster_busy", "the host cluster failed %s", doing).Because(err)
}

// DefaultAddress implements cluster.HostCluster.
func (h *Host) DefaultAddress(ctx context.Context) (string, error) {
	nodes, err := h.readyNodes(ctx)
	if err != nil {
		return "", err
	}
	for _, node := range nodes {
		if addr, ok := address(node, h.opts.NodeAddress); ok {
			return addr.String(), nil
		}
	}
	return "", fault.New(fault.Unavailable, "host_address_unknown", "no Ready node of the host cluster has an address of type %s", h.opts.NodeAddress).
		In("control_plane_host").Do("give control_plane_host")
}

// readyNodes are ordered by age, so that the default address stays what it was when nodes are added.
func (h *Host) readyNodes(ctx context.Context) ([]corev1.Node, error) {
	list, err := h.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, hostFault(err, "to list its nodes")
	}
	ready := slices.DeleteFunc(list.Items, func(node corev1.Node) bool {
		return !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	})
	slices.SortFunc(ready, func(a, b corev1.Node) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return ready, nil
}

func address(node corev1.Node, kind corev1.NodeAddressType) (netip.Addr, bool) {
	for _, a := range node.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == kind {
			return addr.Unmap(), true
		}
	}
	return netip.Addr{}, false
}

// nodeAddresses are where node ports answer inside the host's network.
func (h *Host) nodeAddresses(ctx context.Context) ([]netip.Addr, error) {
	nodes, err := h.readyNodes(ctx)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, node := range nodes {
		if addr, ok := address(node, corev1.NodeInternalIP); ok {
			out = append(out, addr)
		} else if addr, ok := address(node, corev1.NodeExternalIP); ok {
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		return nil, fault.New(fault.Unavailable, "host_address_unknown", "the host cluster has no Ready node with an address").
			Do("the operator should look at the host cluster's nodes")
	}
	return out, nil
}

// NamespaceFree implements cluster.HostCluster.
func (h *Host) NamespaceFree(ctx context.Context, namespace string) error {
	_, err := h.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return hostFault(err, "to look for a namespace")
	}
	return cluster.NamespaceInUse("")
}

// EnsureNamespace implements cluster.Host. A namespace that it did not make is never taken over, be it empty: it would be
// deleted with the cluster.
func (h *Host) EnsureNamespace(ctx context.Context, c cluster.Cluster) error {
	found, err := h.client.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = h.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: c.Namespace, Labels: map[string]string{managedByLabel: managedBy, clusterLabel: c.ID},
		}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return hostFault(err, "to create the namespace")
		}
		found, err = h.client.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
	}
	switch {
	case err != nil:
		return hostFault(err, "to look for the namespace")
	case !owns(found, c):
		return cluster.NamespaceInUse("it was there before this cluster")
	case found.DeletionTimestamp != nil:
		return fault.New(fault.Unavailable, "namespace_terminating", "the namespace %s is being deleted", c.Namespace).
			Do("it is made again once it is gone")
	}
	return nil
}

func owns(namespace *corev1.Namespace, c cluster.Cluster) bool {
	return namespace.Labels[managedByLabel] == managedBy && namespace.Labels[clusterLabel] == c.ID
}

// Owns implements cluster.Host.
func (h *Host) Owns(ctx context.Context, c cluster.Cluster) (cluster.Ownership, error) {
	found, err := h.client.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return cluster.Absent, nil
	case err != nil:
		return "", hostFault(err, "to look for the namespace")
	case owns(found, c):
		return cluster.Own, nil
	}
	return cluster.Foreign, nil
}

// CopyPlatformSecret implements cluster.Host. The copy follows a change of the original.
func (h *Host) CopyPlatformSecret(ctx context.Context, c cluster.Cluster) error {
	name, from := h.opts.PlatformSecret, h.opts.PlatformNamespace
	source, err := h.client.CoreV1().Secrets(from).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fault.New(fault.Precondition, "platform_secret_missing", "the Secret %s is not in the namespace %s of the host cluster; without it a vCluster does not start", name, from).
			Do("the operator creates it: kubectl create secret generic %s -n %s --from-literal=host=https://<platform> --from-literal=accessKey=<key>; %s", name, from, cluster.TryAgain)
	case err != nil:
		return hostFault(err, "to read the platform's Secret")
	case len(source.Data["accessKey"]) == 0:
		return fault.New(fault.Precondition, "platform_secret_incomplete", "the Secret %s in the namespace %s has no accessKey", name, from).
			Do("the operator adds accessKey (and host) to it; %s", cluster.TryAgain)
	}
	secrets := h.client.CoreV1().Secrets(c.Namespace)
	wanted := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.Namespace, Labels: map[string]string{managedByLabel: managedBy, clusterLabel: c.ID}},
		Type:       source.Type, Data: source.Data,
	}
	_, err = secrets.Create(ctx, wanted, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(ctx, wanted, metav1.UpdateOptions{})
	}
	return hostFault(err, "to copy the platform's Secret")
}
