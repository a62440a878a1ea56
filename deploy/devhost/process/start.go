package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Command is a process to start. It outlives its starter: it has its own session and is nobody's to wait for.
type Command struct {
	Name  string
	Path  string
	Args  []string
	Env   []string   // the whole environment
	Log   string     // takes stdout and stderr, truncated at the start; as seen from here
	Join  Spaces     // where it runs
	Clone uintptr    // new namespaces (CLONE_NEW…)
	Files []*os.File // from descriptor 3 on
}

// Spaces are the namespaces and cgroups that a new process enters. The zero value is this process's own.
type Spaces struct {
	PID     int      `json:"pid"`     // whose namespaces: all of mnt, net, uts, ipc, pid and cgroup; 0 for our own
	Net     bool     `json:"net"`     // with PID: only its network namespace
	Cgroups []string `json:"cgroups"` // folders, one per hierarchy
}

// Start starts the command and returns once it is executing.
//
// A thread enters the namespaces, forks and is thrown away; so the pid is the real one as seen from here, and no
// helper such as nsenter stands between us and the process.
func (c Command) Start() (Record, error) {
	if err := os.MkdirAll(filepath.Dir(c.Log), 0o755); err != nil {
		return Record{}, err
	}
	out, err := os.OpenFile(c.Log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return Record{}, err
	}
	defer func() { _ = out.Close() }()
	type result struct {
		pid int
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with this goroutine
		pid, err := c.fork(out)
		done <- result{pid, err}
	}()
	r := <-done
	if r.err != nil {
		return Record{}, fmt.Errorf("start %s: %w", c.Name, r.err)
	}
	return Identify(c.Name, r.pid)
}

func (c Command) fork(out *os.File) (pid int, err error) {
	cmd := &exec.Cmd{Path: c.Path, Args: append([]string{c.Path}, c.Args...), Env: c.Env, Dir: "/", ExtraFiles: c.Files,
		Stdout: out, Stderr: out, SysProcAttr: &syscall.SysProcAttr{Setsid: true, Cloneflags: c.Clone}}
	back, group, err := c.Join.joinCgroups()
	if err != nil {
		return 0, err
	}
	// The thread may be the process's first, which cannot end; it must not keep the machine's cgroups busy.
	defer func() {
		tid := []byte(strconv.Itoa(unix.Gettid()))
		for _, f := range back {
			_, _ = f.Write(tid)
			_ = f.Close()
		}
	}()
	if group != nil {
		defer func() { _ = group.Close() }()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	if err := c.Join.enter(); err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid = cmd.Process.Pid
	return pid, cmd.Process.Release()
}

// joinCgroups moves the calling thread into the version 1 groups, which the child inherits. Version 2 does not move
// single threads: there the child is born in the group that is returned. back are files that undo the move.
func (s Spaces) joinCgroups() (back []*os.File, unified *os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range back {
				_ = f.Close()
			}
		}
	}()
	own, err := OwnCgroups()
	if err != nil {
		return nil, nil, err
	}
	for _, dir := range s.Cgroups {
		if _, err := os.Stat(filepath.Join(dir, "tasks")); err != nil {
			if unified, err = os.Open(dir); err != nil {
				return back, nil, err
			}
			continue
		}
		for _, o := range own {
			if o.Mount != "" && strings.HasPrefix(dir, o.Mount+"/") {
				f, err := os.OpenFile(filepath.Join(o.Dir(), "tasks"), os.O_WRONLY, 0)
				if err != nil {
					return back, unified, err
				}
				back = append(back, f)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "tasks"), []byte(strconv.Itoa(unix.Gettid())), 0o644); err != nil {
			return back, unified, err
		}
	}
	return back, unified, nil
}

// enter moves the calling thread into the namespaces.
func (s Spaces) enter() error {
	if s.PID == 0 {
		return nil
	}
	kinds := []struct {
		name string
		flag int
	}{{"cgroup", unix.CLONE_NEWCGROUP}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS},
		{"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}
	if s.Net {
		kinds = kinds[3:4]
	} else if err := unix.Unshare(unix.CLONE_FS); err != nil { // a thread that shares its root may not change mounts
		return fmt.Errorf("unshare fs: %w", err)
	}
	fds := make([]int, len(kinds))
	for i, k := range kinds {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", s.PID, k.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s namespace of %d: %w", k.name, s.PID, err)
		}
		defer func() { _ = unix.Close(fd) }()
		fds[i] = fd
	}
	for i, k := range kinds {
		if err := unix.Setns(fds[i], k.flag); err != nil {
			return fmt.Errorf("enter %s namespace of %d: %w", k.name, s.PID, err)
		}
	}
	return nil
}
