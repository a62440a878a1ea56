package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

// samples of one quantity, in its unit.
type samples []float64

func (s samples) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	if len(sorted) == 0 {
		return 0
	}
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// quantile gives the sample below which a share q (0…1) of them lies.
func (s samples) quantile(q float64) float64 {
	sorted := slices.Sorted(slices.Values(s))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// text is "median unit (min-max, n)".
func (s samples) text(unit string) string {
	if len(s) == 0 {
		return "nothing"
	}
	if len(s) == 1 {
		return fmt.Sprintf("%s %s (n=1)", number(s[0]), unit)
	}
	return fmt.Sprintf("%s %s (%s-%s, n=%d)", number(s.median()), unit, number(slices.Min(s)), number(slices.Max(s)), len(s))
}

// number has three digits that count.
func number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// line is one goal and what was measured for it.
type line struct {
	what, goal string
	measured   string
	value      float64 // what is held against limit
	limit      float64
	how        string
}

func (l line) verdict() string {
	if l.value <= l.limit {
		return "met"
	}
	return "**missed**"
}

// atMost is a line about one quantity; its median counts.
func atMost(what string, s samples, limit float64, unit, how string) line {
	return line{what: what, goal: "≤ " + plain(limit) + " " + unit, measured: s.text(unit), value: s.median(), limit: limit, how: how}
}

// allWithin is a line about one quantity of which the worst counts.
func allWithin(what string, s samples, limit float64, unit, how string) line {
	l := atMost(what, s, limit, unit, how)
	l.value = slices.Max(s)
	return l
}

// against is a line about a ratio of two medians.
func against(what string, ours, raw samples, limit float64, unit, how string) line {
	ratio := ours.median() / raw.median()
	return line{
		what: what, goal: "≤ " + plain(limit) + " x", value: ratio, limit: limit, how: how,
		measured: fmt.Sprintf("**%s x**: %s against %s", number(ratio), ours.text(unit), raw.text(unit)),
	}
}

func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// report is what docs/performance.md says.
type report struct {
	facts    [][2]string
	lines    []line
	comments []string
}

func (r *report) add(l line) { r.lines = append(r.lines, l) }

func (r *report) comment(format string, args ...any) {
	r.comments = append(r.comments, fmt.Sprintf(format, args...))
}

func (r *report) markdown() string {
	var out strings.Builder
	out.WriteString("# Performance\n\nWritten by `make bench`; not edited by hand. Every line was measured in the one run below, on one machine, on which the\n" +
		"host cluster, PostgreSQL, the product, the worker and the load generator share the processors. Median (min-max, n).\n\n")
	missed := 0
	for _, l := range r.lines {
		if l.value > l.limit {
			missed++
		}
	}
	fmt.Fprintf(&out, "%d of %d goals met.\n\n", len(r.lines)-missed, len(r.lines))
	out.WriteString("| what | goal | measured | verdict | how |\n| --- | --- | --- | --- | --- |\n")
	for _, l := range r.lines {
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", cell(l.what), cell(l.goal), cell(l.measured), l.verdict(), cell(l.how))
	}
	if len(r.comments) > 0 {
		out.WriteString("\n## Beside the goals\n\n")
		for _, c := range r.comments {
			out.WriteString("- " + c + "\n")
		}
	}
	out.WriteString("\n## The machine\n\n| | |\n| --- | --- |\n")
	for _, f := range r.facts {
		fmt.Fprintf(&out, "| %s | %s |\n", cell(f[0]), cell(f[1]))
	}
	return out.String()
}

// cell keeps a text inside its cell.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// loadAverage is that of the last minute.
func loadAverage() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// machineFacts are what a reader needs to compare; nothing that names the machine.
func machineFacts(now time.Time) [][2]string {
	read := func(path, prefix string) string {
		text, _ := os.ReadFile(path)
		for l := range strings.Lines(string(text)) {
			if rest, found := strings.CutPrefix(l, prefix); found {
				return strings.Trim(rest, " \t\n:\"")
			}
		}
		return "unknown"
	}
	var kernel unix.Utsname
	_ = unix.Uname(&kernel)
	return [][2]string{
		{"measured", now.UTC().Format("2006-01-02 15:04 UTC")},
		{"processors", fmt.Sprintf("%d x %s", runtime.NumCPU(), read("/proc/cpuinfo", "model name"))},
		{"memory", read("/proc/meminfo", "MemTotal")},
		{"system", read("/etc/os-release", "PRETTY_NAME=") + ", Linux " + unix.ByteSliceToString(kernel.Release[:])},
		{"load average before the run (1 min)", number(loadAverage())},
		{"Kubernetes, etcd", layout.Kubernetes + ", " + layout.Etcd},
		{"Go", runtime.Version()},
	}
}
