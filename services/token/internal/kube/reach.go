package kube

import (
	"context"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/tenant"
)

// reach gives use a client of the cluster's tenant and turns what goes wrong into a fault that names the cluster.
func (t *Tenants) reach(ctx context.Context, c clusterv1.Cluster, use func(context.Context, *tenant.Connection, kubernetes.Interface) error) error {
	inner, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := tenant.Access(inner, t.host, tenant.Ref{Namespace: c.Namespace, Name: c.VClusterName, Host: c.ControlPlaneHost,
		Published: c.PublicAccessMode == clusterv1.LoadBalancer, AllowLoopback: t.allowLoopback})
	if err != nil {
		return tenant.Explain(ctx, c.Name, "", err)
	}
	transport, err := rest.HTTPClientFor(conn.Config)
	if err != nil {
		return tenant.Explain(ctx, c.Name, conn.Endpoint, err)
	}
	defer utilnet.CloseIdleConnectionsFor(transport.Transport)
	client, err := kubernetes.NewForConfigAndClient(conn.Config, transport)
	if err != nil {
		return tenant.Explain(ctx, c.Name, conn.Endpoint, err)
	}
	return tenant.Explain(ctx, c.Name, conn.Endpoint, use(inner, conn, client))
}
