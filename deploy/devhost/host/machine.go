package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
	"github.com/kubebyon/kubebyon/deploy/devhost/process"
)

// bridge makes the bridge that every machine hangs on, unless it is there. Its hardware address is fixed: a bridge
// otherwise takes the lowest of its ports', and each that comes or goes would cut the others off from their gateway
// for seconds.
func bridge(ctx context.Context, n layout.Net) error {
	if _, err := os.Stat("/sys/class/net/" + n.Bridge()); err == nil {
		return nil
	}
	mac := fmt.Sprintf("02:c6:12:%02x:00:01", n.Octet())
	if err := run(ctx, "ip", "link", "add", n.Bridge(), "address", mac, "type", "bridge"); err != nil {
		return err
	}
	if err := run(ctx, "ip", "address", "add", n.Gateway().String()+"/24", "dev", n.Bridge()); err != nil {
		return err
	}
	return run(ctx, "ip", "link", "set", n.Bridge(), "up")
}

// removeBridge removes the bridge once no machine hangs on it.
func removeBridge(ctx context.Context, n layout.Net) error {
	bridge := "/sys/class/net/" + n.Bridge()
	if _, err := os.Stat(bridge); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	ports, err := os.ReadDir(bridge + "/brif")
	if err != nil || len(ports) > 0 {
		return err
	}
	return run(ctx, "ip", "link", "delete", n.Bridge())
}

// startMachine makes the namespaces of the host's node and connects them to the bridge.
func (h *Host) startMachine(ctx context.Context) error {
	l := h.Layout
	groups, join, err := process.MakeCgroups("kubebyon-host-" + fmt.Sprint(l.Net.Octet()))
	h.state.Cgroups = groups // also when it failed half-way: down removes them
	if err := errors.Join(err, h.save()); err != nil {
		return err
	}
	spec := initSpec{Hostname: NodeName, Groups: groups, Decoys: h.dir("decoys"), Pause: h.Programs.Path("pause"), Keep: []string{l.Cache, l.State}}
	for _, b := range [][2]string{{"kubelet", "/var/lib/kubelet"}, {"containerd", "/var/lib/containerd"}, {"volumes", volumesInNode}, {"log", "/var/log"}} {
		spec.Binds = append(spec.Binds, [2]string{h.dir(b[0]), b[1]})
	}
	for _, d := range append([]string{spec.Decoys}, sources(spec.Binds)...) {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	arg, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	rec, err := process.Command{Name: "machine", Path: h.Self, Args: []string{InitCommand, string(arg)},
		Env: []string{"PATH=" + nodePath}, Log: h.dir("log/machine.log"), Join: process.Spaces{Cgroups: groups}, Files: []*os.File{w},
		Clone: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID}.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("%w (this needs root; in a container, a privileged one)", err)
	}
	h.state.Processes = append(h.state.Processes, rec)
	h.state.Spaces = process.Spaces{PID: rec.PID, Cgroups: join}
	if err := h.save(); err != nil {
		return err
	}
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("wait for the machine's init: %w", err)
	}
	if len(text) > 0 {
		return fmt.Errorf("prepare the machine: %s", text)
	}
	return h.connect(ctx, rec.PID)
}

func (h *Host) connect(ctx context.Context, pid int) error {
	n := h.Layout.Net
	// The kernel removes a dead machine's cable a moment after its last process, so an old one may be in the way; and
	// the last worker that goes takes the bridge with it.
	err := until(ctx, 3*time.Second, "the machine's cable", func() error {
		return run(ctx, "ip", "link", "add", n.Veth(), "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(pid))
	})
	if err != nil {
		return err
	}
	err = until(ctx, 3*time.Second, "the bridge", func() error {
		if err := bridge(ctx, n); err != nil {
			return err
		}
		return run(ctx, "ip", "link", "set", n.Veth(), "master", n.Bridge(), "up")
	})
	if err != nil {
		return err
	}
	script := fmt.Sprintf("ip link set lo up && ip address add %s/24 dev eth0 && ip link set eth0 up && ip route add default via %s", n.Host(), n.Gateway())
	return run(ctx, "nsenter", "--net=/proc/"+fmt.Sprint(pid)+"/ns/net", "sh", "-c", script)
}

// run runs a short command of the machine; its output is part of the error.
func run(ctx context.Context, name string, args ...string) error {
	_, err := output(ctx, name, args...)
	return err
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	b, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(b)))
	}
	return string(b), nil
}

func sources(binds [][2]string) []string {
	var s []string
	for _, b := range binds {
		s = append(s, b[0])
	}
	return s
}

func (h *Host) dir(name string) string { return filepath.Join(h.Layout.Host(), name) }
