package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// vethName is the root side of a machine's cable, and its netns and cgroups have the same name: one per address.
func vethName(ip netip.Addr) string {
	b := ip.As16()
	return fmt.Sprintf("kbm%d-%d", b[14], b[15])
}

func (m *Machine) link() string    { return vethName(m.IP) }
func (m *Machine) bridge() string  { return fmt.Sprintf("kbbr%d", m.Octet) }
func (m *Machine) gateway() string { return fmt.Sprintf("198.18.%d.1", m.Octet) }

// connect makes the machine's network namespace and hangs it on the bridge, which it makes where it is missing.
func (m *Machine) connect(ctx context.Context) error {
	if !exists("/sys/class/net/" + m.bridge()) {
		// Somebody else may make it at the same moment: then it is there, and that is all we ask.
		err := run(ctx, "ip", "link", "add", m.bridge(), "type", "bridge")
		if err == nil {
			err = errors.Join(run(ctx, "ip", "address", "add", m.gateway()+"/24", "dev", m.bridge()), run(ctx, "ip", "link", "set", m.bridge(), "up"))
		}
		if err != nil && !exists("/sys/class/net/"+m.bridge()) {
			return err
		}
	}
	if err := run(ctx, "ip", "netns", "add", m.link()); err != nil {
		return err
	}
	// The kernel removes a dead machine's cable a moment after its namespace.
	err := poll(ctx, 5*time.Second, "the cable of an earlier machine to go", func() (bool, error) { return !exists("/sys/class/net/" + m.link()), nil })
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "add", m.link(), "type", "veth", "peer", "name", "eth0", "netns", m.link()},
		{"link", "set", m.link(), "master", m.bridge(), "up"},
		{"-n", m.link(), "link", "set", "lo", "up"},
		{"-n", m.link(), "address", "add", m.IP.String() + "/24", "dev", "eth0"},
		{"-n", m.link(), "link", "set", "eth0", "up"},
		{"-n", m.link(), "route", "add", "default", "via", m.gateway()},
	} {
		if err := run(ctx, "ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// disconnect removes cable and namespace, and the bridge when nothing else hangs on it.
func (m *Machine) disconnect(ctx context.Context) error {
	var errs []error
	if exists("/sys/class/net/" + m.link()) {
		if err := run(ctx, "ip", "link", "delete", m.link()); err != nil && exists("/sys/class/net/"+m.link()) {
			errs = append(errs, err)
		}
	}
	if exists("/run/netns/" + m.link()) {
		errs = append(errs, run(ctx, "ip", "netns", "delete", m.link()))
	}
	if ports, err := os.ReadDir("/sys/class/net/" + m.bridge() + "/brif"); err == nil && len(ports) == 0 {
		if err := run(ctx, "ip", "link", "delete", m.bridge()); err != nil && exists("/sys/class/net/"+m.bridge()) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// unifiedHost reports whether this machine has cgroup v2 alone.
func unifiedHost() bool { return exists("/sys/fs/cgroup/cgroup.controllers") }

// makeCgroups makes a child of the machine's own in every hierarchy; no mount is touched.
func (m *Machine) makeCgroups() error {
	roots := []string{"/sys/fs/cgroup"}
	if !unifiedHost() {
		entries, err := os.ReadDir("/sys/fs/cgroup")
		if err != nil {
			return err
		}
		roots = nil
		for _, e := range entries {
			if e.IsDir() { // a link is a second name of a hierarchy
				roots = append(roots, filepath.Join("/sys/fs/cgroup", e.Name()))
			}
		}
	}
	for _, r := range roots {
		c := filepath.Join(r, m.link())
		if err := os.Mkdir(c, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		m.Cgroups = append(m.Cgroups, c)
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new v1 child, and no process may enter then
			b, err := os.ReadFile(filepath.Join(r, f))
			if err == nil && filepath.Base(r) == "cpuset" {
				if err := os.WriteFile(filepath.Join(c, f), b, 0o644); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// removeCgroups removes the children, deepest first; the kernel lets go of dead processes a moment later.
func (m *Machine) removeCgroups(ctx context.Context) error {
	left := func() (all []string) {
		for _, c := range m.Cgroups {
			_ = filepath.WalkDir(c, func(p string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					all = append(all, p)
				}
				return nil
			})
		}
		return all
	}
	err := poll(ctx, 10*time.Second, "the machine's cgroups to empty", func() (bool, error) {
		all := left()
		for i := len(all) - 1; i >= 0; i-- {
			_ = os.Remove(all[i])
		}
		return len(left()) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%w; left: %s", err, strings.Join(left(), " "))
	}
	return nil
}

// removeTree removes a machine's folder, unless something is mounted below it.
func removeTree(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			return fmt.Errorf("%s is still mounted", f[4])
		}
	}
	return os.RemoveAll(dir)
}

// unpack fills root from the cached archive.
func unpack(ctx context.Context, archive, root string) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `zstd -dcq "$0" | tar --numeric-owner --xattrs --xattrs-include='*' -C "$1" -x`, archive, root)
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) > 0 {
		return fmt.Errorf("unpack %s: %v: %s", archive, err, strings.TrimSpace(string(out)))
	}
	return nil
}
