// Package prereq makes sure that the Debian packages the development host runs on are installed. It must never remove
// or upgrade a package, nor install one that is not on its list.
package prereq

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tool is a file that shows its package to be there, on Debian or elsewhere.
type tool struct{ path, pkg string }

// tools lists what is needed; a path without a slash is looked up like a command.
func tools() []tool {
	return []tool{
		{"containerd", "containerd"}, {"ctr", "containerd"}, {"runc", "runc"},
		{"/usr/lib/cni/bridge", "containernetworking-plugins"}, {"/usr/lib/cni/portmap", "containernetworking-plugins"},
		{"iptables", "iptables"}, {"/usr/sbin/xtables-nft-multi", "iptables"}, {"nft", "nftables"}, {"conntrack", "conntrack"},
		{"ipset", "ipset"}, {"ethtool", "ethtool"}, {"modprobe", "kmod"}, {"/bin/busybox", "busybox-static"},
		{"ip", "iproute2"}, {"nsenter", "util-linux"}, {"/etc/ssl/certs/ca-certificates.crt", "ca-certificates"},
	}
}

// Missing lists the packages whose files are not there, each once.
func Missing() []string {
	var missing []string
	for _, t := range tools() {
		if !has(t.path) && (len(missing) == 0 || missing[len(missing)-1] != t.pkg) {
			missing = append(missing, t.pkg)
		}
	}
	return missing
}

// Ensure installs what is missing with apt-get where this process is root, and otherwise says what to install.
func Ensure(ctx context.Context, say func(format string, args ...any)) error {
	missing := Missing()
	if len(missing) == 0 {
		return nil
	}
	command := "apt-get install --no-install-recommends " + strings.Join(missing, " ")
	if os.Geteuid() != 0 {
		return fmt.Errorf("the development host needs packages that are not installed; run: sudo apt-get update && sudo %s", command)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("this is no Debian or Ubuntu machine (no apt-get): install the equivalents of these packages by hand: %s", strings.Join(missing, " "))
	}
	say("installing %s", strings.Join(missing, " "))
	// A package's service would get in the machine's way: ours run in their own namespaces.
	undo, err := forbidServices()
	if err != nil {
		return err
	}
	defer undo()
	if err := apt(ctx, "update"); err != nil {
		return err
	}
	if err := apt(ctx, append([]string{"install", "-y", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0"}, missing...)...); err != nil {
		return err
	}
	if still := Missing(); len(still) > 0 {
		return fmt.Errorf("%s went through, yet files of these packages are missing: %s", command, strings.Join(still, " "))
	}
	return nil
}

func apt(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	b, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, lastLines(b, 15))
	}
	return nil
}

// forbidServices keeps packages from starting services while they are installed, by Debian's policy-rc.d; undo puts
// things back. A policy that is there already stays.
func forbidServices() (undo func(), err error) {
	const policy = "/usr/sbin/policy-rc.d"
	if _, err := os.Stat(policy); err == nil {
		return func() {}, nil
	}
	if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
		return nil, err
	}
	return func() { _ = os.Remove(policy) }, nil
}

// has looks for a file, or for a command in PATH and where administrators' commands are (an ordinary user's PATH lacks
// those).
func has(path string) bool {
	if strings.Contains(path, "/") {
		_, err := os.Stat(path)
		return err == nil
	}
	if _, err := exec.LookPath(path); err == nil {
		return true
	}
	for _, d := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if i, err := os.Stat(filepath.Join(d, path)); err == nil && i.Mode()&fs.ModePerm&0o111 != 0 {
			return true
		}
	}
	return false
}

func lastLines(b []byte, n int) string {
	var lines []string
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
