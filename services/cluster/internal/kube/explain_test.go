package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pod(status corev1.PodStatus) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "acme-0", Namespace: "vc-acme"}, Status: status}
}

func waiting(reason, message string) corev1.Pod {
	return pod(corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "etcd", Image: "registry.k8s.io/etcd:9", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
	}}})
}

func crashing(restarts int32, exit int32, reason, message string) corev1.Pod {
	return pod(corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "syncer", RestartCount: restarts,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: exit, Reason: reason, Message: message,
		}},
	}}})
}

func again(p corev1.Pod) corev1.Pod {
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	return p
}

func event(kind, name, reason, message string) corev1.Event {
	return corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Type: "Warning", Reason: reason, Message: message}
}

func TestExplain(t *testing.T) {
	unschedulable := pod(corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient memory.",
	}}})
	class := "fast"
	claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-acme-0"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
	classed := *claim.DeepCopy()
	classed.Spec.StorageClassName = &class
	running := pod(corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}})
	for _, c := range []struct {
		name     string
		view     view
		code     string
		message  string
		ready    bool
		hopeless bool
	}{
		{"no Pod yet", view{}, "pod_starting", "the host cluster is about to create the control plane's Pod", false, false},
		{"no Pod, refused", view{warnings: []corev1.Event{event("StatefulSet", "acme", "FailedCreate", "exceeded quota: small")}},
			"pod_not_created", "the host cluster does not create the control plane's Pod: exceeded quota: small", false, false},
		{"starting", view{pods: []corev1.Pod{waiting("ContainerCreating", "")}}, "control_plane_starting", "the control plane's containers are starting", false, false},
		{"image", view{pods: []corev1.Pod{waiting("ImagePullBackOff", "Back-off pulling\n image: not found")}},
			"image_pull_failed", "the image registry.k8s.io/etcd:9 cannot be pulled: Back-off pulling image: not found", false, false},
		{"configuration", view{pods: []corev1.Pod{waiting("CreateContainerConfigError", `secret "acme-pki" not found`)}},
			"container_cannot_start", `the container etcd cannot start: secret "acme-pki" not found`, false, false},
		{"crash, told by the log", view{pods: []corev1.Pod{crashing(2, 1, "Error", "")}, lastLine: "panic: no disk"},
			"control_plane_crashing", "the container syncer ended with code 1 (2 restarts): panic: no disk", false, false},
		{"crash, told by its message", view{pods: []corev1.Pod{crashing(2, 1, "Error", "first\nlast words\n")}, lastLine: "other"},
			"control_plane_crashing", "the container syncer ended with code 1 (2 restarts): last words", false, false},
		{"started again", view{pods: []corev1.Pod{again(crashing(1, 2, "Error", "no etcd"))}},
			"control_plane_crashing", "the container syncer ended with code 2 (1 restarts): no etcd", false, false},
		{"memory", view{pods: []corev1.Pod{crashing(1, 137, "OOMKilled", "")}},
			"control_plane_crashing", "the container syncer had too little memory (1 restarts)", false, false},
		{"licence, at first", view{pods: []corev1.Pod{crashing(1, 1, "Error", "")}, lastLine: "fatal: you are using a vCluster Pro feature, license required"},
			"vcluster_licence", "the vCluster refuses to run without a licence from the vCluster Platform: fatal: you are using a vCluster Pro feature, license required", false, false},
		{"licence, for good", view{pods: []corev1.Pod{crashing(3, 1, "Error", "")}, lastLine: "license check failed"},
			"vcluster_licence", "the vCluster refuses to run without a licence from the vCluster Platform: license check failed", false, true},
		{"no room", view{pods: []corev1.Pod{unschedulable}},
			"unschedulable", "no host node can take the control plane's Pod: 0/1 nodes are available: 1 Insufficient memory.", false, false},
		{"no class", view{pods: []corev1.Pod{unschedulable}, claims: []corev1.PersistentVolumeClaim{claim}},
			"volume_unbound", "the control plane's volume claim data-acme-0 is not bound: the host cluster has no default StorageClass", false, false},
		{"no volume", view{pods: []corev1.Pod{unschedulable}, claims: []corev1.PersistentVolumeClaim{classed},
			warnings: []corev1.Event{event("PersistentVolumeClaim", "data-acme-0", "ProvisioningFailed", `storageclass "fast" not found`)}},
			"volume_unbound", `the control plane's volume claim data-acme-0 is not bound: storageclass "fast" not found`, false, false},
		{"mount", view{pods: []corev1.Pod{waiting("ContainerCreating", "")}, warnings: []corev1.Event{event("Pod", "acme-0", "FailedMount", "timed out")}},
			"volume_mount_failed", "the control plane's volume cannot be mounted: timed out", false, false},
		{"running", view{pods: []corev1.Pod{running}}, "tenant_preparing", "the control plane runs; waiting until nodes can join", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := explain(c.view)
			if got.Code != c.code || got.Message != c.message || got.ready != c.ready || got.hopeless != c.hopeless {
				t.Errorf("got %+v", got)
			}
		})
	}
}
