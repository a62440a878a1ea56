package host

import (
	"path/filepath"

	"github.com/kubebyon/kubebyon/deploy/devhost/process"
)

const (
	serviceCIDR = "10.96.0.0/16"
	serviceIP   = "10.96.0.1"
	podCIDR     = "10.244.0.0/16"
	nodePodCIDR = "10.244.0.0/24" // the first that the controller manager gives out, and there is one node
	apiPort     = "6443"
	etcdURL     = "http://127.0.0.1:2379"
	nodePath    = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

func (h *Host) server() string { return "https://" + h.Layout.Net.Host().String() + ":" + apiPort }

// start starts one of our programs inside the machine and records it.
func (h *Host) start(name string, args ...string) error {
	return h.startPath(name, h.Programs.Path(name), args...)
}

func (h *Host) startPath(name, path string, args ...string) error {
	rec, err := process.Command{Name: name, Path: path, Args: args, Join: h.state.Spaces,
		Env: []string{"PATH=" + nodePath, "HOME=/root"}, Log: h.dir("log/" + name + ".log")}.Start()
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.Processes = append(h.state.Processes, rec)
	return h.save()
}

func (h *Host) pki(name string) string { return filepath.Join(h.dir("pki"), name) }

// startEtcd starts the store. It does not sync to disk: nothing of a development host outlives its machine.
func (h *Host) startEtcd() error {
	const peer = "http://127.0.0.1:2380"
	return h.start("etcd", "--name=host", "--data-dir="+h.dir("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=host="+peer)
}

func (h *Host) startAPIServer() error {
	return h.start("kube-apiserver", "--advertise-address="+h.Layout.Net.Host().String(), "--secure-port="+apiPort, "--etcd-servers="+etcdURL,
		"--service-cluster-ip-range="+serviceCIDR, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--profiling=false", "--client-ca-file="+h.pki("ca.crt"),
		"--tls-cert-file="+h.pki("apiserver.crt"), "--tls-private-key-file="+h.pki("apiserver.key"),
		"--kubelet-client-certificate="+h.pki("apiserver-kubelet-client.crt"), "--kubelet-client-key="+h.pki("apiserver-kubelet-client.key"),
		"--kubelet-certificate-authority="+h.pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+h.pki("sa.pub"), "--service-account-signing-key-file="+h.pki("sa.key"),
		"--requestheader-client-ca-file="+h.pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--proxy-client-cert-file="+h.pki("front-proxy-client.crt"), "--proxy-client-key-file="+h.pki("front-proxy-client.key"),
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User")
}

// startControllers starts the controller manager and the scheduler. The controller manager's client limits cost a
// start 5 s at their defaults, and a single replica needs no election.
func (h *Host) startControllers() error {
	kc := h.pki("controller-manager.kubeconfig")
	if err := h.start("kube-controller-manager", "--bind-address=127.0.0.1", "--kubeconfig="+kc, "--authentication-kubeconfig="+kc, "--authorization-kubeconfig="+kc,
		"--cluster-signing-cert-file="+h.pki("ca.crt"), "--cluster-signing-key-file="+h.pki("ca.key"), "--root-ca-file="+h.pki("ca.crt"),
		"--service-account-private-key-file="+h.pki("sa.key"), "--use-service-account-credentials=true",
		"--allocate-node-cidrs=true", "--cluster-cidr="+podCIDR, "--service-cluster-ip-range="+serviceCIDR,
		"--leader-elect=false", "--kube-api-qps=200", "--kube-api-burst=400"); err != nil {
		return err
	}
	kc = h.pki("scheduler.kubeconfig")
	return h.start("kube-scheduler", "--bind-address=127.0.0.1", "--kubeconfig="+kc, "--authentication-kubeconfig="+kc, "--authorization-kubeconfig="+kc, "--leader-elect=false")
}
