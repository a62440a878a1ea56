package charttest_test

import (
	"crypto/x509"
	"encoding/pem"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/chart/charttest"
)

// What Helm stores and reads back needs an API server, not a node.
func TestUpgradeKeepsTheKeys(t *testing.T) {
	ctx := t.Context()
	cfg := kubetest.Shared(t)
	client := kubernetes.NewForConfigOrDie(cfg)
	namespace := kubetest.Namespace(t, cfg)
	state := func() (*corev1.Secret, *corev1.Secret, *appsv1.StatefulSet) {
		t.Helper()
		pki, err := client.CoreV1().Secrets(namespace).Get(ctx, chart.PKISecretName(charttest.Release), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		access, err := client.CoreV1().Secrets(namespace).Get(ctx, chart.KubeconfigSecretName(charttest.Release), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		set, err := client.AppsV1().StatefulSets(namespace).Get(ctx, charttest.Release, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pki, access, set
	}
	values := chart.Values{ServerNames: []string{"198.18.0.2"}}
	if _, err := charttest.Install(t, cfg, namespace, values.Map()); err != nil {
		t.Fatal(err)
	}
	pki, access, set := state()

	if _, err := charttest.Upgrade(t, cfg, namespace, values.Map()); err != nil {
		t.Fatal(err)
	}
	samePKI, sameAccess, sameSet := state()
	if !cmp.Equal(samePKI.Data, pki.Data) || !cmp.Equal(sameAccess.Data, access.Data) {
		t.Error("an upgrade with the same values changed the keys")
	}
	if diff := cmp.Diff(set.Spec, sameSet.Spec); diff != "" || sameSet.Generation != set.Generation {
		t.Errorf("an upgrade with the same values restarts the Pod:\n%s", diff)
	}

	values.ServerNames = append(values.ServerNames, "tenant.example.org")
	if _, err := charttest.Upgrade(t, cfg, namespace, values.Map()); err != nil {
		t.Fatal(err)
	}
	newPKI, newAccess, newSet := state()
	changed := []string{}
	for key := range newPKI.Data {
		if string(newPKI.Data[key]) != string(pki.Data[key]) {
			changed = append(changed, key)
		}
	}
	slices.Sort(changed)
	if want := []string{"apiserver.crt", "apiserver.key"}; !slices.Equal(changed, want) {
		t.Errorf("new names changed %v, want %v", changed, want)
	}
	if err := certificate(t, newPKI.Data["apiserver.crt"]).VerifyHostname("tenant.example.org"); err != nil {
		t.Error(err)
	}
	if err := certificate(t, newPKI.Data["apiserver.crt"]).CheckSignatureFrom(certificate(t, pki.Data["ca.crt"])); err != nil {
		t.Error(err)
	}
	if !cmp.Equal(newAccess.Data, access.Data) {
		t.Error("new names changed the exported kubeconfig")
	}
	if maps.Equal(newSet.Spec.Template.Annotations, set.Spec.Template.Annotations) {
		t.Error("new names do not restart the Pod")
	}

	// A chart that knows more keys than the one that made the Secret adds what is missing.
	delete(newPKI.Data, "scheduler.key")
	delete(newPKI.Data, "scheduler.crt")
	if _, err := client.CoreV1().Secrets(namespace).Update(ctx, newPKI, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := charttest.Upgrade(t, cfg, namespace, values.Map()); err != nil {
		t.Fatal(err)
	}
	last, _, _ := state()
	if len(last.Data["scheduler.key"]) == 0 || string(last.Data["ca.key"]) != string(pki.Data["ca.key"]) {
		t.Error("a missing key was not made with the CA that is there")
	}
}

func certificate(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}
