// Package kube watches what of the host cluster routes are made of: its nodes' addresses and its Services' node ports. It
// must never write there, nor read a Secret.
package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

const (
	// httpsPort is the name of the port of a tenant's API, with either control plane.
	httpsPort = "https"
	// excluded keeps load balancers away from a node: https://kubernetes.io/docs/reference/labels-annotations-taints/
	excluded = corev1.LabelNodeExcludeBalancers
)

// Host is the host cluster as it was seen last. While its API is away everything stays as it was.
type Host struct {
	prefer   corev1.NodeAddressType
	factory  informers.SharedInformerFactory
	nodes    corelisters.NodeLister
	services corelisters.ServiceLister
	synced   []cache.InformerSynced
}

// New prepares the watches; client's account needs list and watch on nodes and services. prefer is the type of the nodes'
// address that HAProxy reaches; a node that has none of it is taken by the other one. changed is called, and must not wait,
// whenever something that may matter changed.
func New(client kubernetes.Interface, prefer corev1.NodeAddressType, changed func()) (*Host, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim))
	h := &Host{
		prefer: prefer, factory: factory,
		nodes: factory.Core().V1().Nodes().Lister(), services: factory.Core().V1().Services().Lister(),
	}
	for _, informer := range []cache.SharedIndexInformer{factory.Core().V1().Nodes().Informer(), factory.Core().V1().Services().Informer()} {
		handle, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() },
			UpdateFunc: func(before, after any) {
				if matters(before, after) {
					changed()
				}
			},
		})
		if err != nil {
			return nil, fmt.Errorf("host cluster: %w", err)
		}
		h.synced = append(h.synced, handle.HasSynced)
	}
	return h, nil
}

// Run watches until ctx ends.
func (h *Host) Run(ctx context.Context) {
	h.factory.Start(ctx.Done())
	<-ctx.Done()
	h.factory.Shutdown()
}

// trim keeps of what is cached what this package reads.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Service:
		o.ManagedFields, o.Annotations, o.Labels = nil, nil, nil
		o.Spec = corev1.ServiceSpec{Ports: o.Spec.Ports}
		o.Status = corev1.ServiceStatus{}
	case *corev1.Node:
		o.ManagedFields, o.Annotations = nil, nil
		o.Spec = corev1.NodeSpec{}
		o.Status = corev1.NodeStatus{Addresses: o.Status.Addresses, Conditions: o.Status.Conditions}
	}
	return object, nil
}

// matters leaves out the kubelets' heartbeats.
func matters(before, after any) bool {
	switch b := before.(type) {
	case *corev1.Node:
		a, ok := after.(*corev1.Node)
		return !ok || ready(a) != ready(b) || !slices.Equal(a.Status.Addresses, b.Status.Addresses) || a.Labels[excluded] != b.Labels[excluded] ||
			(a.DeletionTimestamp != nil) != (b.DeletionTimestamp != nil)
	case *corev1.Service:
		a, ok := after.(*corev1.Service)
		return !ok || port(a) != port(b)
	}
	return true
}

// Seen fails until everything was listed once.
func (h *Host) Seen() error {
	for _, synced := range h.synced {
		if !synced() {
			return fault.New(fault.Unavailable, "host_cluster_unseen", "the host cluster's nodes and Services are not known yet").
				Do("the operator looks whether KubeBYON reaches the host cluster and may list and watch them")
		}
	}
	return nil
}

// Port gives the node port of the API behind a Service, or 0.
func (h *Host) Port(namespace, service string) uint16 {
	s, err := h.services.Services(namespace).Get(service)
	if err != nil {
		return 0 // the cache knows no other error than that there is none
	}
	return port(s)
}

func port(s *corev1.Service) uint16 {
	for _, p := range s.Spec.Ports {
		if p.Name == httpsPort && p.NodePort > 0 && p.NodePort < 1<<16 && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") {
			return uint16(p.NodePort)
		}
	}
	return 0
}

// Nodes gives the Ready nodes that have an address. Where none is Ready it gives all: then it is more likely that the host
// cluster's control plane has lost sight of them than that all are gone.
func (h *Host) Nodes() []edge.Node {
	list, err := h.nodes.List(labels.Everything())
	if err != nil {
		return nil
	}
	var out, unready []edge.Node
	for _, n := range list {
		addr, ok := h.address(n)
		_, kept := n.Labels[excluded]
		switch {
		case !ok || kept || n.DeletionTimestamp != nil:
		case ready(n):
			out = append(out, edge.Node{Name: n.Name, Addr: addr})
		default:
			unready = append(unready, edge.Node{Name: n.Name, Addr: addr})
		}
	}
	if len(out) == 0 {
		out = unready
	}
	slices.SortFunc(out, func(a, b edge.Node) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (h *Host) address(n *corev1.Node) (netip.Addr, bool) {
	other := netip.Addr{}
	for _, a := range n.Status.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		switch {
		case err != nil || addr.Zone() != "" || a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP:
		case a.Type == h.prefer:
			return addr.Unmap(), true
		case !other.IsValid():
			other = addr.Unmap()
		}
	}
	return other, other.IsValid()
}
