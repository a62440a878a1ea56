package chart_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/chart/charttest"
)

// A tenant's own control plane is the host here: what Helm stores and reads back needs an API server, not a node.
func TestUpgradeKeepsTheKeys(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	host := charttest.Start(t, nil)
	cfg := &rest.Config{Host: host.Server, BearerToken: string(host.PKI.Data[chart.TokenKey]), TLSClientConfig: rest.TLSClientConfig{CAData: host.PKI.Data[chart.CACertKey]}}
	client := kubernetes.NewForConfigOrDie(cfg)
	for {
		_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: charttest.Namespace}}, metav1.CreateOptions{})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	state := func() (*corev1.Secret, *corev1.Secret, *appsv1.StatefulSet) {
		t.Helper()
		pki, err := client.CoreV1().Secrets(charttest.Namespace).Get(ctx, chart.PKISecretName(charttest.Release), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		access, err := client.CoreV1().Secrets(charttest.Namespace).Get(ctx, chart.KubeconfigSecretName(charttest.Release), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		set, err := client.AppsV1().StatefulSets(charttest.Namespace).Get(ctx, charttest.Release, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pki, access, set
	}
	values := chart.Values{ServerNames: []string{"198.18.0.2"}}
	if _, err := charttest.Install(t, cfg, charttest.Namespace, values.Map()); err != nil {
		t.Fatal(err)
	}
	pki, access, set := state()

	if _, err := charttest.Upgrade(t, cfg, charttest.Namespace, values.Map()); err != nil {
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
	if _, err := charttest.Upgrade(t, cfg, charttest.Namespace, values.Map()); err != nil {
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
	if _, err := client.CoreV1().Secrets(charttest.Namespace).Update(ctx, newPKI, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := charttest.Upgrade(t, cfg, charttest.Namespace, values.Map()); err != nil {
		t.Fatal(err)
	}
	last, _, _ := state()
	if len(last.Data["scheduler.key"]) == 0 || string(last.Data["ca.key"]) != string(pki.Data["ca.key"]) {
		t.Error("a missing key was not made with the CA that is there")
	}
}
