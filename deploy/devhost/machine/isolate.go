package machine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
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
		// Somebody else may make it at the same moment: then it is there, and that is all we ask. The address is fixed,
		// because a bridge otherwise changes it with its ports and everyone loses the gateway for seconds.
		err := run(ctx, "ip", "link", "add", m.bridge(), "address", fmt.Sprintf("02:c6:12:%02x:00:01", m.Octet), "type", "bridge")
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
	if err == nil && len(out) > 0 {
		err = errors.New("it complains")
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w: %s", archive, err, strings.TrimSpace(string(out)))
	}
	return nil
}
