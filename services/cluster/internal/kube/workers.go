package kube

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

// Workers implements cluster.Tenants. What a tenant's API says is its own word: what is no name is left out.
func (h *Host) Workers(ctx context.Context, c cluster.Cluster) ([]clusterv1.Worker, error) {
	connection, err := tenant.Access(ctx, h.client, h.ref(c))
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(connection.Config)
	if err != nil {
		return nil, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: clusterv1.MaxWorkers})
	if err != nil {
		return nil, tenant.Explain(context.WithoutCancel(ctx), c.Name, connection.Endpoint, err)
	}
	var out []clusterv1.Worker
	for _, node := range nodes.Items[:min(len(nodes.Items), clusterv1.MaxWorkers)] {
		if len(validation.IsDNS1123Subdomain(node.Name)) > 0 {
			continue
		}
		worker := clusterv1.Worker{Name: node.Name}
		for _, a := range node.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && worker.InternalIP == "" && addr.Zone() == "" {
				worker.InternalIP = addr.String()
			}
		}
		out = append(out, worker)
	}
	return out, nil
}
