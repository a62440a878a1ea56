//go:build e2e

package app

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

// What never goes is named, through kill -9 in the middle, and the removal ends by itself once it does.
func TestE2EAFinalizerThatNeverGoes(t *testing.T) {
	w := newWorld(t)
	r := w.start("KUBEBYON_DELETE_TIMEOUT=30s")
	const finalizer = "example.com/never"
	c := w.create(clusterv1.CreateRequest{Name: "e2e-held"})
	c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	secrets := w.kube.CoreV1().Secrets(c.Namespace)
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{finalizer}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	loose := func() error {
		_, err := secrets.Patch(context.Background(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() { _ = loose() })
	going, err := call(w, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID})
	if err != nil || going.Removal == nil {
		t.Fatal(going, err)
	}
	seen := map[string]bool{}
	w.eventually(time.Minute, "the Secret to be what remains", func() bool {
		found := w.get(c.ID)
		if found.Removal == nil || len(found.Removal.Remaining) == 0 {
			return false
		}
		for _, one := range found.Removal.Remaining {
			seen[one.Kind] = true
		}
		first := found.Removal.Remaining[0]
		return first.Kind == "Secret" && first.Name == "held" && strings.Contains(first.Why, finalizer)
	})
	for _, kind := range []string{"Pod", "PersistentVolumeClaim", "Secret", "Namespace"} {
		if !seen[kind] {
			t.Errorf("no %s was seen to go: %v", kind, seen)
		}
	}
	r.kill()
	w.start("KUBEBYON_DELETE_TIMEOUT=30s")
	w.eventually(time.Minute, "the deadline", func() bool {
		reason := w.get(c.ID).Reason
		return reason != nil && reason.Code == "delete_incomplete" && strings.Contains(reason.Message, finalizer)
	})
	if found := w.get(c.ID); !found.Removal.Deadline.Equal(going.Removal.Deadline) {
		t.Errorf("the deadline moved from %s to %s", going.Removal.Deadline, found.Removal.Deadline)
	}
	if err := loose(); err != nil {
		t.Fatal(err)
	}
	w.gone(c)
}

// A namespace that is not KubeBYON's keeps what is not the cluster's, however often the process is killed.
func TestE2EANamespaceOfAnothersKeepsWhatIsTheirs(t *testing.T) {
	w := newWorld(t)
	r := w.start()
	c := w.create(clusterv1.CreateRequest{Name: "e2e-shared"})
	c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	ctx := t.Context()
	strip := []byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null,"kubebyon.io/cluster-id":null}}}`)
	if _, err := w.kube.CoreV1().Namespaces().Patch(ctx, c.Namespace, types.MergePatchType, strip, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.kube.CoreV1().PersistentVolumeClaims(c.Namespace).Create(ctx, claim("theirs"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.kube.CoreV1().Secrets(c.Namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := call(w, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond} {
		time.Sleep(after)
		r.kill()
		r = w.start()
	}
	w.eventually(3*time.Minute, "the cluster to go", func() bool {
		_, err := call(w, clusterv1.Get, clusterv1.GetRequest{ID: c.ID})
		return err != nil
	})
	pods, err := w.kube.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) != 0 {
		t.Errorf("%d Pods are left, %v", len(pods.Items), err)
	}
	if _, err := w.kube.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, "data-e2e-shared-0", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("our claim: %v", err)
	}
	theirs, err := w.kube.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, "theirs", metav1.GetOptions{})
	if err != nil || theirs.DeletionTimestamp != nil {
		t.Errorf("their claim: %v", err)
	}
	secrets, err := w.kube.CoreV1().Secrets(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil || len(secrets.Items) != 1 || secrets.Items[0].Name != "theirs" {
		t.Errorf("%d Secrets are left, %v", len(secrets.Items), err)
	}
	volumes, err := w.kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range volumes.Items {
		if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == c.Namespace && v.Spec.ClaimRef.Name != "theirs" {
			t.Errorf("the volume %s is left", v.Name)
		}
	}
}
