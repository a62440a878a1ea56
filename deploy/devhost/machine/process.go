package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is one process for as long as this boot lasts: a pid alone is given again.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // field 22 of /proc/PID/stat
	Boot  string `json:"boot"`
}

func identify(pid int) (process, error) {
	start, state := stat(pid)
	if start == "" || state == "Z" {
		return process{}, fmt.Errorf("process %d is gone", pid)
	}
	return process{PID: pid, Start: start, Boot: bootID()}, nil
}

func (p process) alive() bool {
	if p.PID <= 1 || p.Boot != bootID() {
		return false
	}
	start, state := stat(p.PID)
	return start != "" && start == p.Start && state != "Z" && state != "X"
}

// kill sends SIGKILL to that very process; the descriptor pins it between the check and the signal.
func (p process) kill() {
	fd, err := unix.PidfdOpen(max(p.PID, 1), 0)
	if err != nil || p.PID <= 1 {
		return
	}
	defer unix.Close(fd)
	if p.alive() {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

func (p process) gone(ctx context.Context, limit time.Duration) bool {
	for end := time.Now().Add(limit); p.alive(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
	}
	return true
}

func stat(pid int) (start, state string) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", ""
	}
	// The command's name may hold blanks and parentheses: fields count from the last one.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 {
		return "", ""
	}
	return f[19], f[0]
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

func comm(pid int) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return strings.TrimSpace(string(b))
}

// child gives the first child of a process.
func child(pid int) (int, bool) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		if f := strings.Fields(string(b)); len(f) > 0 {
			n, err := strconv.Atoi(f[0])
			return n, err == nil
		}
	}
	return 0, false
}

// lock takes an exclusive lock on a file and waits for it as long as ctx allows.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for %s: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
