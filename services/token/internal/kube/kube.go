// Package kube puts bootstrap tokens into tenants and reads what a joining machine must know, with client-go. Of the
// host cluster it reads one Secret and one Service per tenant, and the nodes; it must never write there.
package kube

import (
	"context"
	"encoding/json"
	"net/netip"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/services/token/internal/token"
)

const (
	// patience is how long a tenant and its host may take together; callers are promised an answer within 5 s.
	patience = 4500 * time.Millisecond

	namespace    = "kube-system"
	secretPrefix = "bootstrap-token-"
	group        = "system:bootstrappers:kubeadm:default-node-token"
)

// Tenants is token.Tenants over the host cluster's API. Joining is rare, so nothing is cached between calls: a rotated
// credential or an upgraded tenant counts at once.
type Tenants struct {
	host          kubernetes.Interface
	allowLoopback bool
}

// New reaches tenants through host, whose credential needs get on secrets and services, and list on nodes. allowLoopback lets their APIs
// be at a loopback address; it is for tests on one machine.
func New(host kubernetes.Interface, allowLoopback bool) *Tenants {
	return &Tenants{host: host, allowLoopback: allowLoopback}
}

// Issue creates the Secret that kube-apiserver's bootstrap authenticator, the bootstrap signer, the token cleaner and a
// vCluster's join script all read.
func (t *Tenants) Issue(ctx context.Context, c clusterv1.Cluster, v token.Value, expires time.Time) (string, error) {
	var endpoint string
	err := t.reach(ctx, c, func(ctx context.Context, conn *tenant.Connection, client kubernetes.Interface) error {
		if !speakable.MatchString(conn.Endpoint) {
			return fault.New(fault.Unavailable, "tenant_endpoint_invalid", "the address of the control plane of cluster %q cannot be used in a command", c.Name).
				Do("the operator corrects the cluster's control_plane_host")
		}
		endpoint = conn.Endpoint
		_, err := client.CoreV1().Secrets(namespace).Create(ctx, secret(v, expires), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return fault.New(fault.Conflict, "token_id_taken", "a bootstrap token of that id exists already").Do("try again").Because(err)
		}
		return err
	})
	return endpoint, err
}

// speakable is an https address that no shell reads anything into.
var speakable = regexp.MustCompile(`^https://[A-Za-z0-9.\[\]:-]+$`)

func secret(v token.Value, expires time.Time) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: secretPrefix + v.ID(), Namespace: namespace,
			Labels: map[string]string{"vcluster.loft.sh/token": "true", "vcluster.loft.sh/token-node-type": "worker"},
		},
		Type: corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			"token-id":                       []byte(v.ID()),
			"token-secret":                   []byte(v.Secret()),
			"expiration":                     []byte(expires.UTC().Format(time.RFC3339)),
			"usage-bootstrap-signing":        []byte("true"),
			"usage-bootstrap-authentication": []byte("true"),
			"auth-extra-groups":              []byte(group),
			"description":                    []byte("KubeBYON join token"),
		},
	}
}

// Withdraw deletes the Secret.
func (t *Tenants) Withdraw(ctx context.Context, c clusterv1.Cluster, tokenID string) error {
	return t.reach(ctx, c, func(ctx context.Context, _ *tenant.Connection, client kubernetes.Interface) error {
		err := client.CoreV1().Secrets(namespace).Delete(ctx, secretPrefix+tokenID, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

var version = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+`)

// Facts reads the version and the cluster DNS from the tenant itself.
func (t *Tenants) Facts(ctx context.Context, c clusterv1.Cluster) (token.Facts, error) {
	var facts token.Facts
	err := t.reach(ctx, c, func(ctx context.Context, conn *tenant.Connection, client kubernetes.Interface) error {
		dns, err := client.CoreV1().Services(namespace).Get(ctx, "kube-dns", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return noDNS(c).Because(err)
		}
		if err != nil {
			return err
		}
		if _, err := netip.ParseAddr(dns.Spec.ClusterIP); err != nil {
			return noDNS(c).Because(err)
		}
		// The discovery client's own method takes no context.
		text, err := client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
		if err != nil {
			return err
		}
		var info struct {
			GitVersion string `json:"gitVersion"`
		}
		if err := json.Unmarshal(text, &info); err != nil {
			return err
		}
		// A distribution's suffix (+k3s1) names no release of Kubernetes' own binaries.
		release := version.FindString(info.GitVersion)
		if release == "" {
			return fault.New(fault.Unavailable, "tenant_version_unknown", "the control plane of cluster %q reports no Kubernetes version", c.Name).
				Do("the operator looks at the cluster's events")
		}
		facts = token.Facts{Endpoint: conn.Endpoint, CAPEM: conn.CAPEM, DNS: dns.Spec.ClusterIP, KubernetesVersion: release}
		return nil
	})
	return facts, err
}

func noDNS(c clusterv1.Cluster) *fault.Error {
	return fault.New(fault.Precondition, "tenant_dns_missing", "the cluster %q has no DNS Service kube-system/kube-dns yet", c.Name).
		Do("wait a minute and try again; if it stays, the operator looks at the cluster's events")
}
