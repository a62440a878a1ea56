package tenant_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
)

// exported is a kubeconfig as control planes write it.
func exported(cfg *rest.Config, server string) string {
	b := base64.StdEncoding.EncodeToString
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: my-vcluster
  cluster:
    certificate-authority-data: %s
    server: %s
contexts:
- name: my-vcluster
  context: {cluster: my-vcluster, user: my-vcluster}
current-context: my-vcluster
preferences: {}
users:
- name: my-vcluster
  user:
    client-certificate-data: %s
    client-key-data: %s
`, b(cfg.CAData), server, b(cfg.CertData), b(cfg.KeyData))
}

// TestAccess runs on a real apiserver, which is both the host and, behind its own port as a node port, the tenant.
func TestAccess(t *testing.T) {
	cfg := kubetest.Start(t, kubetest.Flags("--service-node-port-range=1024-65535"))
	host, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(cfg.Host)
	port, _ := strconv.Atoi(u.Port())
	ns := kubetest.Namespace(t, cfg)

	put := func(t *testing.T, name, kubeconfig string) {
		t.Helper()
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vc-" + name, Namespace: ns}, Data: map[string][]byte{}}
		if kubeconfig != "" {
			s.Data["config"] = []byte(kubeconfig)
		}
		_ = host.CoreV1().Secrets(ns).Delete(t.Context(), s.Name, metav1.DeleteOptions{})
		if _, err := host.CoreV1().Secrets(ns).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	service := func(t *testing.T, name string, kind corev1.ServiceType, ports ...corev1.ServicePort) {
		t.Helper()
		_, err := host.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Spec: corev1.ServiceSpec{Type: kind, Ports: ports}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	// The port named kubelet comes first on purpose: the right one is chosen by its name.
	service(t, "one", corev1.ServiceTypeNodePort, corev1.ServicePort{Name: "kubelet", Port: 10250}, corev1.ServicePort{Name: "https", Port: 443, NodePort: int32(port)})
	service(t, "two", corev1.ServiceTypeNodePort, corev1.ServicePort{Name: "kubelet", Port: 10250})
	service(t, "three", corev1.ServiceTypeClusterIP, corev1.ServicePort{Name: "https", Port: 443})
	local := exported(cfg, "https://localhost:8443")

	t.Run("localhost becomes host and node port, and works", func(t *testing.T) {
		put(t, "one", local)
		c, err := tenant.Access(t.Context(), host, tenant.Ref{Namespace: ns, Name: "one", Host: "127.0.0.1", AllowLoopback: true})
		if err != nil {
			t.Fatal(err)
		}
		if c.Endpoint != cfg.Host || string(c.CAPEM) != string(cfg.CAData) || c.Config.QPS < 10 || c.Config.Burst < 20 || c.Config.Timeout != 0 {
			t.Fatalf("%s, %+v", c.Endpoint, c.Config)
		}
		refused, err := tenant.Access(t.Context(), host, tenant.Ref{Namespace: ns, Name: "one", Host: "127.0.0.1"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kubernetes.NewForConfigOrDie(refused.Config).CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{}); fault.From(err).Code != "host_refused" {
			t.Errorf("a loopback address without leave: %v", err)
		}
		again, err := clientcmd.RESTConfigFromKubeConfig(c.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		for _, use := range []*rest.Config{c.Config, again} {
			client, err := kubernetes.NewForConfig(use)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		s, err := host.CoreV1().Secrets(ns).Get(t.Context(), "vc-one", metav1.GetOptions{})
		if err != nil || string(s.Data["config"]) != local {
			t.Fatal("the Secret itself was changed")
		}
	})
	for h, want := range map[string]string{"2001:db8::1": "https://[2001:db8::1]:", "kube.example.com": "https://kube.example.com:", "::1": "https://[::1]:"} {
		c, err := tenant.Access(t.Context(), host, tenant.Ref{Namespace: ns, Name: "one", Host: h})
		if err != nil || c.Endpoint != want+u.Port() {
			t.Errorf("%s became %v, %v", h, c, err)
		}
	}
	t.Run("a published one is asked at a host node, under its domain", func(t *testing.T) {
		put(t, "one", strings.Replace(exported(cfg, "https://203.0.113.1:6443"), "    server:", "    tls-server-name: elsewhere\n    server:", 1))
		ref := tenant.Ref{Namespace: ns, Name: "one", Host: "kubernetes.default.svc", Published: true, AllowLoopback: true}
		ask := func(ref tenant.Ref) (*tenant.Connection, error) {
			c, err := tenant.Access(t.Context(), host, ref)
			if err != nil {
				t.Fatal(err)
			}
			_, err = kubernetes.NewForConfigOrDie(c.Config).CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
			return c, err
		}
		if _, err := ask(ref); fault.From(err).Code != "host_nodes_unknown" {
			t.Errorf("without a node: %v", err)
		}
		// The first is not Ready, the second does not answer; the third has an outer address alone.
		for i, n := range []struct {
			kind    corev1.NodeAddressType
			address string
			ready   corev1.ConditionStatus
		}{{corev1.NodeInternalIP, "192.0.2.1", corev1.ConditionFalse}, {corev1.NodeInternalIP, "127.0.0.2", corev1.ConditionTrue}, {corev1.NodeExternalIP, "127.0.0.1", corev1.ConditionTrue}} {
			node, err := host.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			node.Status.Addresses = []corev1.NodeAddress{{Type: n.kind, Address: n.address}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: n.ready}}
			if _, err := host.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		c, err := ask(ref)
		if err != nil || c.Endpoint != "https://kubernetes.default.svc:443" || !strings.Contains(string(c.Kubeconfig), "server: https://kubernetes.default.svc:443") ||
			strings.Contains(string(c.Kubeconfig), "elsewhere") {
			t.Errorf("%s, %v\n%s", c.Endpoint, err, c.Kubeconfig)
		}
		ref.Host = "other.example.com"
		if _, err := ask(ref); err == nil || !strings.Contains(err.Error(), "certificate is valid for") {
			t.Errorf("another's certificate: %v", err)
		}
		ref.Host, ref.AllowLoopback = "kubernetes.default.svc", false
		if _, err := ask(ref); fault.From(err).Code != "host_refused" {
			t.Errorf("a loopback address without leave: %v", err)
		}
		ref.Name = "two" // without a port https
		put(t, "two", local)
		if _, err := ask(ref); fault.From(err).Code != "control_plane_service_missing" {
			t.Errorf("without a node port: %v", err)
		}
		put(t, "one", local)
	})
	t.Run("another server stays, without a Service", func(t *testing.T) {
		put(t, "four", exported(cfg, "https://kube.example.com"))
		c, err := tenant.Access(t.Context(), host, tenant.Ref{Namespace: ns, Name: "four"})
		if err != nil || c.Endpoint != "https://kube.example.com:443" {
			t.Fatalf("%v, %v", c, err)
		}
	})
	t.Run("the TLS server name and a token are taken along", func(t *testing.T) {
		text := strings.Replace(local, "server: https://localhost:8443", "server: https://127.0.0.1:8443\n    tls-server-name: kubernetes", 1)
		text += "    token: abc.def\n"
		put(t, "one", text)
		c, err := tenant.Access(t.Context(), host, tenant.Ref{Namespace: ns, Name: "one", Host: "127.0.0.1"})
		if err != nil || c.Config.ServerName != "kubernetes" || c.Config.BearerToken != "abc.def" {
			t.Fatalf("%+v, %v", c, err)
		}
		put(t, "one", local)
	})

	for name, c := range map[string]struct {
		ref     tenant.Ref
		config  string
		secret  bool
		code    string
		message string
	}{
		"no Secret":            {ref: tenant.Ref{Name: "none", Host: "h"}, code: "kubeconfig_missing"},
		"an empty Secret":      {ref: tenant.Ref{Name: "five", Host: "h"}, secret: true, code: "kubeconfig_missing"},
		"not YAML":             {ref: tenant.Ref{Name: "five", Host: "h"}, secret: true, config: ":\t:", code: "kubeconfig_broken"},
		"exec":                 {ref: tenant.Ref{Name: "five", Host: "h"}, secret: true, config: local + "    exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh}\n", code: "kubeconfig_broken", message: "exec"},
		"no host":              {ref: tenant.Ref{Name: "one"}, code: "control_plane_host_unset"},
		"a host with a port":   {ref: tenant.Ref{Name: "one", Host: "a:1"}, code: "control_plane_host_invalid"},
		"a URL":                {ref: tenant.Ref{Name: "one", Host: "https://a"}, code: "control_plane_host_invalid"},
		"the metadata address": {ref: tenant.Ref{Name: "one", Host: "169.254.169.254"}, code: "control_plane_host_invalid"},
		"a short address":      {ref: tenant.Ref{Name: "one", Host: "127.1"}, code: "control_plane_host_invalid"},
		"no Service":           {ref: tenant.Ref{Name: "five", Host: "h"}, secret: true, config: local, code: "control_plane_service_missing"},
		"no port https":        {ref: tenant.Ref{Name: "two", Host: "h"}, secret: true, config: local, code: "control_plane_service_missing"},
		"no node port":         {ref: tenant.Ref{Name: "three", Host: "h"}, secret: true, config: local, code: "control_plane_service_missing"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.secret {
				put(t, c.ref.Name, c.config)
			}
			c.ref.Namespace = ns
			_, err := tenant.Access(t.Context(), host, c.ref)
			var f *fault.Error
			if !errors.As(err, &f) || f.Kind != fault.Precondition || f.Code != c.code || !strings.Contains(f.Message, c.message) || f.Action == "" {
				t.Fatalf("got %v", err)
			}
		})
	}
	t.Run("the host cluster is away", func(t *testing.T) {
		away := rest.CopyConfig(cfg)
		away.Host = "https://127.0.0.1:1"
		client, err := kubernetes.NewForConfig(away)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tenant.Access(t.Context(), client, tenant.Ref{Namespace: ns, Name: "one", Host: "h"}); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("got %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := tenant.Access(ctx, host, tenant.Ref{Namespace: ns, Name: "one", Host: "h"}); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("HostConfig", func(t *testing.T) {
		c, err := tenant.HostConfig(kubetest.Kubeconfig(t, cfg))
		if err != nil || c.QPS < 10 {
			t.Fatalf("%v, %v", c, err)
		}
		client, err := kubernetes.NewForConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Discovery().ServerVersion(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestHostConfigErrorsNameTheVariable(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(broken, []byte("clusters: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "/nowhere/kubeconfig", broken} {
		_, err := tenant.HostConfig(path)
		if err == nil || !strings.Contains(err.Error(), "KUBEBYON_KUBECONFIG_PATH") || !strings.Contains(err.Error(), "it accepts") {
			t.Errorf("%q: got %v", path, err)
		}
	}
}
