package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/deploy/apiclient"
)

// smokeImage is the one image of the run that no tenant needs by itself.
const smokeImage = "kubebyon.local/busybox:1"

// tenant is a cluster as its user has it: by the kubeconfig downloaded from the API.
type tenant struct {
	api kubernetes.Interface
}

func newTenant(kubeconfig []byte) (*tenant, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 100, 200
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &tenant{api: api}, nil
}

// smoke runs a Pod on the node that looks up names in the tenant's DNS, and reads its log through the API server.
func (t *tenant) smoke(ctx context.Context, node string) error {
	name := "smoke-" + node
	const script = `nslookup kubernetes.default.svc.cluster.local && nslookup kube-dns.kube-system.svc.cluster.local && echo dns-answered`
	zero, grace := int64(0), int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyOnFailure,
			TerminationGracePeriodSeconds: &grace,
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			Containers: []corev1.Container{{
				Name: "smoke", Image: smokeImage, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"/bin/sh", "-c", script},
			}},
		},
	}
	pods := t.api.CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	var last *corev1.Pod
	err := apiclient.Poll(ctx, 200*time.Millisecond, func() (bool, error) {
		var err error
		if last, err = pods.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		return last.Status.Phase == corev1.PodSucceeded, nil
	})
	if err != nil {
		return fmt.Errorf("the smoke pod on %s did not succeed: %w; %s", node, err, describePod(last))
	}
	stream, err := pods.GetLogs(name, &corev1.PodLogOptions{}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("reading the smoke pod's log through the API server: %w", err)
	}
	defer func() { _ = stream.Close() }()
	log, err := io.ReadAll(io.LimitReader(stream, 1<<20))
	if err != nil {
		return err
	}
	if !strings.Contains(string(log), "dns-answered") {
		return fmt.Errorf("the smoke pod's log lacks the DNS answers: %s", log)
	}
	return nil
}

func describePod(pod *corev1.Pod) string {
	if pod == nil {
		return "it never existed"
	}
	text := "phase " + string(pod.Status.Phase)
	for _, condition := range pod.Status.Conditions {
		if condition.Status != corev1.ConditionTrue {
			text += fmt.Sprintf("; %s: %s %s", condition.Type, condition.Reason, condition.Message)
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Waiting != nil {
			text += fmt.Sprintf("; waiting: %s %s", status.State.Waiting.Reason, status.State.Waiting.Message)
		}
		if status.LastTerminationState.Terminated != nil {
			text += fmt.Sprintf("; last exit code %d", status.LastTerminationState.Terminated.ExitCode)
		}
	}
	return text
}

const keepsakeName = "keepsake"

// keep stores something in the tenant that must survive; kept reads it back.
func (t *tenant) keep(ctx context.Context, value string) error {
	_, err := t.api.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: keepsakeName}, Data: map[string]string{"value": value},
	}, metav1.CreateOptions{})
	return err
}

func (t *tenant) kept(ctx context.Context, value string) error {
	var last error
	err := apiclient.Poll(ctx, 200*time.Millisecond, func() (bool, error) {
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		object, err := t.api.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(short, keepsakeName, metav1.GetOptions{})
		if last = err; err != nil {
			if apierrors.IsNotFound(err) {
				return false, fmt.Errorf("the tenant's data is gone: %w", err)
			}
			return false, nil // the control plane is on its way back
		}
		if got := object.Data["value"]; got != value {
			return false, fmt.Errorf("the tenant's data changed: %q, want %q", got, value)
		}
		return true, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("%w; last: %w", err, last)
	}
	return err
}
