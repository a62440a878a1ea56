// Package leash ties child processes to the test binary that started them: they end, and their folder goes, whichever way
// the binary ends. It must never hold a process that its owner let go.
package leash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Command is one process of a leash. What it prints goes to <folder>/<Name>.log.
type Command struct {
	Name string
	Args []string // the program first, as a path
}

// Leash holds processes. Its zero value is of no use; Start makes one.
type Leash struct {
	dir string
	cmd *exec.Cmd
	tie io.Closer
}

// A shell starts what it puts into the background with SIGQUIT ignored, so that one sent before the program has its own
// handler is lost: it is sent until it works.
const ending = `cat >/dev/null
for p in $pids; do
	n=0
	while [ $n -lt 200 ] && kill -%s "$p" 2>/dev/null; do sleep 0.05; n=$((n + 1)); done
	kill -KILL "$p" 2>/dev/null
done
wait
[ -e %s ] || rm -rf %s
`

// Start runs commands in dir as cred (nil: as we are) and ends them with signal ("KILL", "QUIT"). A shell between us and
// them waits for the end of its standard input, which is the end of this process, by SIGKILL too; it stands in a process
// group of its own, so that no Ctrl-C reaches it first. It removes dir then, unless Keep was called.
func Start(dir string, cred *syscall.Credential, signal string, commands ...Command) (*Leash, error) {
	var script strings.Builder
	script.WriteString("pids=\n")
	for _, c := range commands {
		for _, a := range c.Args {
			script.WriteString(quote(a) + " ")
		}
		fmt.Fprintf(&script, "</dev/null >>%s 2>&1 &\necho $! >%s\npids=\"$pids $!\"\n", quote(filepath.Join(dir, c.Name+".log")), quote(filepath.Join(dir, c.Name+".pid")))
	}
	fmt.Fprintf(&script, ending, signal, quote(filepath.Join(dir, "keep")), quote(dir))
	stale := []string{"keep"}
	for _, c := range commands {
		stale = append(stale, c.Name+".pid")
	}
	for _, name := range stale {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	cmd := exec.CommandContext(context.Background(), "/bin/sh", "-c", script.String())
	cmd.Dir, cmd.Env = dir, Env(dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: cred}
	tie, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Leash{dir: dir, cmd: cmd, tie: tie}, nil
}

// Env is all that a child gets of an environment.
func Env(dir string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "HOME=" + dir}
}

// Keep lets the folder outlive the processes, for a restart. The next Start forgets it.
func (l *Leash) Keep() error { return os.WriteFile(filepath.Join(l.dir, "keep"), nil, 0o600) }

// Close ends the processes and waits for them. A second call does nothing.
func (l *Leash) Close() {
	if l.cmd == nil {
		return
	}
	_ = l.tie.Close()
	_ = l.cmd.Wait()
	l.cmd = nil
}

// Dead gives the end of the log of a process that has ended by itself, or "".
func (l *Leash) Dead(commands ...string) string {
	for _, name := range commands {
		pid, err := os.ReadFile(filepath.Join(l.dir, name+".pid"))
		if err != nil {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(n) + "/stat")
		// The shell does not reap before the end: a dead child is a zombie.
		if _, state, ok := strings.Cut(string(stat), ") "); err != nil || (ok && strings.HasPrefix(state, "Z")) {
			return name + ": " + l.Log(name)
		}
	}
	return ""
}

// Log gives the last 4 KiB that a process printed.
func (l *Leash) Log(command string) string {
	b, err := os.ReadFile(filepath.Join(l.dir, command+".log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4096):])
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
