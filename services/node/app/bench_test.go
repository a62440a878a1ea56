package app_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/rpc"
)

// BenchmarkList compares the service, asked over NATS, with a bare client-go List of the same kube-apiserver, one call of
// each after the other. Besides ns/op, which counts both, it reports the two medians and their ratio:
//
//	bare-ms  service-ms  ratio
func BenchmarkList(b *testing.B) {
	w := start(b)
	cluster := w.cluster(b, nil)
	quick := rest.CopyConfig(w.rest)
	quick.QPS, quick.Burst = -1, -1
	bare := must(kubernetes.NewForConfig(quick)).CoreV1().Nodes()
	list := rpc.Client(w.conn, nodev1.List)
	w.empty(b)
	have := 0
	for _, n := range []int{1, 100, 1000} {
		w.register(b, n-have, fmt.Sprintf("worker-%04d", n))
		have = n
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			ctx := rpc.WithPrincipal(b.Context(), owner)
			var plain, ours []time.Duration
			round := func() {
				begin := time.Now()
				direct, err := bare.List(ctx, metav1.ListOptions{})
				plain = append(plain, time.Since(begin))
				if err != nil || len(direct.Items) != n {
					b.Fatalf("bare: %d nodes, %v", len(direct.Items), err)
				}
				begin = time.Now()
				got, err := list(ctx, nodev1.ListRequest{ClusterID: cluster.ID})
				ours = append(ours, time.Since(begin))
				if err != nil || len(got.Nodes) != n {
					b.Fatalf("service: %d nodes, %v", len(got.Nodes), err)
				}
			}
			for range 5 {
				round()
			}
			plain, ours = nil, nil
			for b.Loop() {
				round()
			}
			slices.Sort(plain)
			slices.Sort(ours)
			p, o := plain[len(plain)/2], ours[len(ours)/2]
			b.ReportMetric(float64(p.Microseconds())/1000, "bare-ms")
			b.ReportMetric(float64(o.Microseconds())/1000, "service-ms")
			b.ReportMetric(float64(o)/float64(p), "ratio")
		})
	}
	w.empty(b)
}
