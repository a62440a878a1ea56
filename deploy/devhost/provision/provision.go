// Package provision is the host cluster's default StorageClass: every claim gets a folder of the node. It must never
// touch a volume that it did not make, nor a path outside its folder.
package provision

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	// ClassName is the default StorageClass.
	ClassName = "standard"
	// provisioner signs our volumes. The controller manager leaves volumes of foreign provisioners alone.
	provisioner    = "devhost.kubebyon.io/folder"
	provisionedKey = "pv.kubernetes.io/provisioned-by"
)

// Folders makes and removes volumes.
type Folders struct {
	Client kubernetes.Interface
	Dir    string // here
	InNode string // the same folder as the node sees it
	Log    *slog.Logger
}

// Class makes the default StorageClass, unless it is there. Binding is immediate: there is one node.
func Class(ctx context.Context, client kubernetes.Interface) error {
	mode, policy := storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimDelete
	_, err := client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: ClassName, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner:       provisioner,
		VolumeBindingMode: &mode,
		ReclaimPolicy:     &policy,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Run answers claims and removes released volumes until ctx ends.
func (f *Folders) Run(ctx context.Context) error {
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(f.Client, 0)
	claims, volumes := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]())
	var stop sync.WaitGroup
	defer stop.Wait()
	defer queue.ShutDown()
	add := func(o any) {
		if key, err := cache.ObjectToName(o); err == nil {
			queue.Add(key)
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }}
	for _, i := range []cache.SharedIndexInformer{claims.Informer(), volumes.Informer()} {
		if _, err := i.AddEventHandler(handler); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("the list of %s did not arrive: %w", kind, context.Cause(ctx))
		}
	}
	stop.Go(func() {
		for {
			key, quit := queue.Get()
			if quit {
				return
			}
			var err error
			if key.Namespace == "" {
				var v *corev1.PersistentVolume
				if v, err = volumes.Lister().Get(key.Name); err == nil {
					err = f.remove(ctx, v)
				}
			} else {
				var c *corev1.PersistentVolumeClaim
				if c, err = claims.Lister().PersistentVolumeClaims(key.Namespace).Get(key.Name); err == nil {
					err = f.provide(ctx, c)
				}
			}
			if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				f.Log.ErrorContext(ctx, "volume", slog.String("object", key.String()), slog.Any("error", err))
				queue.AddRateLimited(key)
			} else {
				queue.Forget(key)
			}
			queue.Done(key)
		}
	})
	<-ctx.Done()
	return nil
}

// provide makes the volume of a claim that has none and asks for our class. Doing it twice is harmless: the volume's
// name comes from the claim's UID.
func (f *Folders) provide(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	if c.Spec.VolumeName != "" || c.DeletionTimestamp != nil || c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != ClassName {
		return nil
	}
	if c.Spec.Selector != nil {
		return errors.New("a claim with a selector cannot be provided for")
	}
	name := "pvc-" + string(c.UID)
	if err := os.MkdirAll(filepath.Join(f.Dir, name), 0o777); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(f.Dir, name), 0o777); err != nil { // pods that are not root write there too
		return err
	}
	kind := corev1.HostPathDirectory
	_, err := f.Client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedKey: provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   c.Spec.AccessModes,
			VolumeMode:                    c.Spec.VolumeMode,
			StorageClassName:              ClassName,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name,
				UID: c.UID, ResourceVersion: c.ResourceVersion},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(f.InNode, name), Type: &kind}},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// remove removes one of our volumes, data first, once its claim is gone.
func (f *Folders) remove(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.Status.Phase != corev1.VolumeReleased || v.Annotations[provisionedKey] != provisioner ||
		v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || v.Spec.HostPath == nil {
		return nil
	}
	if v.Spec.HostPath.Path != filepath.Join(f.InNode, v.Name) {
		return fmt.Errorf("volume %s points to %s, which is not its folder", v.Name, v.Spec.HostPath.Path)
	}
	if err := os.RemoveAll(filepath.Join(f.Dir, v.Name)); err != nil {
		return err
	}
	return f.Client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.UID}})
}
