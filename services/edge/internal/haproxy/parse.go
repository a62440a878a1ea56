package haproxy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// procs is the answer to show proc on the master's socket.
type procs struct {
	master  process
	workers []worker
}

type process struct {
	pid, reloads int
	failed       int // reloads in a row that failed
}

type worker struct {
	pid    int
	old    bool // it was replaced, and serves the connections that it has
	uptime time.Duration
}

// parseProcs reads a table of processes:
//
//	#<PID>          <type>          <reloads>       <uptime>        <version>
//	2970            master          2 [failed: 1]   0d00h00m04s     2.6.12
//	# workers
//	2985            worker          1               0d00h00m03s     2.6.12
//	# old workers
//	2973            worker          2               0d00h00m09s     2.6.12
//	# programs
func parseProcs(answer string) (procs, error) {
	var out procs
	section := ""
	for line := range strings.Lines(answer) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "#"); ok {
			section = strings.TrimSpace(title)
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		pid, err := strconv.Atoi(fields[0])
		if err != nil || pid <= 1 {
			return procs{}, fmt.Errorf("show proc: no process id: %q", line)
		}
		reloads, err := strconv.Atoi(fields[2])
		if err != nil || reloads < 0 {
			return procs{}, fmt.Errorf("show proc: no number of reloads: %q", line)
		}
		rest := fields[3:]
		failed := 0
		if len(rest) >= 2 && rest[0] == "[failed:" {
			if failed, err = strconv.Atoi(strings.TrimSuffix(rest[1], "]")); err != nil || failed < 0 {
				return procs{}, fmt.Errorf("show proc: no number of failed reloads: %q", line)
			}
			rest = rest[2:]
		}
		switch fields[1] {
		case "master":
			out.master = process{pid: pid, reloads: reloads, failed: failed}
		case "worker":
			w := worker{pid: pid, old: section == "old workers"}
			if len(rest) > 0 {
				w.uptime, _ = parseUptime(rest[0])
			}
			out.workers = append(out.workers, w)
		}
	}
	if out.master.pid == 0 {
		return procs{}, errors.New("show proc: no master in the answer")
	}
	return out, nil
}

// parseUptime reads 1d02h03m04s.
func parseUptime(text string) (time.Duration, error) {
	days, rest, ok := strings.Cut(text, "d")
	n, err := strconv.Atoi(days)
	if !ok || err != nil || n < 0 || n > 36500 {
		return 0, fmt.Errorf("no uptime: %q", text)
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("no uptime: %q", text)
	}
	return time.Duration(n)*24*time.Hour + d, nil
}
