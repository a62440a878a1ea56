// Package layout says where the development host keeps its files and which versions it runs. It must never touch a
// file itself, beyond looking for the source tree.
package layout

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// The versions that the host and the tenants run; image tags and the chart's defaults name the same ones.
const (
	Kubernetes = "v1.37.2"
	Etcd       = "v3.7.3"
	EtcdImage  = "3.7.3-0"
	CoreDNS    = "v1.15.0"
	Flannel    = "v0.28.10"
	FlannelCNI = "v1.9.1-flannel1"
	Pause      = "3.10.1"
)

// Layout is one run of the host: its folders and its network.
type Layout struct {
	Cache  string // built or downloaded, shared by every run; keyed by version
	State  string // one run's processes, certificates and logs
	Source string // deploy/devhost in the source tree: the nested modules are built from there
	Net    Net
}

// Net is a /24 out of 198.18.0.0/15's lower half, the range that RFC 2544 keeps for benchmarks between devices. Its
// third octet names the bridge and everything else that is machine-wide, so that two hosts can stand side by side.
type Net struct{ octet int }

// Octet is the third octet of the network: 0 for 198.18.0.0/24.
func (n Net) Octet() int { return n.octet }

// Bridge is the name of the bridge in the root namespace.
func (n Net) Bridge() string { return "kbbr" + strconv.Itoa(n.octet) }

// Gateway is the bridge's own address: what machines call this machine.
func (n Net) Gateway() netip.Addr { return n.addr(1) }

// Host is the address of the host cluster's only node.
func (n Net) Host() netip.Addr { return n.addr(2) }

// Prefix is the whole network.
func (n Net) Prefix() netip.Prefix { return netip.PrefixFrom(n.addr(0), 24) }

// Veth is the root side of the host node's cable.
func (n Net) Veth() string { return "kbh" + strconv.Itoa(n.octet) }

// Owner is the machine-wide file that names the state folder this network belongs to.
func (n Net) Owner() string { return "/run/kubebyon-devhost-" + strconv.Itoa(n.octet) }

func (n Net) addr(last byte) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte(n.octet), last})
}

// FromEnv reads KUBEBYON_CACHE, KUBEBYON_STATE and KUBEBYON_DEVHOST_NETWORK; dir is a folder inside the source tree.
func FromEnv(lookup func(string) (string, bool), dir string) (Layout, error) {
	root, err := Root(dir)
	if err != nil {
		return Layout{}, err
	}
	l := Layout{Source: filepath.Join(root, "deploy", "devhost"), State: filepath.Join(root, ".run")}
	if v, ok := lookup("KUBEBYON_STATE"); ok && v != "" {
		l.State = v
	}
	if v, ok := lookup("KUBEBYON_CACHE"); ok && v != "" {
		l.Cache = v
	} else {
		home, ok := lookup("HOME")
		if !ok || home == "" {
			return Layout{}, errors.New("neither KUBEBYON_CACHE nor HOME is set: set KUBEBYON_CACHE to a folder for binaries and images")
		}
		l.Cache = filepath.Join(home, ".cache", "kubebyon")
	}
	for _, p := range []*string{&l.Cache, &l.State} {
		if *p, err = filepath.Abs(*p); err != nil {
			return Layout{}, err
		}
	}
	if v, ok := lookup("KUBEBYON_DEVHOST_NETWORK"); ok && v != "" {
		if l.Net, err = ParseNet(v); err != nil {
			return Layout{}, err
		}
	}
	return l, nil
}

// ParseNet accepts 198.18.X.0/24 with X from 0 to 255.
func ParseNet(s string) (Net, error) {
	p, err := netip.ParsePrefix(s)
	if err == nil {
		a := p.Addr().As16()
		if p.Addr().Is4() && p.Bits() == 24 && a[12] == 198 && a[13] == 18 && a[15] == 0 {
			return Net{octet: int(a[14])}, nil
		}
	}
	return Net{}, fmt.Errorf("KUBEBYON_DEVHOST_NETWORK is %q: it accepts 198.18.X.0/24, with X from 0 to 255", s)
}

// Root is the folder that holds go.work, dir itself or one above it.
func Root(dir string) (string, error) {
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.work")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not inside KubeBYON's source tree (no go.work above it): run this from the repository", dir)
		}
	}
}

// Arch is the architecture in file names.
func Arch() string { return runtime.GOARCH }

// Kubeconfig is the administrator's kubeconfig of the host cluster.
func (l Layout) Kubeconfig() string { return filepath.Join(l.State, "host.kubeconfig") }

// Host is where the host cluster keeps its own files.
func (l Layout) Host() string { return filepath.Join(l.State, "host") }

// Images is where image tarballs are cached.
func (l Layout) Images() string { return filepath.Join(l.Cache, "images") }

// Below reports whether path is dir or inside it; both are absolute and clean.
func Below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
