// Package machine makes worker "machines" on this one: a Debian with its own init, root file system, network address
// and control groups, in systemd-nspawn, to run the join command in as its user would. It must never change what
// belongs to the machine underneath: its mounts, its sysctls, its cgroups outside its own children, or a process that
// it did not start.
package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubebyon/kubebyon/deploy/devhost/process"
)

// The suites that Up knows. Bookworm brings containerd, runc and the CNI plugins as packages; trixie has none of them, so that a
// join script must get them elsewhere.
const (
	Bookworm = "bookworm"
	Trixie   = "trixie"
)

// The kinds of init.
const (
	Systemd = "systemd"
	None    = "none" // a process that reaps orphans and nothing else
)

// Options say what Up makes. The zero value of every field but Name and State has a default.
type Options struct {
	Name  string     // host name and key: [a-z][a-z0-9-]*, at most 32 characters
	Suite string     // Bookworm (default) or Trixie
	Init  string     // Systemd (default) or None
	IP    netip.Addr // in 198.18.X.0/24 of Octet, from .11 upward; the first free one by default
	Octet int        // X: which bridge kbbrX the machine hangs on
	Cache string     // root file systems are kept in <Cache>/rootfs
	State string     // machines live in <State>/machines/<Name>
	Log   io.Writer  // progress, one line each; nil for none
}

// Machine is one that runs, or did.
type Machine struct {
	Name    string         `json:"name"`
	Suite   string         `json:"suite"`
	Init    string         `json:"init"`
	IP      netip.Addr     `json:"ip"`
	Octet   int            `json:"octet"`
	Nspawn  process.Record `json:"nspawn"`  // systemd-nspawn itself
	PID1    process.Record `json:"pid1"`    // the machine's init, as seen from outside
	Cgroups []string       `json:"cgroups"` // to remove with the machine
	Join    []string       `json:"join"`    // where its processes start

	dir string
}

var nameRE = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}[a-z0-9]$|^[a-z]$`)

func (o *Options) check() error {
	if !nameRE.MatchString(o.Name) {
		return fmt.Errorf("machine name %q: it accepts a-z, 0-9 and '-', at most 32 characters, a letter first", o.Name)
	}
	if o.Suite == "" {
		o.Suite = Bookworm
	}
	if o.Suite != Bookworm && o.Suite != Trixie {
		return fmt.Errorf("suite %q: it accepts %s or %s", o.Suite, Bookworm, Trixie)
	}
	if o.Init == "" {
		o.Init = Systemd
	}
	if o.Init != Systemd && o.Init != None {
		return fmt.Errorf("init %q: it accepts %s or %s", o.Init, Systemd, None)
	}
	if o.Octet < 0 || o.Octet > 255 {
		return fmt.Errorf("network octet %d: it accepts 0 to 255", o.Octet)
	}
	if o.State == "" || o.Cache == "" {
		return errors.New("a machine needs a state and a cache folder")
	}
	if o.IP.IsValid() {
		b := o.IP.As16()
		if !o.IP.Is4() || b[12] != 198 || b[13] != 18 || int(b[14]) != o.Octet || b[15] < 11 || b[15] == 255 {
			return fmt.Errorf("address %s: it accepts 198.18.%d.11 to 198.18.%d.254", o.IP, o.Octet, o.Octet)
		}
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	return nil
}

// Up makes and boots a machine; it runs on after ctx and this process have ended, until Down. A machine of that name
// that still runs is an error; what is left of one that does not is removed first.
func Up(ctx context.Context, o Options) (*Machine, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("machines need root: namespaces, cgroups and a bridge")
	}
	if err := tools(ctx, o.Log); err != nil {
		return nil, err
	}
	archive, err := rootfs(ctx, o.Cache, o.Suite, o.Log)
	if err != nil {
		return nil, err
	}
	m, err := claim(ctx, o)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Log, "machine %s: %s, init %s, %s\n", m.Name, m.Suite, m.Init, m.IP)
	if err := m.boot(ctx, archive); err != nil {
		return nil, errors.Join(fmt.Errorf("machine %s: %w", m.Name, err), m.Down(context.WithoutCancel(ctx)))
	}
	return m, nil
}

// Find gives a machine by its name; the error is fs.ErrNotExist where there is none.
func Find(state, name string) (*Machine, error) {
	if !nameRE.MatchString(name) {
		return nil, fmt.Errorf("machine name %q: %w", name, os.ErrNotExist)
	}
	m := &Machine{dir: filepath.Join(state, "machines", name)}
	b, err := os.ReadFile(filepath.Join(m.dir, "machine.json"))
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", name, err)
	}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("machine %s: %w", name, err)
	}
	return m, nil
}

// List gives every machine of a state folder, by name.
func List(state string) ([]*Machine, error) {
	found, err := filepath.Glob(filepath.Join(state, "machines", "*", "machine.json"))
	if err != nil {
		return nil, err
	}
	var all []*Machine
	for _, f := range found {
		m, err := Find(state, filepath.Base(filepath.Dir(f)))
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// Purge takes every machine of a state folder down.
func Purge(ctx context.Context, state string) error {
	all, err := List(state)
	for _, m := range all {
		err = errors.Join(err, m.Down(ctx))
	}
	return err
}

// Running reports whether the machine's init runs.
func (m *Machine) Running() bool { return m.PID1.Alive() }

// Root is the machine's root file system, as a path here.
func (m *Machine) Root() string { return filepath.Join(m.dir, "root") }

// Command is a command inside the machine: its namespaces, its cgroups, root's environment and nothing of ours.
func (m *Machine) Command(ctx context.Context, args ...string) *exec.Cmd {
	var join strings.Builder
	for _, c := range m.Join {
		// systemd's own hierarchies stay as they are: there a process would count as a part of some unit.
		if !strings.HasPrefix(c, "/sys/fs/cgroup/systemd/") && !strings.HasPrefix(c, "/sys/fs/cgroup/unified/") && !process.PureV2() {
			fmt.Fprintf(&join, "echo $$ >%s/cgroup.procs && ", c)
		}
	}
	if process.PureV2() { // the groups that nspawn made are known to it alone
		join.WriteString(`echo $$ >"/sys/fs/cgroup$(sed -n s/^0:://p /proc/$0/cgroup)/cgroup.procs" && `)
	}
	script := join.String() + `exec nsenter -t "$0" -m -u -i -n -p -C -r -w -- /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8 "$@"`
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, strconv.Itoa(m.PID1.PID)}, args...)...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Exec runs a command inside with the given streams. A command that fails gives an *exec.ExitError.
func (m *Machine) Exec(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args ...string) error {
	if !m.Running() {
		return fmt.Errorf("machine %s does not run", m.Name)
	}
	cmd := m.Command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	return cmd.Run()
}

// Run runs a command inside and gives what it printed on both streams, also when it failed.
func (m *Machine) Run(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := m.Exec(ctx, nil, &out, &out, args...)
	return out.String(), err
}

// Down ends the machine by killing its init, and removes everything that it had. Down of a machine that is gone
// already removes what is left of it.
func (m *Machine) Down(ctx context.Context) error {
	// A machine's init takes everything inside with it; nspawn then ends by itself.
	err := m.PID1.Stop(ctx, 0)
	for end := time.Now().Add(2 * time.Second); m.Nspawn.Alive() && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	err = errors.Join(err, m.Nspawn.Stop(ctx, 0), m.disconnect(ctx), process.RemoveCgroups(m.Cgroups))
	if err != nil {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	if err := removeTree(m.dir); err != nil {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	return nil
}

// claim removes what is left of an earlier machine of that name, picks the address and writes the state, so that two
// callers never get the same one.
func claim(ctx context.Context, o Options) (*Machine, error) {
	base := filepath.Join(o.State, "machines")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, filepath.Join(base, ".lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, err := Find(o.State, o.Name)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	case old.Running() || old.Nspawn.Alive():
		return nil, fmt.Errorf("machine %s runs already", o.Name)
	default:
		if err := old.Down(ctx); err != nil {
			return nil, err
		}
	}
	all, err := List(o.State)
	if err != nil {
		return nil, err
	}
	taken := func(ip netip.Addr) bool {
		return slices.ContainsFunc(all, func(m *Machine) bool { return m.IP == ip }) || exists("/sys/class/net/"+vethName(ip))
	}
	m := &Machine{Name: o.Name, Suite: o.Suite, Init: o.Init, IP: o.IP, Octet: o.Octet, dir: filepath.Join(base, o.Name)}
	if m.IP.IsValid() && taken(m.IP) {
		return nil, fmt.Errorf("machine %s: the address %s is in use", o.Name, m.IP)
	}
	for last := byte(11); !m.IP.IsValid(); last++ {
		if last == 255 {
			return nil, fmt.Errorf("machine %s: no free address in 198.18.%d.0/24", o.Name, o.Octet)
		}
		if ip := netip.AddrFrom4([4]byte{198, 18, byte(o.Octet), last}); !taken(ip) {
			m.IP = ip
		}
	}
	if err := os.MkdirAll(m.Root(), 0o755); err != nil {
		return nil, err
	}
	return m, m.save()
}

func (m *Machine) save() error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(m.dir, "machine.json.new")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(m.dir, "machine.json"))
}

func (m *Machine) boot(ctx context.Context, archive string) error {
	if err := unpack(ctx, archive, m.Root()); err != nil {
		return err
	}
	if err := m.prepare(); err != nil {
		return err
	}
	var err error
	m.Cgroups, m.Join, err = process.MakeCgroups("kubebyon-" + m.link())
	if err := errors.Join(err, m.save()); err != nil { // also when it failed half-way: Down removes them
		return err
	}
	if err := m.connect(ctx); err != nil {
		return err
	}
	if err := m.spawn(ctx); err != nil {
		return err
	}
	return m.waitBooted(ctx)
}

// spawn starts systemd-nspawn in a session of its own and finds the machine's init.
func (m *Machine) spawn(ctx context.Context) error {
	console, err := os.OpenFile(filepath.Join(m.dir, "console.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = console.Close() }()
	args := []string{
		"--quiet", "--directory=" + m.Root(), "--machine=" + m.link(), "--hostname=" + m.Name, "--register=no", "--keep-unit",
		"--network-namespace-path=/run/netns/" + m.link(), "--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=pipe",
		// kubelet and runc need what the default filter and capabilities hold back.
		"--capability=all", "--system-call-filter=@keyring", "--system-call-filter=bpf", "--bind=/dev/kmsg",
	}
	if m.Init == Systemd {
		args = append(args, "--boot")
		if !process.PureV2() {
			args = append(args, "systemd.unified_cgroup_hierarchy=0", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1")
		}
	} else {
		args = append(args, "--as-pid2", harness+"/init")
	}
	unified := "0"
	if process.PureV2() {
		unified = "1"
	}
	var join strings.Builder
	for _, c := range m.Join {
		fmt.Fprintf(&join, "echo $$ >%s/cgroup.procs && ", c)
	}
	// Not cancelled with ctx: the machine runs on until Down.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", append([]string{"-c", join.String() + `exec systemd-nspawn "$@"`, "systemd-nspawn"}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=" + unified, "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network"}
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { // ends with the machine, or with this process: the machine outlives it on purpose
		_ = cmd.Wait()
		close(ended)
	}()
	if m.Nspawn, err = process.Identify("systemd-nspawn", cmd.Process.Pid); err != nil {
		return err
	}
	if err := m.save(); err != nil {
		return err
	}
	return poll(ctx, 30*time.Second, "its init", func() (bool, error) {
		select {
		case <-ended:
			return false, fmt.Errorf("systemd-nspawn ended: %s", tail(console.Name()))
		default:
		}
		pid, ok := child(m.Nspawn.PID)
		// Until nspawn has handed over, the child is still a copy of it.
		if !ok || comm(pid) == "systemd-nspawn" || comm(pid) == "(sd-stubinit)" && m.Init == Systemd {
			return false, nil
		}
		var gone error
		if m.PID1, gone = process.Identify("init", pid); gone != nil {
			return false, nil //nolint:nilerr // the copy of nspawn ended between two looks; the next one finds its heir
		}
		return true, m.save()
	})
}

func (m *Machine) waitBooted(ctx context.Context) error {
	return poll(ctx, 90*time.Second, "the machine to boot", func() (bool, error) {
		if !m.Running() {
			return false, fmt.Errorf("its init ended: %s", tail(filepath.Join(m.dir, "console.log")))
		}
		if m.Init == None {
			return exists(filepath.Join(m.Root(), "var/lib/harness-ready")), nil
		}
		out, _ := m.Run(ctx, "systemctl", "is-system-running")
		out = strings.TrimSpace(out)
		return out == "running" || out == "degraded", nil
	})
}

func poll(ctx context.Context, limit time.Duration, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		done, err := ok()
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s: %w", limit, what, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// tail gives the last lines of a log, for an error.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}

// run runs a short command; its output is part of the error.
func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
