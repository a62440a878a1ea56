package tenantsetup_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/pkg/fault"
	access "github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/chart/charttest"
	"github.com/kubebyon/kubebyon/services/cluster/internal/tenantsetup"
)

func params(pki map[string][]byte) tenantsetup.Params {
	return tenantsetup.Params{
		Endpoint:          "198.18.0.2:31234",
		APIServers:        []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:31234")},
		CA:                pki[chart.CACertKey],
		PodCIDR:           netip.MustParsePrefix("10.64.0.0/16"),
		ServiceCIDR:       netip.MustParsePrefix("10.128.0.0/16"),
		KubernetesVersion: kubetest.Version,
	}
}

// The whole way of a fresh tenant, on the chart's own command lines: setup, then a worker's bootstrap with a join token.
func TestANodeJoinsAfterApply(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	tenant := charttest.Start(t, nil)
	cfg, err := tenantsetup.SetupConfig(tenant.Server, tenant.PKI)
	if err != nil {
		t.Fatal(err)
	}
	if err := tenantsetup.NodeCanJoin(ctx, cfg); !fault.Is(err, fault.Unavailable) {
		t.Errorf("before its start a tenant should be unavailable: %v", err)
	}
	if err := tenantsetup.Apply(ctx, cfg, params(tenant.PKI.Data)); err != nil {
		t.Fatal(err)
	}
	if err := tenantsetup.WaitNodeCanJoin(ctx, cfg, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := tenantsetup.Apply(ctx, cfg, params(tenant.PKI.Data)); err != nil {
		t.Fatal("again: ", err)
	}

	// The exported kubeconfig is an administrator's now, and no more than that is needed from here on.
	exported, err := clientcmd.RESTConfigFromKubeConfig(tenant.Access.Data["config"])
	if err != nil {
		t.Fatal(err)
	}
	exported.Host = tenant.Server
	admin := kubernetes.NewForConfigOrDie(exported)
	if _, err := admin.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": "abcdef", "token-secret": "0123456789abcdef",
			"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
			"expiration":        time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	t.Run("cluster-info is public and signed", func(t *testing.T) {
		anonymous := kubernetes.NewForConfigOrDie(&rest.Config{Host: tenant.Server, TLSClientConfig: cfg.TLSClientConfig})
		info := eventually(t, ctx, func() (*corev1.ConfigMap, error) {
			info, err := anonymous.CoreV1().ConfigMaps("kube-public").Get(ctx, "cluster-info", metav1.GetOptions{})
			if err == nil && info.Data["jws-kubeconfig-abcdef"] == "" {
				err = fmt.Errorf("not signed yet: %v", info.Data)
			}
			return info, err
		})
		said, err := clientcmd.Load([]byte(info.Data["kubeconfig"]))
		if err != nil {
			t.Fatal(err)
		}
		if got := said.Clusters[""]; got == nil || got.Server != "https://198.18.0.2:31234" || !bytes.Equal(got.CertificateAuthorityData, tenant.PKI.Data["ca.crt"]) {
			t.Errorf("cluster-info says %+v", got)
		}
		if _, err := anonymous.CoreV1().ConfigMaps("kube-public").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("anonymous may list kube-public: %v", err)
		}
		// Applying again must not take the signature away.
		if err := tenantsetup.Apply(ctx, cfg, params(tenant.PKI.Data)); err != nil {
			t.Fatal(err)
		}
		if again, err := anonymous.CoreV1().ConfigMaps("kube-public").Get(ctx, "cluster-info", metav1.GetOptions{}); err != nil || again.Data["jws-kubeconfig-abcdef"] == "" {
			t.Errorf("Apply took the signature away: %v", err)
		}
	})

	t.Run("a join token becomes a node", func(t *testing.T) {
		joiner := kubernetes.NewForConfigOrDie(&rest.Config{Host: tenant.Server, BearerToken: "abcdef.0123456789abcdef", TLSClientConfig: cfg.TLSClientConfig})
		if _, err := joiner.CoreV1().Nodes().Get(ctx, "worker-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a join token should be able to ask for its name: %v", err)
		}
		if _, err := joiner.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a join token may list Secrets: %v", err)
		}
		key, request := signingRequest(t, "worker-1")
		made, err := joiner.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "node-csr-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: request, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		signed := eventually(t, ctx, func() (*certificatesv1.CertificateSigningRequest, error) {
			csr, err := joiner.CertificatesV1().CertificateSigningRequests().Get(ctx, made.Name, metav1.GetOptions{})
			if err == nil && len(csr.Status.Certificate) == 0 {
				err = fmt.Errorf("not signed yet: %v", csr.Status.Conditions)
			}
			return csr, err
		})
		node := kubernetes.NewForConfigOrDie(&rest.Config{Host: tenant.Server, TLSClientConfig: rest.TLSClientConfig{CAData: cfg.CAData, CertData: signed.Status.Certificate, KeyData: key}})
		if _, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", Labels: map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": "worker-1"}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, ctx, func() (*corev1.Node, error) {
			got, err := admin.CoreV1().Nodes().Get(ctx, "worker-1", metav1.GetOptions{})
			if err == nil && !strings.HasPrefix(got.Spec.PodCIDR, "10.64.") {
				err = fmt.Errorf("the node has the Pod network %q", got.Spec.PodCIDR)
			}
			return got, err
		})
		// kube-proxy and flannel are made for it, though it is not ready.
		for namespace, selector := range map[string]string{"kube-system": "k8s-app=kube-proxy", "kube-flannel": "app=flannel"} {
			eventually(t, ctx, func() (*corev1.PodList, error) {
				pods, err := admin.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
				if err == nil && len(pods.Items) != 1 {
					err = fmt.Errorf("%d Pods of %s", len(pods.Items), selector)
				}
				return pods, err
			})
		}
	})

	t.Run("Pods find the API at the host", func(t *testing.T) {
		slices, err := admin.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
		if err != nil {
			t.Fatal(err)
		}
		if len(slices.Items) != 1 || slices.Items[0].Endpoints[0].Addresses[0] != "198.18.0.2" || *slices.Items[0].Ports[0].Port != 31234 {
			t.Errorf("default/kubernetes leads to %v", slices.Items)
		}
		dns, err := admin.CoreV1().Services("kube-system").Get(ctx, "kube-dns", metav1.GetOptions{})
		if err != nil || dns.Spec.ClusterIP != "10.128.0.10" {
			t.Errorf("kube-dns: %v %v", dns.Spec.ClusterIP, err)
		}
	})

	t.Run("a tenant's change of CoreDNS's size stays", func(t *testing.T) {
		scale, err := admin.AppsV1().Deployments("kube-system").GetScale(ctx, "coredns", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		scale.Spec.Replicas = 3
		if _, err := admin.AppsV1().Deployments("kube-system").UpdateScale(ctx, "coredns", scale, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		moved := params(tenant.PKI.Data)
		moved.Endpoint = "tenant.example.org:443"
		if err := tenantsetup.Apply(ctx, cfg, moved); err != nil {
			t.Fatal(err)
		}
		if got, err := admin.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{}); err != nil || *got.Spec.Replicas != 3 {
			t.Errorf("Apply set the replicas back: %v", err)
		}
		config, err := admin.CoreV1().ConfigMaps("kube-system").Get(ctx, "kube-proxy", metav1.GetOptions{})
		if err != nil || !strings.Contains(config.Data["kubeconfig.conf"], "https://tenant.example.org:443") {
			t.Errorf("kube-proxy does not know the new endpoint: %v", err)
		}
	})

	t.Run("what is missing is named", func(t *testing.T) {
		if err := admin.RbacV1().ClusterRoleBindings().Delete(ctx, "kubebyon:approve-node-client", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		err := tenantsetup.NodeCanJoin(ctx, cfg)
		if !fault.Is(err, fault.Precondition) || !strings.Contains(err.Error(), "kubebyon:approve-node-client") {
			t.Errorf("without a binding: %v", err)
		}
		tenant.Kill("kube-apiserver")
		if err := tenantsetup.NodeCanJoin(ctx, cfg); !fault.Is(err, fault.Unavailable) {
			t.Errorf("without an API server: %v", err)
		}
	})
}

func TestApplyEndsWithItsContext(t *testing.T) {
	ca := charttest.Render(t, nil)
	pki := charttest.Secret(t, ca["Secret/"+chart.PKISecretName(charttest.Release)])
	cfg, err := tenantsetup.SetupConfig("https://127.0.0.1:1", pki)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	err = tenantsetup.Apply(ctx, cfg, params(pki.Data))
	if !fault.Is(err, fault.Timeout) || fault.From(err).Code != "tenant_api_not_ready" {
		t.Error(err)
	}
	if strings.Contains(err.Error(), string(pki.Data[chart.TokenKey])) {
		t.Error("the error tells the setup token")
	}
	if err := tenantsetup.WaitNodeCanJoin(ctx, cfg, 10*time.Millisecond); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
}

// No time is waited out for a host at which no control plane may be.
func TestApplyEndsAtOnceWhereTheHostIsRefused(t *testing.T) {
	pki := charttest.Secret(t, charttest.Render(t, nil)["Secret/"+chart.PKISecretName(charttest.Release)])
	cfg, err := tenantsetup.SetupConfig("https://localhost:31234", pki)
	if err != nil {
		t.Fatal(err)
	}
	access.Guard(cfg, false)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tenantsetup.Apply(ctx, cfg, params(pki.Data)); !fault.Is(err, fault.Precondition) || fault.From(err).Code != "host_refused" || ctx.Err() != nil {
		t.Error(err)
	}
}

func TestSetupConfigIsRefused(t *testing.T) {
	full := &corev1.Secret{Data: map[string][]byte{chart.TokenKey: []byte("t"), chart.CACertKey: []byte("c")}}
	for _, server := range []string{"", "198.18.0.2:31234", "http://198.18.0.2:31234", "https://198.18.0.2", "https://:31234"} {
		if _, err := tenantsetup.SetupConfig(server, full); err == nil {
			t.Errorf("%q: accepted", server)
		}
	}
	for _, missing := range []string{chart.TokenKey, chart.CACertKey} {
		secret := full.DeepCopy()
		delete(secret.Data, missing)
		if _, err := tenantsetup.SetupConfig("https://198.18.0.2:31234", secret); err == nil {
			t.Errorf("without %s: accepted", missing)
		}
	}
}

func eventually[T any](t *testing.T, ctx context.Context, try func() (T, error)) T {
	t.Helper()
	for {
		got, err := try()
		if err == nil {
			return got
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func signingRequest(t *testing.T, node string) (key, request []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}, private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})
}
