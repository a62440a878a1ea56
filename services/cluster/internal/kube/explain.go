package kube

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

// view is what the host cluster shows of a control plane that is starting.
type view struct {
	pods     []corev1.Pod
	claims   []corev1.PersistentVolumeClaim
	warnings []corev1.Event
	lastLine string // of the log of a container that crashed
}

// explanation of what is waited for. A ready one means that every container is; hopeless, that waiting mends nothing.
type explanation struct {
	clusterv1.Reason
	ready    bool
	hopeless bool
}

// crashesUntilHopeless: a licence that is refused so often is not a platform that was restarting.
const crashesUntilHopeless = 3

// explain turns a view into one reason: the first Pod's first trouble.
func explain(v view) explanation {
	if len(v.pods) == 0 {
		if w := warning(v.warnings, "StatefulSet"); w != nil {
			return because("pod_not_created", "the host cluster does not create the control plane's Pod: "+short(w.Message),
				"the operator should look at the namespace's quota and admission rules")
		}
		return because("pod_starting", "the host cluster is about to create the control plane's Pod", "")
	}
	starting := false
	for _, pod := range v.pods {
		if found, trouble := explainPod(pod, v); trouble {
			return found
		}
		starting = starting || !podReady(pod)
	}
	if starting {
		return because("control_plane_starting", "the control plane's containers are starting", "")
	}
	out := because("tenant_preparing", "the control plane runs; waiting until nodes can join", "")
	out.ready = true
	return out
}

func explainPod(pod corev1.Pod, v view) (explanation, bool) {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Reason == corev1.PodReasonUnschedulable {
			return unschedulable(condition.Message, v), true
		}
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if found, trouble := explainContainer(status, v); trouble {
			return found, true
		}
	}
	if pod.Status.Phase == corev1.PodPending {
		if w := warning(v.warnings, "Pod"); w != nil && (w.Reason == "FailedMount" || w.Reason == "FailedAttachVolume") {
			return because("volume_mount_failed", "the control plane's volume cannot be mounted: "+short(w.Message), "the operator should look at the host cluster's storage"), true
		}
		if w := warning(v.warnings, "Pod"); w != nil && w.Reason == "FailedCreatePodSandBox" {
			return because("pod_network_failed", "the control plane's Pod gets no network: "+short(w.Message), "the operator should look at the host node"), true
		}
	}
	return explanation{}, false
}

func unschedulable(message string, v view) explanation {
	for _, claim := range v.claims {
		if claim.Status.Phase != corev1.ClaimPending {
			continue
		}
		cause := "it has no volume yet"
		if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName == "" {
			cause = "the host cluster has no default StorageClass"
		}
		for _, w := range v.warnings {
			if w.InvolvedObject.Kind == "PersistentVolumeClaim" && w.InvolvedObject.Name == claim.Name {
				cause = short(w.Message)
			}
		}
		return because("volume_unbound", fmt.Sprintf("the control plane's volume claim %s is not bound: %s", claim.Name, cause),
			"the operator should look at the host cluster's StorageClasses and their provisioner")
	}
	return because("unschedulable", "no host node can take the control plane's Pod: "+short(message), "the operator should free or add resources on the host cluster")
}

func explainContainer(status corev1.ContainerStatus, v view) (explanation, bool) {
	if waiting := status.State.Waiting; waiting != nil {
		switch waiting.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError":
			return because("image_pull_failed", fmt.Sprintf("the image %s cannot be pulled: %s", status.Image, short(waiting.Message)),
				"the operator should check the image's name, the registry and the host node's way to it"), true
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
			return because("container_cannot_start", fmt.Sprintf("the container %s cannot start: %s", status.Name, short(waiting.Message)), ""), true
		}
	}
	ended := crash(status)
	if ended == nil {
		return explanation{}, false
	}
	said := short(firstOf(ended.Message, v.lastLine))
	if licence(said) {
		out := because("vcluster_licence", "the vCluster refuses to run without a licence from the vCluster Platform: "+said,
			"the operator should check that the platform Secret's host and accessKey are valid and that the platform answers; "+cluster.TryAgain)
		out.hopeless = status.RestartCount >= crashesUntilHopeless
		return out, true
	}
	text := fmt.Sprintf("the container %s ended with code %d", status.Name, ended.ExitCode)
	if ended.Reason == "OOMKilled" {
		text = fmt.Sprintf("the container %s had too little memory", status.Name)
	}
	if status.RestartCount > 0 {
		text += fmt.Sprintf(" (%d restarts)", status.RestartCount)
	}
	if said != "" {
		text += ": " + said
	}
	return because("control_plane_crashing", text, "the operator should look at the container's log"), true
}

// crash is how a container ended that should run, where it is down or not ready since.
func crash(status corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if ended := status.State.Terminated; ended != nil && ended.ExitCode != 0 {
		return ended
	}
	if status.State.Waiting != nil && status.State.Waiting.Reason == "CrashLoopBackOff" {
		if ended := status.LastTerminationState.Terminated; ended != nil {
			return ended
		}
		return &corev1.ContainerStateTerminated{}
	}
	// One that was started again tells by its last end why, until it is ready.
	if ended := status.LastTerminationState.Terminated; ended != nil && ended.ExitCode != 0 && !status.Ready && status.State.Running != nil {
		return ended
	}
	return nil
}

func crashedContainer(pod corev1.Pod) (string, bool) {
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if crash(status) != nil {
			return status.Name, true
		}
	}
	return "", false
}

func licence(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "license") || strings.Contains(text, "licence") ||
		strings.Contains(text, "vcluster platform") || strings.Contains(text, "vcluster pro feature") || strings.Contains(text, "platform api key")
}

func podReady(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// warning is the newest about an object of that kind.
func warning(events []corev1.Event, kind string) *corev1.Event {
	var newest *corev1.Event
	for i := range events {
		if events[i].InvolvedObject.Kind == kind && (newest == nil || newest.LastTimestamp.Before(&events[i].LastTimestamp)) {
			newest = &events[i]
		}
	}
	return newest
}

func because(code, message, action string) explanation {
	return explanation{Reason: clusterv1.Reason{Code: code, Message: message, Action: action}}
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if line := lastLine(text); line != "" {
			return line
		}
	}
	return ""
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// short makes one line of at most 300 characters.
func short(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > 300 {
		return string(runes[:300]) + "…"
	}
	return text
}
