package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

var (
	statefulSets = appsv1.SchemeGroupVersion.WithResource("statefulsets")
	pods         = corev1.SchemeGroupVersion.WithResource("pods")
	claims       = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	secrets      = corev1.SchemeGroupVersion.WithResource("secrets")
)

// listed bounds what is asked for of one kind: more than a Removal shows.
const listed = 2 * clusterv1.MaxRemaining

// releaseLabels are on the StatefulSet, the Pods and the claims that a release of either control plane makes.
func releaseLabels(c cluster.Cluster) string {
	return labels.SelectorFromSet(labels.Set{"app": "vcluster", "release": c.VClusterName}).String()
}

// ourLabels are on what KubeBYON itself has put into a namespace.
func ourLabels(c cluster.Cluster) string {
	return labels.SelectorFromSet(labels.Set{managedByLabel: managedBy, clusterLabel: c.ID}).String()
}

// Doom implements cluster.Host. In a namespace of another's the StatefulSet stays visible until its Pods are gone, and so do the
// claims: whoever takes the removal up in the middle, when no release says any more whose they are, still sees them go.
func (h *Host) Doom(ctx context.Context, c cluster.Cluster, owns cluster.Ownership) error {
	propagation, claimsOf := metav1.DeletePropagationBackground, ""
	if owns != cluster.Own {
		propagation, claimsOf = metav1.DeletePropagationForeground, releaseLabels(c)
	}
	err := h.client.AppsV1().StatefulSets(c.Namespace).Delete(ctx, c.VClusterName, metav1.DeleteOptions{PropagationPolicy: &propagation})
	if err != nil && !apierrors.IsNotFound(err) {
		return hostFault(err, "to delete the control plane's StatefulSet")
	}
	err = h.client.CoreV1().PersistentVolumeClaims(c.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: claimsOf})
	if err != nil && !apierrors.IsNotFound(err) {
		return hostFault(err, "to delete the control plane's volume claims")
	}
	return nil
}

// Clear implements cluster.Host. The volumes go before the namespace does, so that nothing which keeps them is lost sight of; a
// cluster of the same name made afterwards starts empty.
func (h *Host) Clear(ctx context.Context, c cluster.Cluster, owns cluster.Ownership) ([]clusterv1.Remaining, error) {
	if owns == cluster.Own {
		return h.clearOwn(ctx, c)
	}
	var left []clusterv1.Remaining
	claimed := func(*corev1.ObjectReference) bool { return false } // in a namespace that is gone
	if owns == cluster.Foreign {
		err := h.client.CoreV1().Secrets(c.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: ourLabels(c)})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, hostFault(err, "to delete the platform's Secret")
		}
		if left, err = h.leaving(ctx, c); err != nil {
			return nil, err
		}
		if claimed, err = h.claimed(ctx, c); err != nil {
			return nil, err
		}
	}
	volumes, err := h.volumes(ctx, c, claimed)
	return append(left, volumes...), err
}

// claimed tells the volumes of another's namespace that are not what a claim of ours has left.
func (h *Host) claimed(ctx context.Context, c cluster.Cluster) (func(*corev1.ObjectReference) bool, error) {
	found, err := h.list(ctx, c, claims, "")
	if err != nil {
		return nil, err
	}
	return func(ref *corev1.ObjectReference) bool {
		return ref.Name != chart.DataClaimName(c.VClusterName) || len(found) == listed ||
			slices.ContainsFunc(found, func(one metav1.PartialObjectMetadata) bool { return one.UID == ref.UID })
	}, nil
}

func (h *Host) clearOwn(ctx context.Context, c cluster.Cluster) ([]clusterv1.Remaining, error) {
	left, err := h.remaining(ctx, c, "", pods, claims)
	if err != nil {
		return nil, err
	}
	volumes, err := h.volumes(ctx, c, func(*corev1.ObjectReference) bool { return false })
	if err != nil {
		return nil, err
	}
	left = append(left, volumes...)
	kept, err := h.remaining(ctx, c, "", secrets)
	if err != nil {
		return nil, err
	}
	namespace, err := h.clearNamespace(ctx, c, len(left) == 0)
	if err != nil || len(namespace) == 0 {
		return left, err
	}
	return slices.Concat(left, kept, namespace), nil
}

// leaving is what is about to go in another's namespace. What is not asked to go there is not ours.
func (h *Host) leaving(ctx context.Context, c cluster.Cluster) ([]clusterv1.Remaining, error) {
	var left []clusterv1.Remaining
	for _, kind := range []schema.GroupVersionResource{statefulSets, pods, claims} {
		found, err := h.list(ctx, c, kind, releaseLabels(c))
		if err != nil {
			return nil, err
		}
		for _, one := range found {
			if one.DeletionTimestamp != nil {
				left = append(left, remainingOf(kind, one))
			}
		}
	}
	ours, err := h.remaining(ctx, c, ourLabels(c), secrets)
	return append(left, ours...), err
}

func (h *Host) remaining(ctx context.Context, c cluster.Cluster, selector string, kinds ...schema.GroupVersionResource) ([]clusterv1.Remaining, error) {
	var left []clusterv1.Remaining
	for _, kind := range kinds {
		found, err := h.list(ctx, c, kind, selector)
		if err != nil {
			return nil, err
		}
		for _, one := range found {
			left = append(left, remainingOf(kind, one))
		}
	}
	return left, nil
}

func (h *Host) list(ctx context.Context, c cluster.Cluster, kind schema.GroupVersionResource, selector string) ([]metav1.PartialObjectMetadata, error) {
	found, err := h.names.Resource(kind).Namespace(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: listed})
	if err != nil {
		return nil, hostFault(err, "to list the namespace's "+kind.Resource)
	}
	return found.Items, nil
}

func remainingOf(kind schema.GroupVersionResource, one metav1.PartialObjectMetadata) clusterv1.Remaining {
	names := map[schema.GroupVersionResource]string{statefulSets: "StatefulSet", pods: "Pod", claims: "PersistentVolumeClaim", secrets: "Secret"}
	return clusterv1.Remaining{Kind: names[kind], Name: one.Name, Why: heldBy(one.ObjectMeta)}
}

// heldBy says what keeps an object that was asked to go.
func heldBy(one metav1.ObjectMeta) string {
	switch {
	case one.DeletionTimestamp == nil:
		return ""
	case len(one.Finalizers) == 1:
		return short("it is going; held by the finalizer " + one.Finalizers[0])
	case len(one.Finalizers) > 1:
		return short("it is going; held by the finalizers " + strings.Join(one.Finalizers, ", "))
	}
	return "it is going"
}

// volumes are those that held the control plane's data and are to be deleted. An account that may not see volumes leaves them
// to their provisioner.
func (h *Host) volumes(ctx context.Context, c cluster.Cluster, anothers func(*corev1.ObjectReference) bool) ([]clusterv1.Remaining, error) {
	found, err := h.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, hostFault(err, "to list volumes")
	}
	var left []clusterv1.Remaining
	for _, volume := range found.Items {
		ref := volume.Spec.ClaimRef
		if ref == nil || ref.Namespace != c.Namespace || volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || anothers(ref) {
			continue
		}
		left = append(left, clusterv1.Remaining{Kind: "PersistentVolume", Name: volume.Name, Why: volumeHeldBy(volume)})
	}
	return left, nil
}

func volumeHeldBy(volume corev1.PersistentVolume) string {
	if volume.Status.Phase == corev1.VolumeFailed {
		return short("it could not be deleted: " + volume.Status.Message)
	}
	return heldBy(volume.ObjectMeta)
}

// clearNamespace asks for the namespace's end where it may, and gives it until it is gone.
func (h *Host) clearNamespace(ctx context.Context, c cluster.Cluster, may bool) ([]clusterv1.Remaining, error) {
	found, err := h.client.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, hostFault(err, "to look for the namespace")
	case !owns(found, c):
		return nil, nil // another one of that name, made meanwhile
	}
	if may && found.DeletionTimestamp == nil {
		err := h.client.CoreV1().Namespaces().Delete(ctx, c.Namespace, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &found.UID},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return nil, hostFault(err, "to delete the namespace")
		}
	}
	return []clusterv1.Remaining{{Kind: "Namespace", Name: found.Name, Why: namespaceHeldBy(found)}}, nil
}

// namespaceHeldBy is what Kubernetes itself says of a namespace that is going.
func namespaceHeldBy(namespace *corev1.Namespace) string {
	var said []string
	for _, kind := range []corev1.NamespaceConditionType{corev1.NamespaceDeletionContentFailure, corev1.NamespaceDeletionDiscoveryFailure,
		corev1.NamespaceFinalizersRemaining, corev1.NamespaceContentRemaining} {
		for _, c := range namespace.Status.Conditions {
			if c.Type == kind && c.Status == corev1.ConditionTrue {
				said = append(said, c.Message)
			}
		}
	}
	switch {
	case namespace.DeletionTimestamp == nil:
		return ""
	case len(said) == 0:
		return "it is going"
	}
	return short(fmt.Sprintf("it is going: %s", strings.Join(said, " ")))
}
