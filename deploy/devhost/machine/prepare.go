package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// machineInit makes the parts of a machine that share a kernel with this one safe and writable. In order: the v1
// controllers, which nspawn mounts read-only; and files of its own over the knobs that kubelet turns machine-wide.
const setupScript = `#!/bin/sh
for c in /sys/fs/cgroup/*; do
	case ${c##*/} in systemd | unified) continue ;; esac
	if [ -d "$c" ] && [ ! -L "$c" ] && [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then mount -o remount,bind,rw "$c"; fi
done
mkdir -p /run/kubebyon-machine
for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	d=/run/kubebyon-machine/$(echo $f | tr / .)
	echo 0 >"$d"
	mount --bind "$d" "/proc/sys/$f"
done
`

const initScript = `#!/bin/sh
# The init of a machine without systemd; the process before it reaps orphans.
` + harness + `/setup
mount --make-rshared /
: >/var/lib/harness-ready
exec sleep infinity
`

const setupUnit = `[Unit]
Description=Make cgroups writable and the kernel's knobs harmless
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=` + harness + `/setup
[Install]
WantedBy=sysinit.target
`

// kubeletDropIn is what a machine's owner would set here: thin disks are shared with this machine, and it may have
// cgroup v1.
const kubeletDropIn = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
evictionHard:
  memory.available: 100Mi
  nodefs.available: 1%
  imagefs.available: 1%
  nodefs.inodesFree: 1%
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 5s
`

// prepare writes into a fresh root file system what makes it this machine.
func (m *Machine) prepare() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	modules := "/lib/modules/" + unix.ByteSliceToString(u.Release[:])
	// The kernel underneath has these built in or loaded already; a machine loads nothing into it.
	builtin := "kernel/fs/overlayfs/overlay.ko\nkernel/net/bridge/br_netfilter.ko\nkernel/net/bridge/bridge.ko\nkernel/net/netfilter/nf_conntrack.ko\nkernel/drivers/net/vxlan/vxlan.ko\n"
	for _, f := range []struct {
		path, text string
		mode       os.FileMode
	}{
		{"/etc/hostname", m.Name + "\n", 0o644},
		{"/etc/hosts", "127.0.0.1 localhost\n" + m.IP.String() + " " + m.Name + "\n", 0o644},
		{"/etc/resolv.conf", "nameserver " + m.gateway() + "\noptions timeout:1 attempts:1\n", 0o644},
		{"/etc/machine-id", "", 0o644},
		{modules + "/modules.builtin", builtin, 0o644},
		{modules + "/modules.builtin.modinfo", "", 0o644},
		{modules + "/modules.order", "", 0o644},
		{harness + "/setup", setupScript, 0o755},
		{harness + "/init", initScript, 0o755},
		{"/etc/systemd/system/kubebyon-machine.service", setupUnit, 0o644},
		{"/etc/kubernetes/kubelet.conf.d/10-machine.conf", kubeletDropIn, 0o644},
		// The journal of a short-lived machine needs no disk, and lets itself be read at once.
		{"/etc/systemd/journald.conf.d/machine.conf", "[Journal]\nStorage=volatile\nRuntimeMaxUse=64M\nRateLimitBurst=0\n", 0o644},
	} {
		p := filepath.Join(m.Root(), f.path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		if err := os.Remove(p); err != nil && !os.IsNotExist(err) { // it may be a link out of the tree
			return err
		}
		if err := os.WriteFile(p, []byte(f.text), f.mode); err != nil {
			return err
		}
		if err := os.Chmod(p, f.mode); err != nil {
			return err
		}
	}
	units := filepath.Join(m.Root(), "etc/systemd/system")
	if err := os.MkdirAll(units+"/sysinit.target.wants", 0o755); err != nil {
		return err
	}
	links := map[string]string{units + "/sysinit.target.wants/kubebyon-machine.service": "/etc/systemd/system/kubebyon-machine.service"}
	// Nothing in a machine may touch this one's devices, and nobody logs in at its console; a Debian package starts
	// containerd by itself, which a fresh server with only the package installed would do as well.
	for _, u := range []string{"systemd-udevd.service", "systemd-udev-trigger.service", "systemd-udevd-kernel.socket", "systemd-udevd-control.socket", "console-getty.service", "systemd-networkd-wait-online.service", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"} {
		links[filepath.Join(units, u)] = "/dev/null"
	}
	for at, to := range links {
		if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
			return err
		}
		if err := os.Symlink(to, at); err != nil {
			return err
		}
	}
	passwd := filepath.Join(m.Root(), "etc/shadow")
	b, err := os.ReadFile(passwd)
	if err != nil {
		return fmt.Errorf("the root file system has no users: %w", err)
	}
	return os.WriteFile(passwd, []byte(strings.Replace(string(b), "root:*:", "root::", 1)), 0o640)
}
