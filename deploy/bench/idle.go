package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

// tenant is the one that the later phases use, by the kubeconfig that the API hands out.
type tenant struct {
	cluster clusterv1.Cluster
	config  *rest.Config
	api     kubernetes.Interface
}

const (
	idleFor     = 40 * time.Second // before anything idle is measured
	idleWindow  = 20 * time.Second // of one sample
	idleWindows = 3
)

// idle makes the tenant, replaces kubebyon-api with the five processes, and measures both at rest.
func (b *bench) idle(ctx context.Context) error {
	cluster, err := b.api.createCluster(ctx, "bench", b.layout.Net.Host().String())
	if err != nil {
		return err
	}
	if b.tenant.cluster, err = b.api.waitReady(ctx, cluster.ID); err != nil {
		return err
	}
	if err := b.startApart(ctx); err != nil {
		return err
	}
	kubeconfig, err := b.api.Raw(ctx, http.MethodGet, clustersPath+"/"+cluster.ID+"/kubeconfig", nil)
	if err != nil {
		return err
	}
	if b.tenant.config, err = clientcmd.RESTConfigFromKubeConfig(kubeconfig); err != nil {
		return err
	}
	b.tenant.config.QPS = -1
	if b.tenant.api, err = kubernetes.NewForConfig(b.tenant.config); err != nil {
		return err
	}
	// Each process has done its work once: it would be smaller if it had not.
	for _, path := range []string{clustersPath, "/api/console/nodes?cluster_id=" + cluster.ID, clustersPath + "/" + cluster.ID + "/join-tokens"} {
		if _, err := b.api.Raw(ctx, http.MethodGet, path, nil); err != nil {
			return err
		}
	}
	if b.skipIdle {
		return nil
	}
	if err := settle(ctx, idleFor); err != nil {
		return err
	}
	var memory, cpu, five samples
	var last podStats
	for i := range idleWindows + 1 {
		now, err := b.podStats(ctx)
		if err != nil {
			return err
		}
		if i > 0 {
			cpu = append(cpu, float64(now.cpuNano-last.cpuNano)/float64(now.at.Sub(last.at).Nanoseconds())*1000)
			memory = append(memory, float64(now.workingSet)/(1<<20))
			total, _, err := b.fiveProcesses()
			if err != nil {
				return err
			}
			five = append(five, total)
		}
		last = now
		if i < idleWindows {
			if err := settle(ctx, idleWindow); err != nil {
				return err
			}
		}
	}
	_, parts, err := b.fiveProcesses()
	if err != nil {
		return err
	}
	b.report.add(atMost("idle memory of one tenant (working set)", memory, 270, "MiB",
		"its Pod in the host kubelet's stats summary (usage without inactive file pages), without nodes, from 40 s after `ready`"))
	b.report.add(atMost("idle CPU of one tenant", cpu, 45, "millicores", "CPU time of the same Pod over 20 s each"))
	b.report.add(atMost("idle memory of the five processes together", five, 250, "MiB",
		"sum of PSS (smaps_rollup) of "+parts+"; each has answered before; a NATS server runs beside them and is not counted"))
	return nil
}

type podStats struct {
	workingSet, cpuNano uint64
	at                  time.Time
}

// podStats asks the host's kubelet about the tenant's Pod.
func (b *bench) podStats(ctx context.Context) (podStats, error) {
	pod, err := b.host.CoreV1().Pods(b.tenant.cluster.Namespace).Get(ctx, b.tenant.cluster.VClusterName+"-0", metav1.GetOptions{})
	if err != nil {
		return podStats{}, err
	}
	text, err := b.host.CoreV1().RESTClient().Get().Resource("nodes").Name(pod.Spec.NodeName).SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
	if err != nil {
		return podStats{}, err
	}
	var summary struct {
		Pods []struct {
			PodRef struct {
				UID string `json:"uid"`
			} `json:"podRef"`
			CPU struct {
				Time time.Time `json:"time"`
				Used uint64    `json:"usageCoreNanoSeconds"`
			} `json:"cpu"`
			Memory struct {
				WorkingSet uint64 `json:"workingSetBytes"`
			} `json:"memory"`
		} `json:"pods"`
	}
	if err := json.Unmarshal(text, &summary); err != nil {
		return podStats{}, err
	}
	for _, p := range summary.Pods {
		if p.PodRef.UID == string(pod.UID) && p.Memory.WorkingSet > 0 && p.CPU.Used > 0 {
			return podStats{p.Memory.WorkingSet, p.CPU.Used, p.CPU.Time}, nil
		}
	}
	return podStats{}, fmt.Errorf("the kubelet's summary has nothing about %s/%s", pod.Namespace, pod.Name)
}

// fiveProcesses gives the MiB of all, and each one's as text.
func (b *bench) fiveProcesses() (total float64, parts string, err error) {
	var each []string
	for _, name := range slices.Sorted(maps.Keys(b.split)) {
		mib, err := pss(b.split[name].cmd.Process.Pid)
		if err != nil {
			return 0, "", err
		}
		total += mib
		each = append(each, fmt.Sprintf("%s %s", strings.TrimPrefix(name, "kubebyon-"), number(mib)))
	}
	return total, strings.Join(each, ", "), nil
}

func pss(pid int) (mib float64, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(text)) {
		if fields := strings.Fields(l); len(fields) == 3 && fields[0] == "Pss:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no Pss", pid)
}
