package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// Hierarchy is one line of /proc/PID/cgroup.
type Hierarchy struct {
	Controllers string // "cpu", "name=systemd"; empty for version 2
	Path        string // the process's place in it
	Mount       string // where it is mounted, empty where it is not
}

// Dir is the folder of the process's group.
func (h Hierarchy) Dir() string { return filepath.Join(h.Mount, h.Path) }

// OwnCgroups lists this process's groups in every mounted hierarchy.
func OwnCgroups() ([]Hierarchy, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	all, err := ParseCgroups(string(b))
	if err != nil {
		return nil, err
	}
	var mounted []Hierarchy
	for _, h := range all {
		switch {
		case h.Controllers != "":
			h.Mount = filepath.Join(cgroupRoot, strings.TrimPrefix(h.Controllers, "name="))
		case PureV2():
			h.Mount = cgroupRoot
		default:
			h.Mount = filepath.Join(cgroupRoot, "unified")
		}
		if _, err := os.Stat(filepath.Join(h.Dir(), "cgroup.procs")); err == nil {
			mounted = append(mounted, h)
		}
	}
	return mounted, nil
}

// ParseCgroups reads the text of /proc/PID/cgroup.
func ParseCgroups(text string) ([]Hierarchy, error) {
	var all []Hierarchy
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			return nil, fmt.Errorf("unexpected line %q in /proc/self/cgroup", line)
		}
		all = append(all, Hierarchy{Controllers: f[1], Path: f[2]})
	}
	return all, nil
}

// PureV2 reports whether the machine has cgroup version 2 only.
func PureV2() bool {
	var s unix.Statfs_t
	return unix.Statfs(cgroupRoot, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// MakeCgroups makes a child group called name in every hierarchy: below this process's own group with version 1, at
// the top with version 2 alone (there a group that holds processes cannot have children with controllers). It returns
// the groups to remove later and those that processes of the machine start in.
func MakeCgroups(name string) (groups, join []string, err error) {
	own, err := OwnCgroups()
	if err != nil {
		return nil, nil, err
	}
	for _, h := range own {
		dir := filepath.Join(h.Dir(), name)
		if PureV2() {
			dir = filepath.Join(cgroupRoot, name)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return groups, join, fmt.Errorf("make cgroup: %w", err)
		}
		groups = append(groups, dir)
		switch {
		case h.Controllers == "cpuset": // a new cpuset is empty, and nothing can run in it until it has its parent's
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				b, err := os.ReadFile(filepath.Join(h.Dir(), f))
				if err != nil {
					return groups, join, err
				}
				if err := os.WriteFile(filepath.Join(dir, f), b, 0o644); err != nil {
					return groups, join, err
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "cgroup.clone_children"), []byte("1"), 0o644); err != nil {
				return groups, join, err
			}
			join = append(join, dir)
		case PureV2():
			_ = Delegate(cgroupRoot)
			leaf := filepath.Join(dir, Leaf)
			if err := os.MkdirAll(leaf, 0o755); err != nil {
				return groups, join, fmt.Errorf("make cgroup: %w", err)
			}
			join = append(join, leaf)
		default:
			join = append(join, dir)
		}
	}
	if len(join) == 0 {
		return nil, nil, errors.New("no cgroup hierarchy is mounted under /sys/fs/cgroup: a node cannot run here")
	}
	return groups, join, nil
}

// Leaf is the child of a version 2 group where the machine's own processes stand, so that the group itself is free to
// hand its controllers to the pods' groups.
const Leaf = "machine"

// Delegate hands a version 2 group's controllers to its children. The group must hold no process.
func Delegate(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +cpuset +io +memory +pids"), 0o644)
}

// RemoveCgroups removes the groups with all below them. What still runs in one is killed: nobody but us starts
// anything there, so a process that was started and not recorded, because its starter died, ends here.
func RemoveCgroups(groups []string) error {
	var errs []error
	for _, g := range groups {
		var err error
		for range 40 {
			killAll(g)
			if err = removeTree(g); err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond) // the dead keep a group busy for a moment
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// killAll sends SIGKILL to every process in the group and below it.
func killAll(group string) {
	_ = filepath.WalkDir(group, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // it has just gone
		}
		if !d.IsDir() {
			return nil
		}
		b, _ := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 && pid != os.Getpid() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		return nil
	})
}

func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := unix.Rmdir(dirs[i]); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", dirs[i], err)
		}
	}
	return nil
}
