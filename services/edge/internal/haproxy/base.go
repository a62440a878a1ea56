package haproxy

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// base is the configuration to begin with: sockets, limits and a log, and nothing that listens for others.
func (p *Plane) base() string {
	return fmt.Sprintf(`global
    # KubeBYON talks to HAProxy here; a reload hands the open ports over.
    stats socket %s mode 600 level admin expose-fd listeners
    # A worker that was replaced serves the connections that it has, for so long at most.
    hard-stop-after 12h
    maxconn %d
    # To %s in this folder.
    log stderr format timed daemon notice
`, quoted(filepath.Join(p.dir, statsSocket)), maxconn(), logFile)
}

// maxconn leaves two descriptors per connection and some to spare, within what this process may hand on. HAProxy would not start
// with more, and would take memory for a limit without bounds.
func maxconn() uint64 {
	limit := unix.Rlimit{Cur: 4096, Max: 4096}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return min(max(limit.Max, 1200)-1000, 100_000) / 2
}

// quoted is word as HAProxy's configuration takes it.
func quoted(word string) string {
	return strings.NewReplacer(`\`, `\\`, ` `, `\ `, `#`, `\#`, `"`, `\"`, `'`, `\'`, `$`, `\$`).Replace(word)
}
