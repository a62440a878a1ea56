package kube

import (
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
)

// What is taken from a node is bounded: its kubelet, which is the tenant's, wrote all of it.
const (
	maxText   = 256
	maxRoles  = 16
	maxTaints = 32
	maxIssues = 16
)

const rolePrefix = "node-role.kubernetes.io/"

// shape maps a Kubernetes node to ours.
func shape(n *corev1.Node, now time.Time) nodev1.Node {
	out := nodev1.Node{
		Name:             cut(n.Name),
		Status:           nodev1.NotReady,
		Reason:           "NeverReported",
		Message:          "the kubelet has not reported its state yet",
		Schedulable:      !n.Spec.Unschedulable,
		Roles:            roles(n.Labels),
		InternalIP:       address(n, corev1.NodeInternalIP),
		ExternalIP:       address(n, corev1.NodeExternalIP),
		KubeletVersion:   cut(n.Status.NodeInfo.KubeletVersion),
		OSImage:          cut(n.Status.NodeInfo.OSImage),
		KernelVersion:    cut(n.Status.NodeInfo.KernelVersion),
		Architecture:     cut(n.Status.NodeInfo.Architecture),
		ContainerRuntime: cut(n.Status.NodeInfo.ContainerRuntimeVersion),
		Capacity: nodev1.Capacity{
			CPU:              quantity(n.Status.Capacity, corev1.ResourceCPU),
			Memory:           quantity(n.Status.Capacity, corev1.ResourceMemory),
			Pods:             quantity(n.Status.Capacity, corev1.ResourcePods),
			EphemeralStorage: quantity(n.Status.Capacity, corev1.ResourceEphemeralStorage),
		},
		Taints:     []nodev1.Taint{},
		Conditions: []nodev1.Condition{},
		CreatedAt:  n.CreationTimestamp.UTC(),
		AgeSeconds: max(0, int64(now.Sub(n.CreationTimestamp.Time)/time.Second)),
	}
	for i := range n.Spec.Taints {
		if t := &n.Spec.Taints[i]; i < maxTaints {
			out.Taints = append(out.Taints, nodev1.Taint{Key: cut(t.Key), Value: cut(t.Value), Effect: cut(string(t.Effect))})
		}
	}
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
			out.Status, out.Reason, out.Message = nodev1.Ready, "", ""
		case c.Type == corev1.NodeReady:
			out.Reason, out.Message = cut(c.Reason), cut(c.Message)
		// Ready apart, a node's conditions name problems: False is the good state.
		case c.Status != corev1.ConditionFalse && len(out.Conditions) < maxIssues:
			out.Conditions = append(out.Conditions, nodev1.Condition{
				Type: cut(string(c.Type)), Status: cut(string(c.Status)), Reason: cut(c.Reason), Message: cut(c.Message), Since: c.LastTransitionTime.UTC(),
			})
		}
	}
	return out
}

func roles(labels map[string]string) []string {
	out := []string{}
	for label := range labels {
		if role, ok := strings.CutPrefix(label, rolePrefix); ok && role != "" {
			out = append(out, cut(role))
		}
	}
	sort.Strings(out)
	return out[:min(len(out), maxRoles)]
}

func address(n *corev1.Node, kind corev1.NodeAddressType) string {
	for i := range n.Status.Addresses {
		if a := &n.Status.Addresses[i]; a.Type == kind {
			return cut(a.Address)
		}
	}
	return ""
}

// quantity of what a node has not reported is 0, and nothing where that field may be left out.
func quantity(list corev1.ResourceList, name corev1.ResourceName) string {
	q, ok := list[name]
	if !ok && name == corev1.ResourceEphemeralStorage {
		return ""
	}
	return q.String()
}

// cut bounds a text without breaking a character.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText-3], "") + "…"
}

// size is how many bytes a node takes as JSON at most: names and times of the fields, and every text as it is escaped.
func size(n *nodev1.Node) int {
	total := 560 + escaped(n.Name) + escaped(n.Reason) + escaped(n.Message) + escaped(n.InternalIP) + escaped(n.ExternalIP) +
		escaped(n.KubeletVersion) + escaped(n.OSImage) + escaped(n.KernelVersion) + escaped(n.Architecture) + escaped(n.ContainerRuntime) +
		escaped(n.Capacity.CPU) + escaped(n.Capacity.Memory) + escaped(n.Capacity.Pods) + escaped(n.Capacity.EphemeralStorage)
	for _, r := range n.Roles {
		total += 3 + escaped(r)
	}
	for i := range n.Taints {
		total += 40 + escaped(n.Taints[i].Key) + escaped(n.Taints[i].Value) + escaped(n.Taints[i].Effect)
	}
	for i := range n.Conditions {
		c := &n.Conditions[i]
		total += 100 + escaped(c.Type) + escaped(c.Status) + escaped(c.Reason) + escaped(c.Message)
	}
	return total
}

// escaped is the length of s inside a JSON string as encoding/json writes it, or a little more.
func escaped(s string) int {
	total := len(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			total++
		case c < 0x20 || c == '<' || c == '>' || c == '&' || c >= 0x7f:
			total += 5
		}
	}
	return total
}
