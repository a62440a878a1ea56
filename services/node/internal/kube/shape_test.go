package kube

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
)

var born = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// worker is what a kubelet of 1.37 registers, with what changes over a node's life set by edit.
func worker(edit func(*corev1.Node)) *corev1.Node {
	at := metav1.NewTime(born.Add(time.Minute))
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "worker-1", CreationTimestamp: metav1.NewTime(born),
			Labels: map[string]string{"kubernetes.io/hostname": "worker-1", "kubernetes.io/os": "linux"},
		},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeHostName, Address: "worker-1"}, {Type: corev1.NodeInternalIP, Address: "198.18.0.11"},
				{Type: corev1.NodeInternalIP, Address: "2001:db8::11"},
			},
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4039684Ki"),
				corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("50620216Ki"),
			},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: "v1.37.2", OSImage: "Debian GNU/Linux 12 (bookworm)", KernelVersion: "6.1.0-18-amd64",
				Architecture: "amd64", ContainerRuntimeVersion: "containerd://2.4.2",
			},
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory", LastTransitionTime: at},
				{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", LastTransitionTime: at},
				{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID", LastTransitionTime: at},
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status", LastTransitionTime: at},
			},
		},
	}
	if edit != nil {
		edit(n)
	}
	return n
}

func condition(n *corev1.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == kind {
			c.Status, c.Reason, c.Message = status, reason, message
			return
		}
	}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(born.Add(time.Minute)),
	})
}

func TestShape(t *testing.T) {
	healthy := nodev1.Node{
		Name: "worker-1", Status: nodev1.Ready, Schedulable: true, Roles: []string{}, InternalIP: "198.18.0.11",
		KubeletVersion: "v1.37.2", OSImage: "Debian GNU/Linux 12 (bookworm)", KernelVersion: "6.1.0-18-amd64", Architecture: "amd64",
		ContainerRuntime: "containerd://2.4.2",
		Capacity:         nodev1.Capacity{CPU: "2", Memory: "4039684Ki", Pods: "110", EphemeralStorage: "50620216Ki"},
		Taints:           []nodev1.Taint{}, Conditions: []nodev1.Condition{}, CreatedAt: born, AgeSeconds: 3600,
	}
	for name, c := range map[string]struct {
		edit func(*corev1.Node)
		want func(*nodev1.Node)
	}{
		"healthy": {nil, nil},
		"network not there yet": {
			func(n *corev1.Node) {
				condition(n, corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", "cni plugin not initialized")
				n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoSchedule}}
			},
			func(n *nodev1.Node) {
				n.Status, n.Reason, n.Message = nodev1.NotReady, "KubeletNotReady", "cni plugin not initialized"
				n.Taints = []nodev1.Taint{{Key: "node.kubernetes.io/not-ready", Effect: "NoSchedule"}}
			},
		},
		"gone silent": {
			func(n *corev1.Node) {
				condition(n, corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")
				condition(n, corev1.NodeMemoryPressure, corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")
			},
			func(n *nodev1.Node) {
				n.Status, n.Reason, n.Message = nodev1.NotReady, "NodeStatusUnknown", "Kubelet stopped posting node status."
				n.Conditions = []nodev1.Condition{{
					Type: "MemoryPressure", Status: "Unknown", Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.", Since: born.Add(time.Minute),
				}}
			},
		},
		"registered, nothing reported": {
			func(n *corev1.Node) { n.Status = corev1.NodeStatus{} },
			func(n *nodev1.Node) {
				*n = nodev1.Node{
					Name: "worker-1", Status: nodev1.NotReady, Reason: "NeverReported", Message: "the kubelet has not reported its state yet",
					Schedulable: true, Roles: []string{}, Capacity: nodev1.Capacity{CPU: "0", Memory: "0", Pods: "0"},
					Taints: []nodev1.Taint{}, Conditions: []nodev1.Condition{}, CreatedAt: born, AgeSeconds: 3600,
				}
			},
		},
		"under pressure while ready": {
			func(n *corev1.Node) {
				condition(n, corev1.NodeDiskPressure, corev1.ConditionTrue, "KubeletHasDiskPressure", "disk is full")
			},
			func(n *nodev1.Node) {
				n.Conditions = []nodev1.Condition{{
					Type: "DiskPressure", Status: "True", Reason: "KubeletHasDiskPressure", Message: "disk is full", Since: born.Add(time.Minute),
				}}
			},
		},
		"cordoned, with roles and an external address": {
			func(n *corev1.Node) {
				n.Spec.Unschedulable = true
				n.Labels["node-role.kubernetes.io/worker"] = ""
				n.Labels["node-role.kubernetes.io/gpu"] = "true"
				n.Labels["node-role.kubernetes.io/"] = "no role"
				n.Spec.Taints = []corev1.Taint{{Key: "gpu", Value: "a100", Effect: corev1.TaintEffectNoExecute}}
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.9"})
			},
			func(n *nodev1.Node) {
				n.Schedulable, n.ExternalIP, n.Roles = false, "203.0.113.9", []string{"gpu", "worker"}
				n.Taints = []nodev1.Taint{{Key: "gpu", Value: "a100", Effect: "NoExecute"}}
			},
		},
		"from the future": {
			func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(born.Add(2 * time.Hour)) },
			func(n *nodev1.Node) { n.CreatedAt, n.AgeSeconds = born.Add(2*time.Hour), 0 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := healthy
			if c.want != nil {
				c.want(&want)
			}
			if diff := cmp.Diff(want, shape(worker(c.edit), born.Add(time.Hour))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What a kubelet writes is the tenant's: it must not be able to make an answer that no message holds.
func TestShapeBoundsAndSizeIsNeverTooSmall(t *testing.T) {
	hostile := func(n *corev1.Node) {
		for _, s := range []*string{&n.Status.NodeInfo.OSImage, &n.Status.NodeInfo.KernelVersion, &n.Status.NodeInfo.KubeletVersion} {
			*s = strings.Repeat("<&>\"\\\x01\xff\u2028é", 1000)
		}
		condition(n, corev1.NodeReady, corev1.ConditionFalse, strings.Repeat("é", 5000), strings.Repeat("\n", 5000))
		for i := range 500 {
			condition(n, corev1.NodeConditionType(fmt.Sprint("Bad", i)), corev1.ConditionTrue, "<<<", "&&&")
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: fmt.Sprint("k", i), Value: "\"\"", Effect: ">"})
			n.Labels[fmt.Sprint(rolePrefix, "r", i)] = ""
		}
	}
	silent := func(n *corev1.Node) {
		condition(n, corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")
	}
	for name, edit := range map[string]func(*corev1.Node){"usual": nil, "silent": silent, "hostile": hostile, "empty": func(n *corev1.Node) { n.Status = corev1.NodeStatus{} }} {
		n := shape(worker(edit), born.Add(time.Hour))
		text, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		if got := size(&n); got < len(text) || got > len(text)+1200 && name != "hostile" {
			t.Errorf("%s: size says %d, it is %d", name, got, len(text))
		}
		if len(text) > 64<<10 {
			t.Errorf("%s: one node takes %d bytes", name, len(text))
		}
		t.Logf("%s: %d bytes", name, len(text))
	}
}

func TestAThousandNodesFitOneAnswer(t *testing.T) {
	list := &corev1.NodeList{}
	for i := range 1000 {
		list.Items = append(list.Items, *worker(func(n *corev1.Node) {
			n.Name = fmt.Sprintf("ip-10-20-%d-%d.eu-central-1.compute.internal", i/256, i%256)
			condition(n, corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")
			n.Spec.Taints = []corev1.Taint{
				{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoSchedule}, {Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute},
			}
		}))
	}
	out, fits := answer(list, born)
	if !fits {
		t.Fatal("they do not fit")
	}
	text, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > maxAnswer {
		t.Errorf("%d bytes", len(text))
	}
	t.Logf("%d bytes", len(text))
}
