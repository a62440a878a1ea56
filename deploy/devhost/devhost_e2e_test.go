//go:build e2e

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/deploy/devhost/process"
)

// network is away from the default, so that this test runs beside a host that is in use.
const network = "198.18.201.0/24"

// devhost is the built program with an environment of its own.
type devhost struct {
	program, state string
}

func (d devhost) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), d.program, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KUBECONFIG=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "KUBEBYON_STATE="+d.state, "KUBEBYON_DEVHOST_NETWORK="+network)
	b, err := cmd.CombinedOutput()
	return string(b), err
}

func (d devhost) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := d.run(t, args...)
	if err != nil {
		t.Fatalf("devhost %v: %v\n%s", args, err, out)
	}
	return out
}

func (d devhost) processes(t *testing.T) map[string]process.Record {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(d.state, "devhost.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s struct{ Processes []process.Record }
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	m := make(map[string]process.Record)
	for _, r := range s.Processes {
		m[r.Name] = r
	}
	return m
}

// TestE2EHost is one story, since each part needs what the one before has made.
func TestE2EHost(t *testing.T) {
	d := devhost{program: filepath.Join(t.TempDir(), "devhost"), state: filepath.Join(t.TempDir(), "state")}
	if b, err := exec.CommandContext(t.Context(), "go", "build", "-o", d.program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, b)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(d.state, "host/log/*.log"))
			for _, l := range logs {
				b, _ := os.ReadFile(l)
				t.Logf("%s:\n%s", l, b[max(0, len(b)-1500):])
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, d.program, "down")
		cmd.Env = append(os.Environ(), "KUBEBYON_STATE="+d.state, "KUBEBYON_DEVHOST_NETWORK="+network)
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("down: %v\n%s", err, b)
		}
	})
	before := sysctls(t)

	t.Log(d.must(t, "up"))
	client := connect(t, d)
	t.Run("volumes and node ports", func(t *testing.T) { volumes(t, client, d) })
	t.Run("the proxy's image writes rules", func(t *testing.T) { proxyImage(t, client, d) })

	t.Run("up again changes nothing", func(t *testing.T) {
		old := d.processes(t)
		d.must(t, "up")
		for name, r := range d.processes(t) {
			if old[name] != r {
				t.Errorf("%s was restarted", name)
			}
		}
	})
	t.Run("another state folder on the same network is refused", func(t *testing.T) {
		other := d
		other.state = filepath.Join(t.TempDir(), "other")
		if out, err := other.run(t, "up"); err == nil || !strings.Contains(out, d.state) {
			t.Errorf("error %v, output %s", err, out)
		}
	})
	t.Run("KUBECONFIG names a cluster to use instead", func(t *testing.T) { foreign(t, d) })
	t.Run("up repairs what was killed", func(t *testing.T) {
		for _, name := range []string{"etcd", "provisioner"} {
			if err := d.processes(t)[name].Stop(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := d.run(t, "status"); err == nil {
			t.Errorf("status was content with a dead etcd: %s", out)
		}
		t.Log(d.must(t, "up"))
		d.must(t, "status")
	})
	t.Run("up recovers from its own death", func(t *testing.T) {
		d.must(t, "down")
		for _, after := range []time.Duration{150 * time.Millisecond, 400 * time.Millisecond, 1500 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), after) // CommandContext kills with SIGKILL
			cmd := exec.CommandContext(ctx, d.program, "up")
			cmd.Env = append(os.Environ(), "KUBECONFIG=", "KUBEBYON_STATE="+d.state, "KUBEBYON_DEVHOST_NETWORK="+network)
			out, err := cmd.CombinedOutput()
			cancel()
			if err == nil {
				t.Fatalf("up was done within %s: %s", after, out)
			}
		}
		d.must(t, "up")
	})

	last := d.processes(t)
	d.must(t, "down")
	for name, r := range last {
		if r.Alive() {
			t.Errorf("%s (%d) runs after down", name, r.PID)
		}
	}
	for _, pattern := range []string{"/sys/class/net/kbbr201", "/sys/class/net/kbh201", "/run/kubebyon-devhost-201", "/sys/fs/cgroup/*/kubebyon-host-201",
		"/sys/fs/cgroup/*/*/*/kubebyon-host-201", filepath.Join(d.state, "host.kubeconfig")} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	if after := sysctls(t); after != before {
		t.Errorf("sysctls were\n%s and are\n%s", before, after)
	}
	if out, err := d.run(t, "status"); err != nil || strings.TrimSpace(out) != "down" {
		t.Errorf("status after down: %v, %s", err, out)
	}
}

func connect(t *testing.T, d devhost) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(d.state, "host.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// volumes runs a StatefulSet whose pod adds a line to its volume at each start and serves it.
func volumes(t *testing.T, client kubernetes.Interface, d devhost) {
	t.Helper()
	ctx := t.Context()
	labels := map[string]string{"app": "web"}
	_, err := client.AppsV1().StatefulSets("default").Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: new(int64(1)),
				Containers: []corev1.Container{{Name: "web", Image: "kubebyon.local/busybox:1",
					Command:      []string{"sh", "-c", "echo started >>/data/index.html; exec busybox httpd -f -p 8080 -h /data"},
					VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			}},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	service, err := client.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Selector: labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://198.18.201.2:%d/", service.Spec.Ports[0].NodePort)
	eventually(t, 2*time.Minute, func() error { return serves(ctx, url, "started\n") })
	if err := client.CoreV1().Pods("default").Delete(ctx, "web-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, func() error { return serves(ctx, url, "started\nstarted\n") })

	if err := client.AppsV1().StatefulSets("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "data-web-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, func() error {
		all, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		folders, err := os.ReadDir(filepath.Join(d.state, "host/volumes"))
		if err == nil && len(all.Items)+len(folders) > 0 {
			err = fmt.Errorf("%d volumes and %d folders are left", len(all.Items), len(folders))
		}
		return err
	})
}

// proxyImage runs kube-proxy out of its image in a pod's own network and looks for its rules there.
func proxyImage(t *testing.T, client kubernetes.Interface, d devhost) {
	t.Helper()
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "mirror")
	d.must(t, "mirror", dir)
	pid := d.processes(t)["machine"].PID
	for _, image := range []string{"kube-proxy", "flannel", "flannel-cni-plugin", "coredns"} {
		tarballs, _ := filepath.Glob(filepath.Join(dir, "images", image+"-linux-*.tar"))
		if len(tarballs) != 1 {
			t.Fatalf("%s: the mirror has %v", image, tarballs)
		}
		in, err := os.Open(tarballs[0])
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(ctx, "nsenter", "-t", fmt.Sprint(pid), "-m", "-n", "-p", "ctr", "-n", "k8s.io", "images", "import", "-")
		cmd.Stdin = in
		b, err := cmd.CombinedOutput()
		in.Close()
		if err != nil {
			t.Fatalf("import %s: %v\n%s", image, err, b)
		}
	}
	kubeconfig, err := os.ReadFile(filepath.Join(d.state, "host/pki/proxy.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "proxy"},
		Data: map[string][]byte{"kubeconfig": kubeconfig}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := func(name, image string, command ...string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "c", Image: image, Command: command, ImagePullPolicy: corev1.PullNever}}}}
	}
	proxy := pod("proxy", "registry.k8s.io/kube-proxy:v1.37.2", "sh", "-c", "kube-proxy --kubeconfig=/k/kubeconfig --hostname-override=host --conntrack-max-per-core=0 --conntrack-min=0 "+
		"--conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0 & for i in $(seq 1 100); do iptables-save -t nat | grep KUBE-SVC && exit 0; sleep 0.2; done; exit 1")
	proxy.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	proxy.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "k", MountPath: "/k"}}
	proxy.Spec.Volumes = []corev1.Volume{{Name: "k", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "proxy"}}}}
	for _, p := range []*corev1.Pod{
		proxy,
		pod("flannel", "ghcr.io/flannel-io/flannel:v0.28.10", "sh", "-c", "iptables --version && cp /opt/bin/flanneld /tmp/x && /tmp/x --help 2>&1 | grep kube-subnet-mgr"),
		pod("plugin", "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel1", "cp", "-f", "/flannel", "/tmp/flannel"),
		pod("coredns", "registry.k8s.io/coredns/coredns:v1.15.0", "/coredns", "-version"),
	} {
		if _, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"proxy", "flannel", "plugin", "coredns"} {
		eventually(t, 2*time.Minute, func() error {
			p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
			if err == nil && p.Status.Phase != corev1.PodSucceeded {
				log, _ := client.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
				err = fmt.Errorf("%s is %s: %s", name, p.Status.Phase, log)
			}
			return err
		})
	}
}

// foreign uses the running host as if it were the user's own cluster.
func foreign(t *testing.T, d devhost) {
	t.Helper()
	state := filepath.Join(t.TempDir(), "foreign")
	up := func(kubeconfig, verb string) (string, error) {
		cmd := exec.CommandContext(t.Context(), d.program, verb)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "KUBEBYON_STATE="+state)
		b, err := cmd.CombinedOutput()
		return string(b), err
	}
	if out, err := up(filepath.Join(d.state, "host.kubeconfig"), "up"); err != nil {
		t.Fatalf("up: %v\n%s", err, out)
	}
	written, err := os.ReadFile(filepath.Join(state, "host.kubeconfig"))
	if err != nil || !bytes.Contains(written, []byte("https://198.18.201.2:6443")) {
		t.Errorf("kubeconfig: %v\n%s", err, written)
	}
	if out, err := up(filepath.Join(d.state, "host.kubeconfig"), "down"); err != nil {
		t.Errorf("down: %v\n%s", err, out)
	}
	d.must(t, "status")
	broken := strings.ReplaceAll(string(written), "198.18.201.2:6443", "198.18.201.2:1")
	file := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := up(file, "up"); err == nil || !strings.Contains(out, "does not answer") {
		t.Errorf("a cluster that does not answer: %v\n%s", err, out)
	}
}

func serves(ctx context.Context, url, want string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && string(b) != want {
		err = fmt.Errorf("%s answers %q, not %q", url, b, want)
	}
	return err
}

func eventually(t *testing.T, limit time.Duration, try func() error) {
	t.Helper()
	end := time.Now().Add(limit)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %s: %v", limit, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// sysctls are those of the machine that Kubernetes likes to change.
func sysctls(t *testing.T) string {
	t.Helper()
	text := ""
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
		"kernel/keys/root_maxbytes", "net/netfilter/nf_conntrack_max", "net/ipv4/ip_forward"} {
		b, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text += name + " " + string(b)
	}
	return text
}
