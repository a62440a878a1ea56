package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// harness is the folder inside a machine that holds what this package adds to it.
const harness = "/usr/local/lib/kubebyon-machine"

var (
	basePackages = []string{
		"systemd", "systemd-sysv", "dbus", "udev", "kmod", "procps", "iproute2", "iptables", "conntrack", "ethtool", "socat",
		"curl", "ca-certificates", "libseccomp2", "dash", "bash", "mksh", "busybox-static",
	}
	runtimePackages = []string{"containerd", "runc", "containernetworking-plugins"}
)

func packages(suite string) []string {
	p := slices.Clone(basePackages)
	if suite == Bookworm {
		p = append(p, runtimePackages...)
	}
	slices.Sort(p)
	return p
}

// tools installs what this package calls, from apt, where it is missing.
func tools(ctx context.Context, log io.Writer) error {
	var missing []string
	for _, t := range [][2]string{
		{"mmdebstrap", "mmdebstrap"}, {"systemd-nspawn", "systemd-container"}, {"zstd", "zstd"}, {"ip", "iproute2"}, {"nsenter", "util-linux"}, {"tar", "tar"},
	} {
		if _, err := exec.LookPath(t[0]); err != nil {
			missing = append(missing, t[1])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("install %s: machines are made with them", strings.Join(missing, ", "))
	}
	fmt.Fprintf(log, "apt-get install %s\n", strings.Join(missing, " "))
	install := func() error {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get install %s: %w: %s", strings.Join(missing, " "), err, out[max(0, len(out)-500):])
		}
		return nil
	}
	if install() == nil { // the package lists may be old or absent
		return nil
	}
	if err := run(ctx, "apt-get", "update", "-q"); err != nil {
		return err
	}
	return install()
}

// rootfs gives the cached archive of a suite and makes it where it is missing, about half a minute. The name holds a
// hash of the package list, so that a change of the list makes a new one.
func rootfs(ctx context.Context, cache, suite string, log io.Writer) (string, error) {
	dir := filepath.Join(cache, "rootfs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	list := strings.Join(packages(suite), ",")
	sum := sha256.Sum256([]byte(suite + " " + list + " v1"))
	archive := filepath.Join(dir, suite+"-"+hex.EncodeToString(sum[:6])+".tar.zst")
	if exists(archive) {
		return archive, nil
	}
	unlock, err := lock(ctx, filepath.Join(dir, "."+suite+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(archive) { // made by whoever held the lock
		return archive, nil
	}
	mirror, err := debianMirror()
	if err != nil {
		return "", err
	}
	fmt.Fprintf(log, "making the %s root file system from %s\n", suite, mirror)
	tmp, err := os.MkdirTemp(dir, suite+"-new-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	plain := filepath.Join(tmp, "root.tar")
	if err := run(ctx, "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--dpkgopt=force-unsafe-io",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--include="+list, suite, plain, "deb "+mirror+" "+suite+" main"); err != nil {
		return "", err
	}
	if err := run(ctx, "zstd", "-q", "-3", "-T0", "-f", plain, "-o", plain+".zst"); err != nil {
		return "", err
	}
	return archive, os.Rename(plain+".zst", archive)
}

// debianMirror is the one that this machine's apt is set up with.
func debianMirror() (string, error) {
	if v := os.Getenv("KUBEBYON_DEBIAN_MIRROR"); v != "" {
		return v, nil
	}
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	for _, f := range append(files, "/etc/apt/sources.list") {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			for _, w := range strings.Fields(line) {
				isSource := strings.HasPrefix(line, "URIs:") || strings.HasPrefix(line, "deb ")
				if isSource && strings.HasPrefix(w, "http") && strings.HasSuffix(strings.TrimSuffix(w, "/"), "/debian") {
					return strings.TrimSuffix(w, "/"), nil
				}
			}
		}
	}
	return "", errors.New("no Debian mirror in /etc/apt: set KUBEBYON_DEBIAN_MIRROR, e.g. http://deb.debian.org/debian")
}
