package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubebyon/kubebyon/deploy/apiclient"
	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
	"github.com/kubebyon/kubebyon/services/cluster/byhand"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
)

// breather is the time between two measurements, for what the one before leaves to be tidied up.
const breather = 3 * time.Second

// provision measures POST to ready against the same objects applied with kubectl, one after the other in turns.
func (b *bench) provision(ctx context.Context) error {
	var ours, pods, raw samples
	// One of each that does not count: Helm's and kubectl's knowledge of the host cluster is in their caches afterwards.
	for i := range b.rounds + 1 {
		took, pod, err := b.post(ctx, fmt.Sprintf("bench-%d", i))
		if err != nil {
			return fmt.Errorf("over HTTP: %w", err)
		}
		hand, err := b.byHand(ctx, fmt.Sprintf("byhand-%d", i))
		if err != nil {
			return fmt.Errorf("by hand: %w", err)
		}
		b.say("   over HTTP %.2f s (Pod after %.2f s), by hand %.2f s", took, pod, hand)
		if i > 0 {
			ours, pods, raw = append(ours, took), append(pods, pod), append(raw, hand)
		}
	}
	b.report.add(against("POST to `ready`, `upstream`, images present", ours, raw, 1.3, "s",
		"over HTTP, asked every 50 ms, against `kubectl apply` of the same objects (the chart's, rendered beforehand; then the tenant's) and the same check that a node could join, asked every 20 ms; in turns, after one of each that does not count"))
	b.report.add(atMost("the same by hand with kubectl", raw, 7, "s", "as above; includes kubectl's own run time"))
	b.report.add(atMost("POST to the Pod's creation", pods, 1, "s", "from sending POST until a watch on the host cluster shows the Pod"))
	return nil
}

// post gives the seconds until ready and until the Pod was created.
func (b *bench) post(ctx context.Context, name string) (ready, pod float64, err error) {
	watch, err := b.host.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{LabelSelector: "app=vcluster"})
	if err != nil {
		return 0, 0, err
	}
	defer watch.Stop()
	began := time.Now()
	cluster, err := b.api.createCluster(ctx, name, b.layout.Net.Host().String())
	if err != nil {
		return 0, 0, err
	}
	created := make(chan float64, 1)
	go func() { // ends with the watch
		for event := range watch.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && p.Namespace == cluster.Namespace {
				created <- time.Since(began).Seconds()
				return
			}
		}
	}()
	if _, err := b.api.waitReady(ctx, cluster.ID); err != nil {
		return 0, 0, err
	}
	ready = time.Since(began).Seconds()
	select {
	case pod = <-created:
	case <-time.After(time.Second):
		return 0, 0, fmt.Errorf("the watch has not shown the Pod of %s", name)
	}
	if err := b.api.deleteCluster(ctx, cluster.ID); err != nil {
		return 0, 0, err
	}
	return ready, pod, settle(ctx, breather)
}

// byHand gives the seconds until a node could join a tenant that was made with kubectl.
func (b *bench) byHand(ctx context.Context, name string) (float64, error) {
	objects, err := byhand.ControlPlane(name, name, b.layout.Net.Host())
	if err != nil {
		return 0, err
	}
	objects = append([]byte("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: "+name+"\n---\n"), objects...)
	began := time.Now()
	if err := b.kubectl(ctx, b.layout.Kubeconfig(), name, objects); err != nil {
		return 0, err
	}
	service, err := b.host.CoreV1().Services(name).Get(ctx, chart.ServiceName(name), metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	pki, err := b.host.CoreV1().Secrets(name).Get(ctx, chart.PKISecretName(name), metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	at := netip.AddrPortFrom(b.layout.Net.Host(), uint16(service.Spec.Ports[0].NodePort)) //nolint:gosec // a port
	if objects, err = byhand.Tenant(pki, at); err != nil {
		return 0, err
	}
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["t"] = &clientcmdapi.Cluster{Server: "https://" + at.String(), CertificateAuthorityData: pki.Data[chart.CACertKey]}
	kubeconfig.AuthInfos["t"] = &clientcmdapi.AuthInfo{Token: string(pki.Data[chart.TokenKey])}
	kubeconfig.Contexts["t"] = &clientcmdapi.Context{Cluster: "t", AuthInfo: "t"}
	kubeconfig.CurrentContext = "t"
	path := b.file(name + ".kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		return 0, err
	}
	tenant, err := kubernetes.NewForConfig(&rest.Config{Host: "https://" + at.String(), BearerToken: string(pki.Data[chart.TokenKey]),
		TLSClientConfig: rest.TLSClientConfig{CAData: pki.Data[chart.CACertKey]}, QPS: -1})
	if err != nil {
		return 0, err
	}
	if err := apiclient.Poll(ctx, 20*time.Millisecond, func() (bool, error) {
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return tenant.Discovery().RESTClient().Get().AbsPath("/readyz").Do(short).Error() == nil, nil
	}); err != nil {
		return 0, err
	}
	// What a starting API server refuses is applied again, as a person would.
	var last error
	if err := apiclient.Poll(ctx, 20*time.Millisecond, func() (bool, error) {
		last = b.kubectl(ctx, path, "", objects)
		return last == nil, nil
	}); err != nil {
		return 0, fmt.Errorf("%w; last: %w", err, last)
	}
	if err := byhand.AwaitJoinable(ctx, pki, at); err != nil {
		return 0, err
	}
	took := time.Since(began).Seconds()
	if err := b.host.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	if err := apiclient.Poll(ctx, 200*time.Millisecond, func() (bool, error) {
		_, err := b.host.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	}); err != nil {
		return 0, err
	}
	return took, settle(ctx, breather)
}

// kubectl applies objects; without validation it asks less of the cluster, which is to its favour.
func (b *bench) kubectl(ctx context.Context, kubeconfig, namespace string, objects []byte) error {
	args := []string{"--kubeconfig", kubeconfig, "apply", "--validate=false", "-f", "-"}
	if namespace != "" {
		args = append(args, "--namespace", namespace)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.layout.Cache, "kubernetes", layout.Kubernetes, "kubectl"), args...)
	cmd.Env = []string{"HOME=" + b.layout.State, "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = bytes.NewReader(objects)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w: %s", err, out)
	}
	return nil
}

// restarts names the containers of all tenants that were started more than once.
func (b *bench) restarts(ctx context.Context) (string, error) {
	pods, err := b.host.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "app=vcluster"})
	if err != nil {
		return "", err
	}
	var names []string
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount > 0 {
				names = append(names, fmt.Sprintf("%s of %s (%d)", c.Name, p.Namespace, c.RestartCount))
			}
		}
	}
	if names == nil {
		return "none", nil
	}
	return strings.Join(names, ", "), nil
}

// fiveAtOnce measures five tenants that are asked for at the same time.
func (b *bench) fiveAtOnce(ctx context.Context) error {
	const many = 5
	var group sync.WaitGroup
	took, failed := make(samples, many), make([]error, many)
	ids := make([]string, many)
	began := time.Now()
	for i := range many {
		group.Go(func() {
			cluster, err := b.api.createCluster(ctx, fmt.Sprintf("five-%d", i), b.layout.Net.Host().String())
			if err == nil {
				ids[i] = cluster.ID
				_, err = b.api.waitReady(ctx, cluster.ID)
			}
			took[i], failed[i] = time.Since(began).Seconds(), err
		})
	}
	group.Wait()
	for i := range many {
		if failed[i] != nil {
			return failed[i]
		}
	}
	restarted, err := b.restarts(ctx)
	if err != nil {
		return err
	}
	b.say("   took %.1f s; started again: %s", took, restarted)
	b.report.comment("Containers of the five that ended and were started again: %s. The kubelet waits 10 s before it does that.", restarted)
	for i := range many {
		group.Go(func() { failed[i] = b.api.deleteCluster(ctx, ids[i]) })
	}
	group.Wait()
	for i := range many {
		if failed[i] != nil {
			return failed[i]
		}
	}
	b.report.add(allWithin("five at once, each until `ready`", took, 20, "s", "five POSTs at the same time; the slowest counts"))
	return settle(ctx, breather)
}
