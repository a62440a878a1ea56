// Package build gets the programs that the host and the images are made of: Kubernetes' official release binaries
// where they can be downloaded, and everything else, or everything elsewhere, built from Go modules that are pinned by
// the nested modules in src. It must never put a file into the cache whose checksum it has not seen to be right.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

// Programs maps a program's name to its file in the cache.
type Programs map[string]string

// Path is the file of a program that Ensure was asked for.
func (p Programs) Path(name string) string { return p[name] }

// set is a group of programs out of one module.
type set struct {
	name, version string
	programs      map[string]string // name → package
	ldflags       string
	release       string // where published binaries are, empty for none
}

func sets() []set {
	kubernetes := set{name: "kubernetes", version: layout.Kubernetes, programs: make(map[string]string),
		release: "https://dl.k8s.io/release/" + layout.Kubernetes + "/bin/linux/" + layout.Arch() + "/"}
	parts := strings.Split(strings.TrimPrefix(layout.Kubernetes, "v"), ".")
	const version = "-X k8s.io/component-base/version."
	kubernetes.ldflags = fmt.Sprintf("%sgitVersion=%s %sgitMajor=%s %sgitMinor=%s", version, layout.Kubernetes, version, parts[0], version, parts[1])
	for _, p := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"} {
		kubernetes.programs[p] = "k8s.io/kubernetes/cmd/" + p
	}
	return []set{
		kubernetes,
		{name: "etcd", version: layout.Etcd, programs: map[string]string{"etcd": "."}},
		{name: "pause", version: layout.Pause, programs: map[string]string{"pause": "."}},
		{name: "coredns", version: layout.CoreDNS, programs: map[string]string{"coredns": "github.com/coredns/coredns"}},
		{name: "flannel", version: layout.Flannel, programs: map[string]string{"flanneld": "."}},
		{name: "flannel-cni", version: layout.FlannelCNI, programs: map[string]string{"flannel": "."}},
	}
}

// All are the names of every program that can be asked for.
func All() []string {
	var names []string
	for _, s := range sets() {
		for n := range s.programs {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

// Ensure makes sure that the named programs are in the cache. Those that are there, from the same inputs, cost
// nothing; say hears about what takes time.
func Ensure(ctx context.Context, l layout.Layout, names []string, say func(format string, args ...any)) (Programs, error) {
	unlock, err := lock(l.Cache, say)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found := make(Programs)
	for _, s := range sets() {
		inputs, err := s.inputs(l)
		if err != nil {
			return nil, err
		}
		unreachable := false
		for _, name := range names {
			pkg, ok := s.programs[name]
			if !ok {
				continue
			}
			file := filepath.Join(l.Cache, s.name, s.version, name)
			found[name] = file
			if stamp, err := os.ReadFile(file + ".from"); err == nil && exists(file) && (string(stamp) == inputs || string(stamp) == s.release+name) {
				continue
			}
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return nil, err
			}
			stamp, start := inputs, time.Now()
			if s.release != "" && !unreachable {
				err := download(ctx, s.release+name, file)
				if err == nil {
					stamp = s.release + name
				} else if errors.Is(err, errChecksum) {
					return nil, err
				} else {
					unreachable = true
					say("no release binaries (%v): building %s %s from its module, which takes some minutes the first time", err, s.name, s.version)
				}
			}
			if stamp == inputs {
				if err := s.build(ctx, l, pkg, file); err != nil {
					return nil, err
				}
			}
			if err := os.WriteFile(file+".from", []byte(stamp), 0o644); err != nil {
				return nil, err
			}
			say("%s %s in %.1f s", name, s.version, time.Since(start).Seconds())
		}
	}
	for _, name := range names {
		if found[name] == "" {
			return nil, fmt.Errorf("no program is called %q", name)
		}
	}
	return found, nil
}

func (s set) dir(l layout.Layout) string { return filepath.Join(l.Source, "build", "src", s.name) }

// inputs identifies what a build would be made of: the sources beside go.mod and the toolchain.
func (s set) inputs(l layout.Layout) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), s.ldflags)
	entries, err := os.ReadDir(s.dir(l))
	if err != nil {
		return "", fmt.Errorf("the module that pins %s: %w", s.name, err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(s.dir(l), e.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, e.Name(), len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (s set) build(ctx context.Context, l layout.Layout, pkg, file string) error {
	next := file + ".next"
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", strings.TrimSpace("-s -w "+s.ldflags), "-o", next, pkg)
	cmd.Dir = s.dir(l)
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+layout.Arch())
	if b, err := cmd.CombinedOutput(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("build %s: there is no Go toolchain on PATH: install the one that go.work names", filepath.Base(file))
		}
		return fmt.Errorf("build %s: %w: %s", filepath.Base(file), err, tail(string(b), 2000))
	}
	return os.Rename(next, file)
}

// lock keeps two runs from building into one cache at a time.
func lock(cache string, say func(string, ...any)) (func(), error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		say("waiting for another run that fills %s", cache)
		for unix.Flock(int(f.Fd()), unix.LOCK_EX) == unix.EINTR {
		}
	}
	return func() { _ = f.Close() }, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}
