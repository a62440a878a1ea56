package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// nodes measures GET …/nodes through the gateway, NATS and the node service against client-go's List of the same nodes.
func (b *bench) nodes(ctx context.Context) error {
	// Nodes that exist in name alone must not get Pods by the thousand.
	for namespace, name := range map[string]string{"kube-system": "kube-proxy", "kube-flannel": "kube-flannel-ds"} {
		if err := b.tenant.api.AppsV1().DaemonSets(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	compact := rest.CopyConfig(b.tenant.config)
	compact.ContentType = runtime.ContentTypeProtobuf
	protobuf, err := kubernetes.NewForConfig(compact)
	if err != nil {
		return err
	}
	bare := func(api kubernetes.Interface) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) {
			list, err := api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			if err != nil {
				return 0, err
			}
			return len(list.Items), nil
		}
	}
	path := "/api/console/nodes?cluster_id=" + b.tenant.cluster.ID
	have := 0
	for _, n := range []int{1, 100, 1000} {
		if err := b.register(ctx, have, n); err != nil {
			return err
		}
		have = n
		body, err := b.api.Raw(ctx, http.MethodGet, path, nil)
		if err != nil {
			return err
		}
		var answer struct {
			Nodes []struct{} `json:"nodes"`
		}
		if err := json.Unmarshal(body, &answer); err != nil || len(answer.Nodes) != n {
			return fmt.Errorf("the gateway lists %d of %d nodes (%w)", len(answer.Nodes), n, err)
		}
		size := len(body)
		// As with any HTTP client, the time ends with the last byte; client-go's ends with decoded objects, which it always makes.
		ours := func(ctx context.Context) (int, error) {
			body, err := b.api.Raw(ctx, http.MethodGet, path, nil)
			if err == nil && len(body) < size*9/10 {
				err = fmt.Errorf("%d bytes where there were %d", len(body), size)
			}
			return n, err
		}
		var took [3]samples
		for round := range 35 {
			for i, list := range []func(context.Context) (int, error){ours, bare(b.tenant.api), bare(protobuf)} {
				began := time.Now()
				got, err := list(ctx)
				if err != nil {
					return err
				}
				if got != n {
					return fmt.Errorf("%d of %d nodes", got, n)
				}
				if round >= 5 {
					took[i] = append(took[i], time.Since(began).Seconds()*1000)
				}
			}
		}
		l := against(fmt.Sprintf("`GET …/nodes`, %d nodes", n), took[0], took[1], 1.5, "ms",
			"through gateway, NATS and node service, live from the tenant's API, against client-go's `List` with its defaults (JSON) and no client-side limit, of the same nodes (10 images, 4 conditions each); one caller, in turns, 5 of each that do not count")
		b.report.add(l)
		if l.value > l.limit {
			b.report.comment("Why %d nodes miss: on top of the tenant's own answer a list takes %s ms, for the session, two calls over NATS and the question, asked every time, whether the caller may see the cluster.",
				n, number(took[0].median()-took[1].median()))
		}
		b.report.comment("client-go asked for protobuf lists %d nodes in %s: %s x.", n, took[2].text("ms"), number(took[0].median()/took[2].median()))
	}
	return nil
}

// register makes the nodes from have+1 to want as their kubelets would report them.
func (b *bench) register(ctx context.Context, have, want int) error {
	nodes := b.tenant.api.CoreV1().Nodes()
	var group sync.WaitGroup
	var next atomic.Int64
	next.Store(int64(have))
	failed := make([]error, 8)
	for worker := range failed {
		group.Go(func() {
			for i := next.Add(1); i <= int64(want) && failed[worker] == nil; i = next.Add(1) {
				node := reported(fmt.Sprintf("node-%04d", i))
				status := node.Status
				made, err := nodes.Create(ctx, node, metav1.CreateOptions{})
				if err == nil {
					patch, _ := json.Marshal(map[string]any{"status": status})
					_, err = nodes.Patch(ctx, made.Name, "application/strategic-merge-patch+json", patch, metav1.PatchOptions{}, "status")
				}
				failed[worker] = err
			}
		})
	}
	group.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return settle(ctx, breather)
}

// reported is a node as a kubelet of 1.37 reports it.
func reported(name string) *corev1.Node {
	now := metav1.Now()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			"kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
		}, Annotations: map[string]string{
			"flannel.alpha.coreos.com/backend-data": `{"VNI":1,"VtepMAC":"5e:2c:1b:0d:aa:01"}`, "flannel.alpha.coreos.com/backend-type": "vxlan",
			"flannel.alpha.coreos.com/kube-subnet-manager": "true", "flannel.alpha.coreos.com/public-ip": "198.18.0.11",
			"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
		}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.18.0.11"}, {Type: corev1.NodeHostName, Address: name}},
			Capacity:  corev1.ResourceList{},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: "5f2b6a1e0f5a4c0e8f8f6c5f3f1f2f3f", SystemUUID: "5f2b6a1e-0f5a-4c0e-8f8f-6c5f3f1f2f3f", BootID: "2f2b6a1e-0f5a-4c0e-8f8f-6c5f3f1f2f3f",
				KernelVersion: "6.12.57+deb13-amd64", OSImage: "Debian GNU/Linux 13 (trixie)", ContainerRuntimeVersion: "containerd://2.4.2",
				KubeletVersion: "v1.37.2", OperatingSystem: "linux", Architecture: "amd64",
			},
		},
	}
	for k, v := range map[corev1.ResourceName]string{"cpu": "4", "memory": "16316412Ki", "pods": "110", "ephemeral-storage": "50620216Ki", "hugepages-2Mi": "0"} {
		node.Status.Capacity[k] = resource.MustParse(v)
	}
	node.Status.Allocatable = node.Status.Capacity.DeepCopy()
	for kind, reason := range map[corev1.NodeConditionType]string{
		corev1.NodeMemoryPressure: "KubeletHasSufficientMemory", corev1.NodeDiskPressure: "KubeletHasNoDiskPressure",
		corev1.NodePIDPressure: "KubeletHasSufficientPID", corev1.NodeReady: "KubeletReady",
	} {
		c := corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: "kubelet has no problem of that kind", LastHeartbeatTime: now, LastTransitionTime: now}
		if kind == corev1.NodeReady {
			c.Status = corev1.ConditionTrue
		}
		node.Status.Conditions = append(node.Status.Conditions, c)
	}
	for i := range 10 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{SizeBytes: 73 << 20, Names: []string{
			fmt.Sprintf("registry.k8s.io/some/image-%d@sha256:%064d", i, i), fmt.Sprintf("registry.k8s.io/some/image-%d:v1.37.2", i),
		}})
	}
	return node
}
