package host

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubebyon/kubebyon/deploy/devhost/images"
	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

// NodeName is the name of the host cluster's only node.
const NodeName = "host"

// volumesInNode is where the node sees the folder of the default StorageClass's volumes.
const volumesInNode = "/var/lib/kubebyon/volumes"

// containerdConfig is a version 2 file: containerd 1.6 to 2.x all read it. Without CAP_SYS_RESOURCE runc cannot lower
// oom_score_adj and dies with "can't get final child's PID from pipe: EOF", hence restrict_oom_score_adj.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:%s"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%s"
`

const cniConfig = `{"cniVersion": "0.4.0", "name": "host", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[1]s/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: %[1]s/kubelet-server.crt
tlsPrivateKeyFile: %[1]s/kubelet-server.key
clusterDomain: cluster.local
resolvConf: %[2]s
failSwapOn: false
maxPods: 250
serializeImagePulls: false
evictionHard: {memory.available: 100Mi, nodefs.available: 1%%, imagefs.available: 1%%, nodefs.inodesFree: 1%%}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
volumePluginDir: /var/lib/kubelet/volumeplugins
`

// The zeroes keep kube-proxy away from the machine-wide limits of connection tracking.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: %s}
clusterCIDR: %s
hostnameOverride: %s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 100ms}
`

// writeNode writes the node's configuration files.
func (h *Host) writeNode() error {
	cni := h.dir("cni")
	files := map[string]string{
		h.dir("etc/containerd.toml"):           fmt.Sprintf(containerdConfig, layout.Pause, cni),
		h.dir("etc/kubelet.yaml"):              fmt.Sprintf(kubeletConfig, h.dir("pki"), h.dir("etc/resolv.conf")),
		h.dir("etc/proxy.yaml"):                fmt.Sprintf(proxyConfig, h.pki("proxy.kubeconfig"), podCIDR, NodeName),
		h.dir("etc/resolv.conf"):               "",
		filepath.Join(cni, "10-host.conflist"): fmt.Sprintf(cniConfig, nodePodCIDR),
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// startContainerd starts the runtime, waits for its socket and gives it the images it does not have yet.
func (h *Host) startContainerd(ctx context.Context) error {
	path, err := exec.LookPath("containerd")
	if err != nil {
		return err
	}
	if err := h.startPath("containerd", path, "--config="+h.dir("etc/containerd.toml")); err != nil {
		return err
	}
	socket := fmt.Sprintf("/proc/%d/root/run/containerd/containerd.sock", h.state.Spaces.PID)
	if err := until(ctx, startLimit, "containerd's socket (see "+h.dir("log/containerd.log")+")", func() error {
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err
	}); err != nil {
		return err
	}
	return h.importImages(ctx)
}

// importImages loads the tarballs that changed since they were last loaded. What was loaded is noted in containerd's
// own folder, so that both vanish together.
func (h *Host) importImages(ctx context.Context) error {
	note := h.dir("containerd/kubebyon-imported")
	old, _ := os.ReadFile(note)
	have := make(map[string]bool)
	for line := range strings.Lines(string(old)) {
		have[strings.TrimSpace(line)] = true
	}
	var keep strings.Builder
	for _, i := range h.Images {
		mark := i.Name + " " + i.Inputs
		if !have[mark] {
			if err := h.ctr(ctx, "images", "import", i.Tarball); err != nil {
				return err
			}
		}
		keep.WriteString(mark + "\n")
	}
	return os.WriteFile(note, []byte(keep.String()), 0o644)
}

// ctr runs containerd's client inside the machine.
func (h *Host) ctr(ctx context.Context, args ...string) error {
	_, err := h.Exec(ctx, append([]string{"ctr", "-n", "k8s.io"}, args...)...)
	return err
}

// Exec runs a command inside the machine and gives its output, both streams together.
func (h *Host) Exec(ctx context.Context, args ...string) (string, error) {
	return output(ctx, "nsenter", append([]string{"-t", fmt.Sprint(h.state.Spaces.PID), "--mount", "--net", "--uts", "--ipc", "--pid", "--"}, args...)...)
}

func (h *Host) startKubelet() error {
	return h.start("kubelet", "--config="+h.dir("etc/kubelet.yaml"), "--kubeconfig="+h.pki("kubelet.kubeconfig"),
		"--hostname-override="+NodeName, "--node-ip="+h.Layout.Net.Host().String(), "--root-dir=/var/lib/kubelet", "--v=2")
}

func (h *Host) startProxy() error { return h.start("kube-proxy", "--config="+h.dir("etc/proxy.yaml")) }

// Tarballs are the images that the host's node needs: a tenant's control plane and the smoke image.
func Tarballs() []string {
	return []string{images.Pause, images.Busybox, images.Etcd, images.APIServer, images.ControllerManager, images.Scheduler}
}

// until calls ready every 50 ms until it gives no error; the last error explains why it was given up.
func until(ctx context.Context, limit time.Duration, what string, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s: %w", limit, what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// removeContainers forgets every container, so that the next cluster's kubelet does not find the last one's. A failure
// costs that kubelet some cleaning up, no more.
func (h *Host) removeContainers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	const script = `ids=$(ctr -n k8s.io containers list -q); [ -z "$ids" ] || { ctr -n k8s.io tasks kill --signal SIGKILL --all $ids; sleep 0.3; ctr -n k8s.io tasks delete --force $ids; ctr -n k8s.io containers delete $ids; }`
	if _, err := h.Exec(ctx, "sh", "-c", script); err != nil && ctx.Err() != nil {
		h.Say("containers were not removed in time: %v", err)
	}
}

// notReady says why a node is not Ready, or nothing.
func notReady(node *corev1.Node) string {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if c.Status == corev1.ConditionTrue {
				return ""
			}
			return c.Reason + ": " + c.Message
		}
	}
	return "the node has not reported its state yet"
}
