//go:build e2e

package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

const testOctet = 213 // a network of the test's own

func testOptions(t *testing.T, name, suite, init string) Options {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	l, err := layout.FromEnv(os.LookupEnv, dir)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Name: name, Suite: suite, Init: init, Octet: testOctet, Cache: l.Cache, State: t.TempDir(), Log: t.Output()}
}

// traces lists what a machine could leave behind.
func traces(t *testing.T) string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/class/net/kbm213-*", "/sys/class/net/kbbr213", "/run/netns/kbm213-*", "/sys/fs/cgroup/kubebyon-kbm213-*", "/sys/fs/cgroup/*/kubebyon-kbm213-*", "/sys/fs/cgroup/*/*/*/kubebyon-kbm213-*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return strings.Join(all, " ")
}

func mustRun(t *testing.T, m *Machine, command string) string {
	t.Helper()
	out, err := m.Run(t.Context(), "sh", "-c", command)
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", m.Name, command, err, out)
	}
	return strings.TrimSpace(out)
}

func TestE2EMachines(t *testing.T) {
	sysctls := func() (all string) {
		for _, f := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward"} {
			b, err := os.ReadFile("/proc/sys/" + f)
			if err != nil {
				t.Fatal(err)
			}
			all += f + "=" + string(b)
		}
		return all
	}
	knobs := sysctls()
	mounts := func() (all string) { // those of the kernel's own file systems; network namespaces come and go in others
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); strings.HasPrefix(f[4], "/sys") || strings.HasPrefix(f[4], "/proc") {
				all += line
			}
		}
		return all
	}
	before := mounts()
	for _, c := range []struct {
		suite, init string
		containerd  bool
	}{{Bookworm, Systemd, true}, {Trixie, Systemd, false}, {Bookworm, None, true}, {Trixie, None, false}} {
		t.Run(c.suite+" "+c.init, func(t *testing.T) {
			o := testOptions(t, "m1", c.suite, c.init)
			m, err := Up(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := m.Down(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
				if left := traces(t); left != "" {
					t.Errorf("it left %s", left)
				}
			})
			if got := mustRun(t, m, "hostname; . /etc/os-release; echo $VERSION_CODENAME; id -u; env | wc -l"); !strings.HasPrefix(got, "m1\n"+c.suite+"\n0\n") {
				t.Errorf("it is %q", got)
			}
			if got := mustRun(t, m, "test -d /run/systemd/system && systemctl is-system-running || echo none"); (got == "running") != (c.init == Systemd) {
				t.Errorf("init: %q", got)
			}
			if got := mustRun(t, m, "command -v containerd >/dev/null && echo yes || echo no"); (got == "yes") != c.containerd {
				t.Errorf("containerd: %s", got)
			}
			var exit *exec.ExitError
			if err := m.Exec(t.Context(), nil, nil, nil, "sh", "-c", "exit 7"); !errors.As(err, &exit) || exit.ExitCode() != 7 {
				t.Errorf("exit 7 gave %v", err)
			}

			// The machine reaches services on the bridge's own address, and what it turns stays its own.
			l, err := net.Listen("tcp", net.JoinHostPort(m.gateway(), "0"))
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }), ReadHeaderTimeout: time.Second}
			defer server.Close()
			go server.Serve(l)
			if got := mustRun(t, m, "curl -fsS http://"+l.Addr().String()); got != "hello" {
				t.Errorf("it read %q", got)
			}
			mustRun(t, m, "for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops net/ipv4/ip_forward; do echo 1 >/proc/sys/$f; done; modprobe overlay; modprobe br_netfilter; test -e /proc/sys/net/bridge")
			mustRun(t, m, "d=$(mktemp -d); mkdir $d/l $d/u $d/w $d/m; mount -t overlay o -o lowerdir=$d/l,upperdir=$d/u,workdir=$d/w $d/m && umount $d/m")
			if !exists("/sys/fs/cgroup/cgroup.controllers") {
				mustRun(t, m, "mkdir /sys/fs/cgroup/memory/x && rmdir /sys/fs/cgroup/memory/x")
			}

			if _, err := Up(t.Context(), o); err == nil || !strings.Contains(err.Error(), "runs already") {
				t.Errorf("a second machine of that name: %v", err)
			}
			second := o
			second.Name, second.IP = "m2", m.IP
			if _, err := Up(t.Context(), second); err == nil || !strings.Contains(err.Error(), "in use") {
				t.Errorf("a second machine of that address: %v", err)
			}
			if found, err := Find(o.State, "m1"); err != nil || !found.Running() || found.IP != m.IP {
				t.Errorf("found %+v, %v", found, err)
			}
		})
	}
	t.Run("what a crash leaves is cleaned up", func(t *testing.T) {
		o := testOptions(t, "m1", Trixie, None)
		m, err := Up(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Kill(m.Nspawn.PID, unix.SIGKILL)
		_ = m.PID1.Stop(t.Context(), 0)
		again, err := Up(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if again.PID1 == m.PID1 || !again.Running() {
			t.Errorf("the same machine: %+v", again)
		}
		if err := Purge(t.Context(), o.State); err != nil {
			t.Error(err)
		}
		if left := traces(t); left != "" {
			t.Errorf("it left %s", left)
		}
		if err := again.Down(t.Context()); err != nil {
			t.Errorf("down twice: %v", err)
		}
	})
	if now := sysctls(); now != knobs {
		t.Errorf("this machine's knobs changed:\n%s%s", knobs, now)
	}
	if now := mounts(); now != before {
		t.Errorf("this machine's mounts changed:\n%s\n%s", before, now)
	}
}
