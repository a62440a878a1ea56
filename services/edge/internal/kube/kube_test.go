package kube_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/services/edge/internal/kube"
)

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came to this: %s", what)
		}
	}
}

// watch gives a Host that has seen everything, and the channel of its changes.
func watch(t *testing.T, client kubernetes.Interface, prefer corev1.NodeAddressType) (*kube.Host, chan struct{}) {
	t.Helper()
	changed := make(chan struct{}, 1)
	host, err := kube.New(client, prefer, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if f := fault.From(host.Seen()); f == nil || f.Code != "host_cluster_unseen" {
		t.Errorf("before the start: %v", f)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); host.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	eventually(t, "everything is seen", func() bool { return host.Seen() == nil })
	return host, changed
}

func TestHost(t *testing.T) {
	client, err := kubernetes.NewForConfig(kubetest.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	internal, changed := watch(t, client, corev1.NodeInternalIP)
	external, _ := watch(t, client, corev1.NodeExternalIP)
	if got := internal.Nodes(); len(got) != 0 {
		t.Errorf("%v", got)
	}
	nodes := client.CoreV1().Nodes()
	for name, n := range map[string]struct {
		ready     bool
		labels    map[string]string
		addresses []corev1.NodeAddress
	}{
		"both":       {ready: true, addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "both"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, {Type: corev1.NodeInternalIP, Address: "198.18.7.1"}}},
		"inside":     {ready: true, addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.18.7.2"}}},
		"nowhere":    {ready: true, addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "198.18.7.3"}}},
		"kept-apart": {ready: true, labels: map[string]string{corev1.LabelNodeExcludeBalancers: ""}, addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.18.7.4"}}},
		"lost":       {addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.18.7.5"}}},
	} {
		made, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: n.labels}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made.Status.Addresses = n.addresses
		if n.ready {
			made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}
		if _, err := nodes.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the Ready ones by their inner address", func() bool { return fmt.Sprint(internal.Nodes()) == "[{both 198.18.7.1} {inside 198.18.7.2}]" })
	eventually(t, "the Ready ones by their outer address, where they have one", func() bool { return fmt.Sprint(external.Nodes()) == "[{both 203.0.113.1} {inside 198.18.7.2}]" })

	// A heartbeat is no news; a lost node is.
	drain(changed)
	beat := func(ready corev1.ConditionStatus) {
		for _, name := range []string{"both", "inside"} {
			n, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			n.Status.Conditions[0].LastHeartbeatTime, n.Status.Conditions[0].Status = metav1.Now(), ready
			if _, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	beat(corev1.ConditionTrue)
	beat(corev1.ConditionUnknown)
	eventually(t, "none is Ready: all of them", func() bool {
		return fmt.Sprint(internal.Nodes()) == "[{both 198.18.7.1} {inside 198.18.7.2} {lost 198.18.7.5}]"
	})
	<-changed

	services := client.CoreV1().Services(metav1.NamespaceDefault)
	if port := internal.Port(metav1.NamespaceDefault, "demo"); port != 0 {
		t.Errorf("a Service that is not there: %d", port)
	}
	made, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "demo"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{
			{Name: "kubelet", Port: 10250, NodePort: 30250}, {Name: "https", Port: 443, NodePort: 30443},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "its node port", func() bool { return internal.Port(metav1.NamespaceDefault, "demo") == 30443 })
	drain(changed)
	made.Spec.Ports[1].NodePort = 30444
	if _, err := services.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	<-changed
	eventually(t, "the new node port", func() bool { return internal.Port(metav1.NamespaceDefault, "demo") == 30444 })
	if err := services.Delete(t.Context(), "demo", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	<-changed
	eventually(t, "none", func() bool { return internal.Port(metav1.NamespaceDefault, "demo") == 0 })
}

func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}
