// Package process starts long-running processes inside a machine's namespaces and finds them again later. It must
// never signal a process that it cannot prove to be the recorded one: a pid alone is reused.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Record identifies one process for as long as this boot lasts.
type Record struct {
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot, /proc/PID/stat field 22
	Boot  string `json:"boot"`  // /proc/sys/kernel/random/boot_id
}

// Identify makes the record of a running process.
func Identify(name string, pid int) (Record, error) {
	start, _, err := stat(pid)
	if err != nil {
		return Record{}, err
	}
	boot, err := bootID()
	if err != nil {
		return Record{}, err
	}
	return Record{Name: name, PID: pid, Start: start, Boot: boot}, nil
}

// Alive reports whether that very process still runs. A zombie does not.
func (r Record) Alive() bool {
	if r.PID <= 0 {
		return false
	}
	start, state, err := stat(r.PID)
	if err != nil || start != r.Start || state == 'Z' || state == 'X' {
		return false
	}
	boot, err := bootID()
	return err == nil && boot == r.Boot
}

// Stop asks the process to end with SIGTERM, and after grace ends it with SIGKILL; a grace of zero kills at once. It
// returns when the process is gone; one that was gone before is no error.
func (r Record) Stop(ctx context.Context, grace time.Duration) error {
	if !r.Alive() {
		return nil
	}
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %s (%d): %w", r.Name, r.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if !r.Alive() { // the pid could have changed hands before PidfdOpen; from here on fd is that process
		return nil
	}
	if grace > 0 {
		_ = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
		if gone(ctx, fd, grace) {
			return nil
		}
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %s (%d): %w", r.Name, r.PID, err)
	}
	if !gone(context.WithoutCancel(ctx), fd, 10*time.Second) {
		return fmt.Errorf("%s (%d) is still there 10 s after SIGKILL", r.Name, r.PID)
	}
	return nil
}

// gone waits until the process behind the pidfd has ended: such a descriptor then turns readable.
func gone(ctx context.Context, fd int, limit time.Duration) bool {
	for end := time.Now().Add(limit); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n > 0 {
			return true
		}
		if (err != nil && !errors.Is(err, unix.EINTR)) || ctx.Err() != nil || time.Now().After(end) {
			return false
		}
	}
}

// stat reads start time and state of a process. The command name may hold blanks and parentheses, so fields count
// from the last parenthesis.
func stat(pid int) (start uint64, state byte, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	return parseStat(b)
}

func parseStat(b []byte) (start uint64, state byte, err error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, 0, fmt.Errorf("unexpected /proc stat line %q", b)
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 20 {
		return 0, 0, fmt.Errorf("unexpected /proc stat line %q", b)
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0][0], err
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}
