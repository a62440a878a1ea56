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
    fd-hard-limit %d
    # To %s in this folder.
    log stderr format timed daemon notice
`, quoted(filepath.Join(p.dir, statsSocket)), descriptors(), logFile)
}

// descriptors are what HAProxy may open: what this process may hand on, within bounds, since HAProxy takes memory for each. How many
// connections that is it finds out itself: every server that it checks takes one descriptor more, and HAProxy does not
// start where a number of connections that is written down leaves none for them.
func descriptors() uint64 {
	limit := unix.Rlimit{Cur: 4096, Max: 4096}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return min(limit.Max, 200_000)
}

// quoted is word as HAProxy's configuration takes it.
func quoted(word string) string {
	return strings.NewReplacer(`\`, `\\`, ` `, `\ `, `#`, `\#`, `"`, `\"`, `'`, `\'`, `$`, `\$`).Replace(word)
}
