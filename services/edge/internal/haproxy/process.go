package haproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	loadTimeout = 60 * time.Second // for one start or reload: some thousands of backends take seconds on a small machine
	poll        = 20 * time.Millisecond
	tick        = time.Second
	maxLog      = 4 << 20
)

// master is HAProxy's master process, which outlives us. An adopted one is not our child.
type master struct {
	pid     int
	process *os.Process
	exited  <-chan struct{} // nil for an adopted one
	source  string          // the file that it reads, at a reload too
}

func (m *master) alive() bool {
	if m == nil {
		return false
	}
	if m.exited != nil {
		select {
		case <-m.exited:
			return false
		default:
			return true
		}
	}
	return m.process.Signal(syscall.Signal(0)) == nil && !zombie(m.pid)
}

// zombie tells whether the process has ended and only waits for its parent to notice.
func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// adopt takes over the master whose socket is in our folder, under mu.
func (p *Plane) adopt(ctx context.Context) bool {
	answer, err := p.ask(ctx, masterSocket, "show proc")
	if err != nil {
		return false
	}
	procs, err := parseProcs(answer)
	if err != nil {
		p.log.Warn("what answers on the master's socket is no HAProxy", "error", err)
		return false
	}
	process, err := os.FindProcess(procs.master.pid)
	if err != nil {
		return false
	}
	p.master = &master{pid: procs.master.pid, process: process, source: p.file.path}
	if args, err := os.ReadFile("/proc/" + strconv.Itoa(procs.master.pid) + "/cmdline"); err == nil && strings.Contains(string(args), p.goodPath()+"\x00") {
		p.master.source = p.goodPath()
	}
	return p.master.alive()
}

// start runs HAProxy on a configuration and waits until it serves, under mu. The error holds HAProxy's words.
func (p *Plane) start(ctx context.Context, source string) error {
	program, err := p.program()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(p.dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open HAProxy's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	offset := p.logSize()
	// Not bound to a context: it outlives this process.
	cmd := exec.Command(program, "-W", "-S", filepath.Join(p.dir, masterSocket), "-f", source) //nolint:gosec,noctx // the configured program
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, environment(), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start HAProxy: %w", err)
	}
	exited := make(chan struct{})
	go func() { defer close(exited); _ = cmd.Wait() }() // ends with the process; nothing is lost where we end first
	m := &master{pid: cmd.Process.Pid, process: cmd.Process, exited: exited, source: source}
	err = p.await(ctx, m, func(now procs) (bool, error) {
		return now.master.pid == m.pid && len(now.workers) > 0 && p.answers(ctx, now.workers[0].pid), nil
	})
	if err != nil {
		_ = m.process.Kill()
		<-exited
		if words := p.words(offset); words != "" {
			return &LoadError{Words: words}
		}
		return err
	}
	p.master = m
	return nil
}

// environment is all that HAProxy gets of ours.
func environment() []string { return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"} }

// LoadError says that HAProxy could not run with a configuration; Words are its own.
type LoadError struct{ Words string }

func (e *LoadError) Error() string { return e.Words }

// errEnded says that HAProxy ended while we waited for it.
var errEnded = errors.New("HAProxy ended")

// await asks the master until done or an error, at most loadTimeout.
func (p *Plane) await(ctx context.Context, m *master, done func(procs) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	for {
		answer, err := p.ask(ctx, masterSocket, "show proc")
		if err == nil {
			var now procs
			if now, err = parseProcs(answer); err == nil {
				if ok, err := done(now); ok || err != nil {
					return err
				}
			}
		}
		if !m.alive() {
			return errEnded
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("HAProxy did not load its configuration within %s: %w", loadTimeout, errors.Join(ctx.Err(), err))
		case <-time.After(poll):
		}
	}
}

// reload makes the running HAProxy take the configuration as it is, under mu. Until the new worker serves the old one does, and where
// there is no new one it goes on.
func (p *Plane) reload(ctx context.Context) error {
	if p.master.source == p.file.path {
		return p.signal(ctx)
	}
	// It was started with the last good one, and reads that file again.
	if err := p.check(ctx, p.file.path); err != nil {
		return err
	}
	if err := writeFile(p.master.source, []byte(p.file.text)); err != nil {
		return fmt.Errorf("write the HAProxy configuration: %w", err)
	}
	err := p.signal(ctx)
	if err != nil && p.good != "" {
		err = errors.Join(err, writeFile(p.master.source, []byte(p.good)))
	}
	return err
}

// answers tells whether a worker is through with its start: from HAProxy 3.1 on it is a process before it has read its
// configuration and opened its ports.
func (p *Plane) answers(ctx context.Context, pid int) bool {
	text, err := p.ask(ctx, masterSocket, fmt.Sprintf("@!%d show info typed", pid))
	if err != nil {
		return false
	}
	_, err = p.columns.info(text)
	return err == nil
}

// signal has the master read its file again, and waits for the end of that.
func (p *Plane) signal(ctx context.Context) error {
	answer, err := p.ask(ctx, masterSocket, "show proc")
	if err != nil {
		return err
	}
	before, err := parseProcs(answer)
	if err != nil {
		return err
	}
	offset := p.logSize()
	if err := p.master.process.Signal(syscall.SIGUSR2); err != nil {
		return fmt.Errorf("reload HAProxy: %w", err)
	}
	known := make(map[int]bool, len(before.workers))
	for _, w := range before.workers {
		known[w.pid] = true
	}
	fresh := 0
	err = p.await(ctx, p.master, func(now procs) (bool, error) {
		if now.master.reloads == before.master.reloads && now.master.failed == before.master.failed {
			return false, nil // it has not begun
		}
		if now.master.failed > 0 {
			return false, &LoadError{Words: "HAProxy could not load the configuration"}
		}
		for _, w := range now.workers {
			if !w.old && !known[w.pid] {
				fresh = w.pid
				return p.answers(ctx, w.pid), nil
			}
		}
		if fresh != 0 {
			return false, &LoadError{Words: "HAProxy's new worker ended"}
		}
		return false, nil
	})
	var refused *LoadError
	if errors.As(err, &refused) || errors.Is(err, errEnded) {
		if words := p.words(offset); words != "" {
			return &LoadError{Words: words}
		}
	}
	return err
}

// check has HAProxy read a configuration without running it. It does not notice ports that are taken.
func (p *Plane) check(ctx context.Context, path string) error {
	program, err := p.program()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-c", "-f", path) //nolint:gosec // the configured program
	cmd.Dir, cmd.Env = p.dir, environment()
	output, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	alerts := alertsOf(strings.ReplaceAll(string(output), path, p.file.path))
	if len(alerts) == 0 {
		return fmt.Errorf("check the configuration: %w", errors.Join(err, ctx.Err()))
	}
	return &CheckError{Status: err.Error(), Alerts: alerts}
}

// CheckError says that HAProxy does not accept a configuration.
type CheckError struct {
	Status string   // how haproxy -c ended
	Alerts []string // its own words, one each
}

func (e *CheckError) Error() string { return strings.Join(e.Alerts, "\n") }

// supervise reloads when asked to and starts HAProxy when it is not there and should be, until ctx ends.
func (p *Plane) supervise(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var wait time.Duration
	for {
		var exited <-chan struct{}
		p.mu.Lock()
		if p.master.alive() {
			exited = p.master.exited
		}
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-p.kick:
			p.runReload(ctx)
			continue
		case <-exited:
			p.log.Warn("HAProxy ended by itself")
		case <-timer.C:
		}
		tried, again := p.revive(ctx)
		switch {
		case again != nil && ctx.Err() == nil:
			wait = min(max(2*wait, 100*time.Millisecond), 30*time.Second)
			p.log.Error("HAProxy does not start", "error", again, "again_in", wait)
			timer.Reset(wait)
		default:
			if tried {
				p.log.Info("HAProxy was started again")
			}
			wait = 0
			timer.Reset(tick)
		}
	}
}

// revive starts HAProxy where it should run and does not; tried says whether there was anything to do.
func (p *Plane) revive(ctx context.Context) (tried bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trimLog()
	if p.master.alive() {
		return false, nil
	}
	p.master = nil
	if err := p.sync(); err != nil {
		return true, err
	}
	if !listens(p.file.text) {
		return false, nil
	}
	if p.adopt(ctx) {
		return true, nil
	}
	err = p.start(ctx, p.file.path)
	if err == nil {
		err = p.took()
	}
	p.reloads.note(err)
	if err == nil || ctx.Err() != nil || p.loaded == "" || p.loaded == digest(p.file.text) {
		return true, err
	}
	// What somebody wrote and nobody asked to load keeps nobody from being served.
	if other := p.start(ctx, p.goodPath()); other != nil {
		return true, errors.Join(err, other)
	}
	p.log.Error("HAProxy does not start with its configuration; it runs with the last one that it took", "error", err)
	return true, nil
}

// trimLog empties HAProxy's log before it fills the disk. HAProxy appends, so that it goes on at the start.
func (p *Plane) trimLog() {
	if p.logSize() > maxLog {
		_ = os.Truncate(filepath.Join(p.dir, logFile), 0)
	}
}

// goodPath is where the last configuration lies that HAProxy took.
func (p *Plane) goodPath() string { return p.file.path + ".good" }

// took remembers that HAProxy runs with the configuration as it is.
func (p *Plane) took() error {
	p.undo, p.loaded, p.good = nil, digest(p.file.text), p.file.text
	if err := writeFile(p.goodPath(), []byte(p.file.text)); err != nil {
		return fmt.Errorf("keep the configuration that HAProxy took: %w", err)
	}
	return p.file.remember(p.loaded)
}

// stop lets connections finish within the grace, then ends them. It leaves no process.
func (p *Plane) stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.master
	p.master = nil
	if !m.alive() {
		return nil
	}
	var workers []worker
	if answer, err := p.ask(ctx, masterSocket, "show proc"); err == nil {
		if now, err := parseProcs(answer); err == nil {
			workers = now.workers
		}
	}
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGUSR1, p.grace}, {syscall.SIGTERM, 5 * time.Second}, {syscall.SIGKILL, 5 * time.Second}} {
		_ = m.process.Signal(step.signal)
		if step.signal == syscall.SIGKILL {
			for _, w := range workers { // a worker may outlive its master
				_ = syscall.Kill(w.pid, syscall.SIGKILL)
			}
		}
		for end := time.Now().Add(step.wait); time.Now().Before(end); time.Sleep(poll) {
			if !m.alive() {
				return nil
			}
		}
	}
	return fmt.Errorf("HAProxy, process %d, does not end", m.pid)
}
