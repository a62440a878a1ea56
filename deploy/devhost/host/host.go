// Package host runs a real Kubernetes cluster of one node in namespaces of this machine, for development and tests:
// etcd, the control plane, containerd, kubelet and kube-proxy. It must never change the machine outside its own state
// folder, bridge, cable and child cgroups: no mounts, no sysctls, no firewall rules.
package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/deploy/devhost/build"
	"github.com/kubebyon/kubebyon/deploy/devhost/images"
	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
	"github.com/kubebyon/kubebyon/deploy/devhost/prereq"
	"github.com/kubebyon/kubebyon/deploy/devhost/process"
)

// Host is the development host cluster of one state folder.
type Host struct {
	Layout     layout.Layout
	Self       string // the devhost program, which also is the machine's init and the provisioner
	Kubeconfig string // someone else's cluster to use instead, or empty
	Say        func(format string, args ...any)

	Programs build.Programs
	Images   []images.Image

	mu    sync.Mutex // guards state while parts start at the same time
	state runState
}

// startLimit is for a machine that is busy with something else: quiet, a part takes three seconds.
const startLimit = 3 * time.Minute

// programs are what runs on the host itself.
func programs() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "pause"}
}

// Up brings the cluster up and writes its kubeconfig; one that runs already is left as it is. What an earlier run that
// was killed has left behind is cleaned up first. When it fails, it takes down what it started.
func (h *Host) Up(ctx context.Context) (err error) {
	if h.Kubeconfig != "" {
		return h.useExternal(ctx)
	}
	if os.Geteuid() != 0 {
		if err := prereq.Ensure(ctx, h.Say); err != nil {
			return err
		}
		return errors.New("the development host makes namespaces and a bridge: run it as root, or set KUBECONFIG to a cluster that you have")
	}
	unlock, err := h.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := h.load(); err != nil {
		return err
	}
	if h.whole() && until(ctx, 20*time.Second, "the cluster that runs already", func() error { return h.ready(ctx) }) == nil {
		h.Say("already up")
		return nil
	}
	if len(h.state.Processes) > 0 || len(h.state.Cgroups) > 0 {
		h.Say("cleaning up after an earlier run")
		if err := h.stop(ctx); err != nil {
			return err
		}
	}
	if err := h.prepare(ctx); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.stop(context.WithoutCancel(ctx)))
		}
	}()
	return h.bring(ctx)
}

// prepare gets packages, programs and images.
func (h *Host) prepare(ctx context.Context) error {
	if err := prereq.Ensure(ctx, h.Say); err != nil {
		return err
	}
	var err error
	if h.Programs, err = build.Ensure(ctx, h.Layout, append(programs(), images.Programs(Tarballs())...), h.Say); err != nil {
		return err
	}
	h.Images, err = images.Ensure(ctx, h.Layout, h.Programs, Tarballs(), h.Say)
	return err
}

// bring starts everything, what does not depend on each other at the same time.
func (h *Host) bring(ctx context.Context) error {
	if err := h.claim(); err != nil {
		return err
	}
	if err := h.wipe(); err != nil {
		return err
	}
	if err := errors.Join(h.writePKI(), h.writeNode()); err != nil {
		return err
	}
	if err := h.startMachine(ctx); err != nil {
		return err
	}
	h.Say("machine %s is at %s", NodeName, h.Layout.Net.Host())
	if err := errors.Join(h.startEtcd(), h.startAPIServer()); err != nil {
		return err
	}
	runtime := make(chan error, 1)
	go func() { runtime <- h.startContainerd(ctx) }()
	err := until(ctx, startLimit, "kube-apiserver (see "+h.dir("log/kube-apiserver.log")+")", func() error { return h.readyz(ctx) })
	if err == nil {
		h.Say("kube-apiserver answers")
		err = errors.Join(h.startControllers(), h.startProxy(), h.startProvisioner(ctx))
	}
	if err := errors.Join(err, <-runtime); err != nil { // also after an error: what it starts must be known to stop
		return err
	}
	if err := h.startKubelet(); err != nil {
		return err
	}
	if err := until(ctx, startLimit, "the node (see "+h.dir("log/kubelet.log")+")", func() error { return h.ready(ctx) }); err != nil {
		return err
	}
	b, err := os.ReadFile(h.pki("admin.kubeconfig"))
	if err != nil {
		return err
	}
	return os.WriteFile(h.Layout.Kubeconfig(), b, 0o600)
}

// Down stops everything and removes what Up made outside the state folder. Images and logs stay in the state folder;
// the cluster's data does not outlive the next Up.
func (h *Host) Down(ctx context.Context) error {
	unlock, err := h.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := h.load(); err != nil {
		return err
	}
	if h.state.External != "" {
		h.Say("the cluster of %s is not ours to stop", h.state.External)
		h.state = runState{}
		return errors.Join(h.save(), remove(h.Layout.Kubeconfig()))
	}
	return h.stop(ctx)
}

// grace is how long each process may take to end. A kube-apiserver whose watchers hang on would take a minute, and its
// etcd must not go before it.
func grace(name string) time.Duration {
	switch name {
	case "etcd", "containerd", "kubelet":
		return 3 * time.Second
	case "kube-apiserver":
		return 5 * time.Second
	case "machine":
		return 0
	default:
		return 2 * time.Second
	}
}

// stop ends the processes in the reverse order of their start, so kube-apiserver before etcd and the machine last,
// whose end kills what is left in it.
func (h *Host) stop(ctx context.Context) error {
	var errs []error
	for i := len(h.state.Processes) - 1; i >= 0; i-- {
		p := h.state.Processes[i]
		if p.Name == "containerd" && p.Alive() {
			h.removeContainers(ctx)
		}
		errs = append(errs, p.Stop(ctx, grace(p.Name)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	n := h.Layout.Net
	if len(h.state.Cgroups) > 0 {
		errs = append(errs, process.RemoveCgroups(h.state.Cgroups))
		for range 40 { // the kernel removes the cable with the machine's network, a moment after the last process
			if _, err := os.Stat("/sys/class/net/" + n.Veth()); err != nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		errs = append(errs, removeBridge(ctx, n))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	h.state = runState{}
	return errors.Join(h.save(), remove(h.Layout.Kubeconfig()), h.unclaim())
}

// wipe removes the last cluster's data. containerd's folder stays: it holds the images, unpacked.
func (h *Host) wipe() error {
	for _, d := range []string{"etcd", "kubelet", "volumes", "pki", "cni", "etc", "log", "decoys"} {
		if err := os.RemoveAll(h.dir(d)); err != nil {
			return err
		}
	}
	return os.MkdirAll(h.Layout.Host(), 0o755)
}

func (h *Host) config() (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", h.pki("admin.kubeconfig"))
	if err != nil {
		return nil, err
	}
	c.QPS, c.Burst, c.Timeout, c.Proxy = 50, 100, 5*time.Second, direct
	return c, nil
}

func (h *Host) client() (kubernetes.Interface, error) {
	c, err := h.config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(c)
}

func (h *Host) readyz(ctx context.Context) error {
	client, err := h.client()
	if err != nil {
		return err
	}
	return readyz(ctx, client)
}

func readyz(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

// ready wants a Ready node and the default ServiceAccount, without which no pod can be made.
func (h *Host) ready(ctx context.Context) error {
	client, err := h.client()
	if err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if why := notReady(node); why != "" {
		return errors.New(why)
	}
	_, err = client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
	return err
}

// Status describes the run in a few lines.
func (h *Host) Status(ctx context.Context) (string, error) {
	if err := h.load(); err != nil {
		return "", err
	}
	if h.state.External != "" {
		return fmt.Sprintf("using the cluster of %s", h.state.External), nil
	}
	if len(h.state.Processes) == 0 {
		return "down", nil
	}
	text := ""
	for _, p := range h.state.Processes {
		state := "running"
		if !p.Alive() {
			state = "ended; see " + h.dir("log/"+p.Name+".log")
		}
		text += fmt.Sprintf("%-24s pid %-8d %s\n", p.Name, p.PID, state)
	}
	if err := h.ready(ctx); err != nil {
		return text, fmt.Errorf("not ready: %w", err)
	}
	return text + "ready, kubeconfig " + h.Layout.Kubeconfig(), nil
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
