package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

const clearEvery = 200 * time.Millisecond

// Clear implements cluster.Host. The volumes go before the namespace does, so that nothing which keeps them is lost
// sight of; a cluster of the same name made afterwards starts empty.
func (h *Host) Clear(ctx context.Context, c cluster.Cluster, report func(clusterv1.Reason)) error {
	began := time.Now()
	tell := func(what string) {
		if time.Since(began) > 10*time.Second {
			report(clusterv1.Reason{Code: "delete_waiting", Message: "still there: " + what})
		}
	}
	if err := h.clearWorkload(ctx, c, tell); err != nil {
		return err
	}
	return h.clearNamespace(ctx, c, tell)
}

// clearWorkload waits until the control plane's Pods, claims and volumes are gone.
func (h *Host) clearWorkload(ctx context.Context, c cluster.Cluster, tell func(string)) error {
	background := metav1.DeletePropagationBackground
	err := h.client.AppsV1().StatefulSets(c.Namespace).Delete(ctx, c.VClusterName, metav1.DeleteOptions{PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		return hostFault(err, "to delete the control plane's StatefulSet")
	}
	err = h.client.CoreV1().PersistentVolumeClaims(c.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return hostFault(err, "to delete the control plane's volume claims")
	}
	for {
		left, err := h.leftovers(ctx, c)
		if err != nil || len(left) == 0 {
			return err
		}
		tell(strings.Join(left, ", "))
		if err := pause(ctx, clearEvery); err != nil {
			return err
		}
	}
}

func (h *Host) leftovers(ctx context.Context, c cluster.Cluster) ([]string, error) {
	var left []string
	pods, err := h.client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, hostFault(err, "to list the namespace's Pods")
	}
	for _, pod := range pods.Items {
		left = append(left, "Pod "+pod.Name)
	}
	claims, err := h.client.CoreV1().PersistentVolumeClaims(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, hostFault(err, "to list the namespace's volume claims")
	}
	for _, claim := range claims.Items {
		left = append(left, "PersistentVolumeClaim "+claim.Name)
	}
	if len(left) > 0 {
		return left, nil
	}
	volumes, err := h.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		return nil, nil // an account that may not see volumes leaves them to their provisioner
	}
	if err != nil {
		return nil, hostFault(err, "to list volumes")
	}
	for _, volume := range volumes.Items {
		if ref := volume.Spec.ClaimRef; ref != nil && ref.Namespace == c.Namespace && volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
			left = append(left, "PersistentVolume "+volume.Name)
		}
	}
	return left, nil
}

func (h *Host) clearNamespace(ctx context.Context, c cluster.Cluster, tell func(string)) error {
	for {
		found, err := h.client.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return hostFault(err, "to look for the namespace")
		case !owns(found, c):
			return nil // another one of that name, made meanwhile
		}
		if found.DeletionTimestamp == nil {
			err := h.client.CoreV1().Namespaces().Delete(ctx, c.Namespace, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &found.UID},
			})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return hostFault(err, "to delete the namespace")
			}
		}
		tell(namespaceHeldBy(found))
		if err := pause(ctx, clearEvery); err != nil {
			return err
		}
	}
}

func namespaceHeldBy(namespace *corev1.Namespace) string {
	out := "Namespace " + namespace.Name
	for _, kind := range []corev1.NamespaceConditionType{corev1.NamespaceDeletionContentFailure, corev1.NamespaceDeletionDiscoveryFailure,
		corev1.NamespaceContentRemaining, corev1.NamespaceFinalizersRemaining} {
		i := slices.IndexFunc(namespace.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == kind && c.Status == corev1.ConditionTrue
		})
		if i >= 0 {
			return fmt.Sprintf("%s (%s)", out, short(namespace.Status.Conditions[i].Message))
		}
	}
	return out
}
