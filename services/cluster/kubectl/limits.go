package kubectl

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// cpuTime ends a run that computes without end, where its parent did not.
	cpuTime = 15 * time.Second
	// maxData bounds the memory that a run writes to. A list of 32 MiB, the most that is taken from a tenant, fits.
	maxData = 768 << 20
	// maxFiles bounds its open files: the parent serves fewer connections.
	maxFiles = 128
)

// limit holds this process to what a run may need. None of it can be raised again, but by root.
func limit() error {
	cpu := uint64(cpuTime / time.Second)
	for _, l := range []struct {
		name     string
		resource int
		value    uint64
	}{
		{"CPU", unix.RLIMIT_CPU, cpu},
		{"DATA", unix.RLIMIT_DATA, maxData},
		{"NOFILE", unix.RLIMIT_NOFILE, maxFiles},
		{"FSIZE", unix.RLIMIT_FSIZE, 0}, // no file is written, pipes are none
		{"CORE", unix.RLIMIT_CORE, 0},
	} {
		var had unix.Rlimit
		if err := unix.Getrlimit(l.resource, &had); err != nil {
			return fmt.Errorf("RLIMIT_%s: %w", l.name, err)
		}
		value := min(l.value, had.Max) // whoever started us may have set a lower one
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("RLIMIT_%s: %w", l.name, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_NO_NEW_PRIVS: %w", err)
	}
	return nil
}
