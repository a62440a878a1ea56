package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a program of the product, or beside it, that this run started and ends.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
}

// start runs a program with this environment and nothing else; its output goes to the log of its name.
func (s *stack) start(name, program string, env []string, args ...string) (*process, error) {
	p, _, err := s.launch(name, program, env, false, args...)
	return p, err
}

func (s *stack) launch(name, program string, env []string, firstLine bool, args ...string) (*process, string, error) {
	log, err := os.OpenFile(s.file(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(context.Background(), program, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.layout.State}, env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var out io.Reader
	if firstLine {
		cmd.Stdout = nil
		if out, err = cmd.StdoutPipe(); err != nil {
			return nil, "", err
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	text := ""
	if firstLine {
		text, err = bufio.NewReader(out).ReadString('\n')
	}
	go func() { _ = cmd.Wait(); close(p.done) }()
	s.running = append(s.running, p)
	if err != nil {
		return nil, "", fmt.Errorf("%s ended without a word: see %s", name, log.Name())
	}
	return p, strings.TrimSpace(text), nil
}

// stop asks first and insists after half a minute, which is an error.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within 30 s of SIGTERM", p.name)
	}
}

// stopAll ends what runs, the last started first.
func (s *stack) stopAll() error {
	var all []error
	for i := len(s.running) - 1; i >= 0; i-- {
		all = append(all, s.running[i].stop())
	}
	s.running = nil
	return errors.Join(all...)
}

// tool runs a program of the source tree to its end.
func (s *stack) tool(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.root, io.Discard, s.out
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KUBECONFIG=") { // the cluster is always one of our own
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "KUBEBYON_STATE="+s.layout.State, "KUBEBYON_CACHE="+s.layout.Cache, "CGO_ENABLED=0")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args[:min(len(args), 2)], " "), err)
	}
	return nil
}

// free is an address that nobody listens at just now.
func free(ctx context.Context, ip string) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// settle lets a machine come to rest.
func settle(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
