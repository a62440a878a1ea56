// Package images makes container images from scratch, with upstream's names and tags, out of the cache's programs and
// this machine's Debian packages. It must never fetch anything, and nothing but the named files enters an image.
package images

import (
	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

// The images by their short names, which are also their tarballs' names.
const (
	Pause             = "pause"
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Proxy             = "kube-proxy"
	CoreDNS           = "coredns"
	Flannel           = "flannel"
	FlannelCNI        = "flannel-cni-plugin"
	Busybox           = "busybox"
)

// spec says what an image holds.
type spec struct {
	ref        string
	programs   map[string]string // path in the image → program of the cache
	iptables   bool              // the packet filter's Debian tools, and a shell to choose between them
	shell      bool              // busybox with its applets in /bin
	entrypoint []string
}

func specs() map[string]spec {
	one := func(ref, program, path string) spec {
		return spec{ref: ref, programs: map[string]string{path: program}, entrypoint: []string{path}}
	}
	s := map[string]spec{
		Pause:      one("registry.k8s.io/pause:"+layout.Pause, "pause", "/pause"),
		Etcd:       one("registry.k8s.io/etcd:"+layout.EtcdImage, "etcd", "/usr/local/bin/etcd"),
		CoreDNS:    one("registry.k8s.io/coredns/coredns:"+layout.CoreDNS, "coredns", "/coredns"),
		Flannel:    one("ghcr.io/flannel-io/flannel:"+layout.Flannel, "flanneld", "/opt/bin/flanneld"),
		FlannelCNI: one("ghcr.io/flannel-io/flannel-cni-plugin:"+layout.FlannelCNI, "flannel", "/flannel"),
		Busybox:    {ref: "kubebyon.local/busybox:1", shell: true, entrypoint: []string{"/bin/sh"}},
	}
	for _, name := range []string{APIServer, ControllerManager, Scheduler, Proxy} {
		s[name] = one("registry.k8s.io/"+name+":"+layout.Kubernetes, name, "/usr/local/bin/"+name)
	}
	for _, name := range []string{Proxy, Flannel} {
		i := s[name]
		i.iptables, i.shell = true, true
		s[name] = i
	}
	cni := s[FlannelCNI] // upstream's DaemonSet copies the plugin to the node with the image's cp
	cni.shell, cni.entrypoint = true, nil
	s[FlannelCNI] = cni
	return s
}

// Names are all images that can be asked for.
func Names() []string {
	return []string{Pause, Etcd, APIServer, ControllerManager, Scheduler, Proxy, CoreDNS, Flannel, FlannelCNI, Busybox}
}

// Programs are the names of the programs that the named images need.
func Programs(names []string) []string {
	var p []string
	for _, n := range names {
		for _, program := range specs()[n].programs {
			p = append(p, program)
		}
	}
	return p
}
