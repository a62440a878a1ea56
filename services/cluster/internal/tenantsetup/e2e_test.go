//go:build e2e

package tenantsetup_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/chart/charttest"
	"github.com/kubebyon/kubebyon/services/cluster/internal/tenantsetup"
)

// TestE2EControlPlane needs a host cluster whose first node's InternalIP answers NodePorts:
//
//	go run ./deploy/devhost up && KUBEBYON_TEST_HOST_KUBECONFIG=$PWD/.run/host.kubeconfig go test -tags e2e ./services/cluster/internal/tenantsetup/
func TestE2EControlPlane(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	path := os.Getenv("KUBEBYON_TEST_HOST_KUBECONFIG")
	if path == "" {
		t.Fatal("KUBEBYON_TEST_HOST_KUBECONFIG must name a host cluster")
	}
	host, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	host.QPS = -1
	client := kubernetes.NewForConfigOrDie(host)
	namespace := fmt.Sprintf("charttest-%d", time.Now().UnixNano()%1e9)
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 {
		t.Fatal("the host has no node: ", err)
	}
	var address string
	for _, a := range nodes.Items[0].Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			address = a.Address
		}
	}
	t.Cleanup(func() {
		_ = client.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{})
	})

	began := time.Now()
	since := func() string { return time.Since(began).Round(10 * time.Millisecond).String() }
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}, // the control plane asks for no more
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	values := chart.Values{ServerNames: []string{address}}.Map()
	if _, err := charttest.Install(t, host, namespace, values); err != nil {
		t.Fatal(err)
	}
	t.Log("helm done after ", since())
	pod := func() *corev1.Pod {
		for ctx.Err() == nil {
			pod, err := client.CoreV1().Pods(namespace).Get(ctx, charttest.Release+"-0", metav1.GetOptions{})
			if err == nil {
				return pod
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Fatal("no Pod")
		return nil
	}
	first := pod()
	t.Log("Pod exists after ", since())

	service, err := client.CoreV1().Services(namespace).Get(ctx, chart.ServiceName(charttest.Release), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	port := service.Spec.Ports[0].NodePort
	pki := func() *corev1.Secret {
		pki, err := client.CoreV1().Secrets(namespace).Get(ctx, chart.PKISecretName(charttest.Release), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pki
	}
	made := pki()
	endpoint := fmt.Sprintf("%s:%d", address, port)
	cfg, err := tenantsetup.SetupConfig("https://"+endpoint, made)
	if err != nil {
		t.Fatal(err)
	}
	settings := params(made.Data)
	settings.Endpoint, settings.APIServers = endpoint, []netip.AddrPort{netip.MustParseAddrPort(endpoint)}
	if err := tenantsetup.Apply(ctx, cfg, settings); err != nil {
		t.Fatal(err)
	}
	t.Log("applied after ", since())
	if err := tenantsetup.WaitNodeCanJoin(ctx, cfg, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	t.Log("a node can join after ", since())
	tenant := kubernetes.NewForConfigOrDie(cfg)
	if _, err := tenant.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	began = time.Now()
	if _, err := charttest.Upgrade(t, host, namespace, values); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	if now := pod(); now.UID != first.UID || now.DeletionTimestamp != nil {
		t.Error("an upgrade with the same values restarted the Pod")
	}
	if after := pki(); string(after.Data["ca.key"]) != string(made.Data["ca.key"]) || string(after.Data["apiserver.key"]) != string(made.Data["apiserver.key"]) {
		t.Error("an upgrade with the same values changed the keys")
	}

	began = time.Now()
	if _, err := charttest.Upgrade(t, host, namespace, chart.Values{ServerNames: []string{address, "tenant.example.org"}}.Map()); err != nil {
		t.Fatal(err)
	}
	for pod().UID == first.UID && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
	}
	second := pod()
	t.Log("new names: new Pod after ", since())
	named := rest.CopyConfig(cfg)
	named.ServerName = "tenant.example.org"
	await(t, ctx, named)
	t.Log("new names: served after ", since())
	if string(pki().Data["ca.key"]) != string(made.Data["ca.key"]) {
		t.Error("new names changed the CA")
	}

	began = time.Now()
	if err := client.CoreV1().Pods(namespace).Delete(ctx, second.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for pod().UID == second.UID && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
	}
	t.Log("deleted Pod: new one after ", since())
	await(t, ctx, cfg)
	if _, err := tenant.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Error("the tenant's data did not survive its Pod: ", err)
	}
	t.Log("deleted Pod: data is back after ", since())

	began = time.Now()
	if err := client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for ctx.Err() == nil {
		if _, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Log("gone after ", since())
}

func await(t *testing.T, ctx context.Context, cfg *rest.Config) {
	t.Helper()
	if err := tenantsetup.WaitNodeCanJoin(ctx, cfg, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
}
