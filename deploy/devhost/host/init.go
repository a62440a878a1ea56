package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
	"github.com/kubebyon/kubebyon/deploy/devhost/process"
)

// InitCommand is the hidden sub-command with which the program starts itself as process 1 of the machine.
const InitCommand = "machine-init"

// initSpec is what process 1 is told, as its only argument.
type initSpec struct {
	Hostname string
	Groups   []string    // version 2 groups among them get a leaf for the machine's own processes
	Keep     []string    // folders that must stay visible where they are
	Binds    [][2]string // source → target
	Decoys   string      // folder for the files that stand in for machine-wide sysctls
	Pause    string      // what process 1 becomes
}

// Init prepares the fresh namespaces that it was started in and becomes the pause program. Descriptor 3 takes the
// error's text; it closes empty when the machine is ready. Every change is private to the machine: the outer mounts,
// cgroups and sysctls stay as they are.
func Init(arg string) int {
	runtime.LockOSThread() // the cgroup namespace is the thread's; exec makes it the process's
	report := os.NewFile(3, "report")
	syscall.CloseOnExec(3)
	err := initMachine(arg)
	fmt.Fprint(report, err)
	return 1
}

func initMachine(arg string) error {
	var spec initSpec
	if err := json.Unmarshal([]byte(arg), &spec); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare cgroup: %w", err)
	}
	if process.PureV2() {
		for _, g := range spec.Groups {
			if err := os.WriteFile(filepath.Join(g, process.Leaf, "cgroup.procs"), []byte("0"), 0o644); err != nil {
				return err
			}
			if err := process.Delegate(g); err != nil {
				return err
			}
		}
	}
	if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
		return err
	}
	v2 := process.PureV2()
	hierarchies, err := process.OwnCgroups()
	if err != nil {
		return err
	}
	kept := make(map[string]*os.File)
	sources := spec.Keep
	for _, b := range spec.Binds {
		sources = append(sources, b[0])
	}
	for _, s := range sources {
		f, err := os.OpenFile(s, unix.O_PATH, 0)
		if err != nil {
			return err
		}
		kept[s] = f
	}
	var m mounter
	m.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	m.mount("proc", "/proc", "proc", 0, "")
	m.umount("/sys")
	m.mount("sysfs", "/sys", "sysfs", 0, "")
	m.cgroups(v2, hierarchies)
	for _, d := range []string{"/run", "/var/lib", "/var/log"} {
		m.mount("tmpfs", d, "tmpfs", 0, "mode=755")
		for _, k := range spec.Keep {
			if layout.Below(k, d) {
				m.bind(kept[k], k)
			}
		}
	}
	for _, b := range spec.Binds {
		m.bind(kept[b[0]], b[1])
	}
	m.decoys(spec.Decoys)
	m.mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") // kubelet's volumes travel into containers
	if m.err != nil {
		return m.err
	}
	if err := forward(); err != nil {
		return err
	}
	return unix.Exec(spec.Pause, []string{"pause"}, []string{})
}

// forward sets the sysctls of the new network namespace that a node needs.
func forward() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0o644)
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("the kernel lacks br_netfilter: run `modprobe br_netfilter` and try again")
	}
	return err
}

// mounter keeps the first error.
type mounter struct{ err error }

func (m *mounter) mount(source, target, kind string, flags uintptr, data string) {
	if m.err != nil {
		return
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		m.err = fmt.Errorf("mount %s %s on %s (%s): %w", kind, source, target, data, err)
	}
}

func (m *mounter) umount(target string) {
	if m.err == nil {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			m.err = fmt.Errorf("unmount %s: %w", target, err)
		}
	}
}

func (m *mounter) bind(source *os.File, target string) {
	if m.err != nil {
		return
	}
	if m.err = os.MkdirAll(target, 0o755); m.err == nil {
		m.mount("/proc/self/fd/"+strconv.Itoa(int(source.Fd())), target, "", unix.MS_BIND|unix.MS_REC, "")
	}
}

// cgroups mounts what the machine has once more, now rooted at our cgroup namespace.
func (m *mounter) cgroups(v2 bool, all []process.Hierarchy) {
	if v2 {
		m.mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, "")
		return
	}
	m.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "mode=755")
	for _, h := range all {
		target := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(h.Controllers, "name="))
		kind := "cgroup"
		if h.Controllers == "" {
			target, kind = "/sys/fs/cgroup/unified", "cgroup2"
		}
		if m.err == nil {
			m.err = os.MkdirAll(target, 0o755)
		}
		m.mount(kind, target, kind, 0, h.Controllers)
	}
}

// decoys hides the machine-wide sysctls that kubelet writes behind ordinary files.
func (m *mounter) decoys(dir string) {
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		if m.err != nil {
			return
		}
		sysctl := filepath.Join("/proc/sys", name)
		value, err := os.ReadFile(sysctl)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		decoy := filepath.Join(dir, strings.ReplaceAll(name, "/", "."))
		if err == nil {
			err = os.WriteFile(decoy, value, 0o644)
		}
		if err != nil {
			m.err = err
			return
		}
		m.mount(decoy, sysctl, "", unix.MS_BIND, "")
	}
}
