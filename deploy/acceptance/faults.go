package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/deploy/apiclient"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

func (s *stack) host() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig())
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// deleteControlPlanePod deletes the tenant's one Pod on the host and waits until its successor is ready.
func (s *stack) deleteControlPlanePod(ctx context.Context, cluster clusterv1.Cluster) error {
	host, err := s.host()
	if err != nil {
		return err
	}
	pods := host.CoreV1().Pods(cluster.Namespace)
	name := cluster.VClusterName + "-0"
	before, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return apiclient.Poll(ctx, 200*time.Millisecond, func() (bool, error) {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.UID != before.UID && podReady(pod), nil
	})
}

func podReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// killMidInstall creates a second cluster, kills kubebyon-api as soon as the install has put its first Secret on the host,
// starts it again and expects the cluster to become ready, once, and then to go without a trace.
func (s *stack) killMidInstall(ctx context.Context, c *client) error {
	cluster, err := c.createCluster(ctx, clusterv1.CreateRequest{Name: "interrupted", ControlPlaneHost: s.controlPlaneHost()})
	if err != nil {
		return err
	}
	host, err := s.host()
	if err != nil {
		return err
	}
	if err := apiclient.Poll(ctx, 5*time.Millisecond, func() (bool, error) {
		secrets, err := host.CoreV1().Secrets(cluster.Namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(secrets.Items) > 0, nil
	}); err != nil {
		return fmt.Errorf("the install never began: %w", err)
	}
	if err := s.api.kill(); err != nil {
		return err
	}
	if err := s.api.start(ctx); err != nil {
		return err
	}
	if err := eventually(ctx, c.ready); err != nil {
		return fmt.Errorf("after the restart: %w", err)
	}
	cluster, err = c.waitReady(ctx, cluster.ID)
	if err != nil {
		return err
	}
	uid, err := s.statefulSet(ctx, host, cluster)
	if err != nil {
		return err
	}
	if uid == "" {
		return errors.New("the cluster is ready without a StatefulSet")
	}
	if err := c.deleteCluster(ctx, cluster.ID); err != nil {
		return err
	}
	return apiclient.Poll(ctx, 200*time.Millisecond, func() (bool, error) {
		all, err := c.clusters(ctx)
		if err != nil {
			return false, err
		}
		for _, one := range all {
			if one.ID == cluster.ID {
				if one.Status == clusterv1.Failed {
					return false, errors.New(c.explain(ctx, one))
				}
				return false, nil
			}
		}
		uid, err := s.statefulSet(ctx, host, cluster)
		if err == nil && uid != "" {
			err = errors.New("the cluster is gone from the list, but its StatefulSet is still there")
		}
		return err == nil, err
	})
}

func (s *stack) statefulSet(ctx context.Context, host kubernetes.Interface, cluster clusterv1.Cluster) (types.UID, error) {
	sets, err := host.AppsV1().StatefulSets(cluster.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil || len(sets.Items) == 0 {
		return "", err
	}
	return sets.Items[0].UID, nil
}
