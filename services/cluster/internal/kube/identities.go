package kube

import (
	"context"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
	"github.com/kubebyon/kubebyon/services/cluster/internal/tenantaccess"
)

// patience is how long a tenant and its host may take together; callers are promised an answer within 5 s.
const patience = 4500 * time.Millisecond

// reach gives use a client of the cluster's tenant and turns what goes wrong into a fault that names the cluster.
func (h *Host) reach(ctx context.Context, c cluster.Cluster, use func(context.Context, *tenant.Connection, kubernetes.Interface) error) error {
	inner, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	connection, err := tenant.Access(inner, h.client, h.ref(c))
	if err != nil {
		return tenant.Explain(ctx, c.Name, "", err)
	}
	transport, err := rest.HTTPClientFor(connection.Config)
	if err != nil {
		return tenant.Explain(ctx, c.Name, connection.Endpoint, err)
	}
	defer utilnet.CloseIdleConnectionsFor(transport.Transport)
	client, err := kubernetes.NewForConfigAndClient(connection.Config, transport)
	if err != nil {
		return tenant.Explain(ctx, c.Name, connection.Endpoint, err)
	}
	return tenant.Explain(ctx, c.Name, connection.Endpoint, use(inner, connection, client))
}

// Admit implements cluster.Identities.
func (h *Host) Admit(ctx context.Context, c cluster.Cluster, k cluster.Kubeconfig, account string) (text string, expires time.Time, err error) {
	err = h.reach(ctx, c, func(ctx context.Context, connection *tenant.Connection, client kubernetes.Interface) error {
		id := tenantaccess.Identity{Name: k.Identity, Access: k.Access, UserID: k.UserID, Account: account}
		if err := tenantaccess.Grant(ctx, client, id); err != nil {
			return err
		}
		token, until, err := tenantaccess.Token(ctx, client, k.Identity, k.ExpiresAt.Sub(k.CreatedAt))
		if err != nil {
			return err
		}
		written, err := clientcmd.Write(*personal(c, k, connection, token))
		text, expires = string(written), until
		return err
	})
	return text, expires, err
}

// personal holds an address, a CA and a token, and nothing else that the tenant's own kubeconfig may hold.
func personal(c cluster.Cluster, k cluster.Kubeconfig, connection *tenant.Connection, token string) *clientcmdapi.Config {
	out := clientcmdapi.NewConfig()
	server := clientcmdapi.Cluster{Server: connection.Endpoint, CertificateAuthorityData: connection.CAPEM, TLSServerName: connection.Config.ServerName}
	if c.APIEndpoint != "" {
		server.Server = c.APIEndpoint
	}
	out.Clusters[c.VClusterName] = &server
	out.AuthInfos[k.Identity] = &clientcmdapi.AuthInfo{Token: token}
	out.Contexts[c.VClusterName] = &clientcmdapi.Context{Cluster: c.VClusterName, AuthInfo: k.Identity}
	out.CurrentContext = c.VClusterName
	return out
}

// Expel implements cluster.Identities.
func (h *Host) Expel(ctx context.Context, c cluster.Cluster, k cluster.Kubeconfig) error {
	return h.reach(ctx, c, func(ctx context.Context, _ *tenant.Connection, client kubernetes.Interface) error {
		return tenantaccess.Revoke(ctx, client, k.Identity)
	})
}

// UserName implements cluster.Identities.
func (*Host) UserName(k cluster.Kubeconfig) string { return tenantaccess.UserName(k.Identity) }
