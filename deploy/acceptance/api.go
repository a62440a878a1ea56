package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// api is kubebyon-api as a process of its own, which the run kills and starts again.
type api struct {
	program string
	env     []string
	logPath string // appended to at every start
	cmd     *exec.Cmd
	done    chan struct{} // closed once the process has ended
}

// start runs it until it is stopped or killed; the end of ctx does not end it.
func (a *api) start(ctx context.Context) error {
	log, err := os.OpenFile(a.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), a.program)
	cmd.Env, cmd.Stdout, cmd.Stderr = a.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	a.cmd, a.done = cmd, done
	return nil
}

// kill is the power cut: no handler runs.
func (a *api) kill() error {
	if err := a.cmd.Process.Kill(); err != nil {
		return err
	}
	<-a.done
	return nil
}

// stop asks first and insists after half a minute, which is an error.
func (a *api) stop() error {
	select {
	case <-a.done:
		return nil
	default:
	}
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-a.done:
		return nil
	case <-time.After(30 * time.Second):
		_ = a.cmd.Process.Kill()
		<-a.done
		return errors.New("kubebyon-api did not end within 30 s of SIGTERM")
	}
}

// tail is the end of its log, for a failure's report.
func (a *api) tail(lines int) string {
	text, err := os.ReadFile(a.logPath)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return fmt.Sprintf("the end of %s:\n%s", a.logPath, strings.Join(all, "\n"))
}
