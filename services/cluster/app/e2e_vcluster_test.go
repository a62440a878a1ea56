//go:build e2e

package app

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/chart/charttest"
	"github.com/kubebyon/kubebyon/services/cluster/internal/tenantsetup"
)

// platform is the namespace of the platform's Secret in these tests.
const platform = "e2e-platform"

func (w *world) platformSecret(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if _, err := w.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: platform}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.kube.CoreV1().Namespaces().Delete(context.Background(), platform, metav1.DeleteOptions{})
	})
	if _, err := w.kube.CoreV1().Secrets(platform).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vcluster-platform-api-key"},
		StringData: map[string]string{"accessKey": "canary", "host": "https://platform.example.com", "insecure": "true"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// syncer does inside the tenant what the vendor's own program does there.
func (w *world) syncer(t *testing.T, c clusterv1.Cluster) {
	t.Helper()
	ctx := t.Context()
	var client kubernetes.Interface
	w.eventually(3*time.Minute, "the stand-in's API", func() bool {
		pki, err := w.kube.CoreV1().Secrets(c.Namespace).Get(ctx, chart.PKISecretName(c.VClusterName), metav1.GetOptions{})
		if err != nil {
			return false
		}
		service, err := w.kube.CoreV1().Services(c.Namespace).Get(ctx, c.VClusterName, metav1.GetOptions{})
		if err != nil {
			return false
		}
		cfg, err := tenantsetup.SetupConfig("https://"+hostPort(c.ControlPlaneHost, service.Spec.Ports[0].NodePort), pki)
		if err != nil {
			return false
		}
		client = kubernetes.NewForConfigOrDie(cfg)
		_, err = client.CoreV1().Namespaces().Get(ctx, "kube-public", metav1.GetOptions{})
		return err == nil
	})
	// The exported kubeconfig's user is bound by the vendor's program too.
	if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "admin"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "kubernetes-admin"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	w.eventually(3*time.Minute, "the reason", func() bool {
		reason := w.get(c.ID).Reason
		return reason != nil && reason.Code == "tenant_incomplete" && strings.Contains(reason.Message, "kube-system/kubeadm-config")
	})
	for namespace, name := range map[string]string{"kube-system": "kubeadm-config", "kube-public": "cluster-info"} {
		if got := w.get(c.ID).Status; got != clusterv1.Provisioning {
			t.Errorf("%s before nodes can join", got)
		}
		if _, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"kubeconfig": "x"}}, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func TestE2EVCluster(t *testing.T) {
	w := newWorld(t)
	path, err := charttest.WriteVCluster(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	guide := "privateNodes: {enabled: true}\ncontrolPlane:\n  distro: {k8s: {enabled: true, image: {tag: v1.31.2}}}\n  coredns: {embedded: false}\n" +
		"  service: {spec: {type: NodePort}}\n  proxy: {extraSANs: [\"198.18.0.2\"]}\n  statefulSet: {resources: {requests: {cpu: 100m, memory: 256Mi, ephemeral-storage: 1Gi}}}\n" +
		"networking: {podCIDR: 10.64.0.0/16, serviceCIDR: 10.128.0.0/16}\n"
	if err := os.WriteFile(values, []byte(guide), 0o600); err != nil {
		t.Fatal(err)
	}
	r := w.start("KUBEBYON_CONTROL_PLANE=vcluster", "KUBEBYON_VCLUSTER_CHART="+path, "KUBEBYON_VCLUSTER_VALUES_FILE="+values,
		"KUBEBYON_PLATFORM_API_KEY_SOURCE_NAMESPACE="+platform)

	c := w.create(clusterv1.CreateRequest{Name: "e2e-vc"})
	w.eventually(3*time.Minute, "the error", func() bool { return w.get(c.ID).Status == clusterv1.Failed })
	if got := w.get(c.ID); got.Reason.Code != "platform_secret_missing" || !strings.Contains(got.Reason.Message, platform) || !strings.Contains(got.Reason.Action, "kubectl create secret") {
		t.Errorf("%+v", got.Reason)
	}
	if status := w.release(c); status != "" {
		t.Errorf("Helm ran without the Secret: the release is %s", status)
	}
	w.platformSecret(t)
	again, err := call(w, clusterv1.Retry, clusterv1.RetryRequest{ID: c.ID})
	if err != nil || again.Status != clusterv1.Provisioning {
		t.Fatal(again, err)
	}
	w.syncer(t, c)
	c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	if !strings.HasPrefix(c.APIEndpoint, "https://"+c.ControlPlaneHost+":") {
		t.Errorf("%+v", c)
	}
	secret, err := w.kube.CoreV1().Secrets(c.Namespace).Get(t.Context(), "vcluster-platform-api-key", metav1.GetOptions{})
	if err != nil || string(secret.Data["accessKey"]) != "canary" {
		t.Errorf("the copy: %v", err)
	}
	if strings.Contains(r.log.String()+w.timeline(c.ID), "canary") {
		t.Error("the access key is in the log or the events")
	}
	if _, err := call(w, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: c.ID}); err != nil {
		t.Error(err)
	}
	w.remove(c)
}

func TestE2EWhatIsWrongIsSaid(t *testing.T) {
	w := newWorld(t)
	values := filepath.Join(t.TempDir(), "values.yaml")
	for _, c := range []struct{ name, values, code, text string }{ // one of them to the end of its time, to be in error then
		{"image", "controlPlane: {distro: {k8s: {image: {registry: '127.0.0.1:1'}}}}", "image_pull_failed", "127.0.0.1:1/kube-apiserver"},
		{"volume", "controlPlane: {statefulSet: {persistence: {volumeClaim: {storageClass: none}}}}", "volume_unbound", "data-e2e-wrong-volume-0"},
		{"room", "controlPlane: {statefulSet: {resources: {requests: {memory: 900Gi}, limits: {memory: 900Gi}}}}", "unschedulable", "no host node can take"},
		{"crash", "controlPlane: {distro: {k8s: {apiServer: {extraArgs: [--no-such-flag]}}}}", "control_plane_crashing", "no-such-flag"},
		{"chart", "controlPlane: {distro: {k8s: {image: {tag: [1]}}}}", "chart_failed", "image"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(values, []byte(c.values), 0o600); err != nil {
				t.Fatal(err)
			}
			sub := *w
			sub.t = t
			limit := "5m"
			if c.name == "room" {
				limit = "15s"
			}
			r := sub.start("KUBEBYON_UPSTREAM_VALUES_FILE="+values, "KUBEBYON_PROVISION_TIMEOUT="+limit)
			made := sub.create(clusterv1.CreateRequest{Name: "e2e-wrong-" + c.name})
			sub.eventually(2*time.Minute, c.code, func() bool {
				got := sub.get(made.ID)
				return got.Reason != nil && got.Reason.Code == c.code && strings.Contains(got.Reason.Message, c.text) &&
					(c.name != "room" || got.Status == clusterv1.Failed)
			})
			sub.remove(made)
			r.kill()
		})
	}
}
