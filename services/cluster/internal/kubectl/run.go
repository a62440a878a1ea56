package kubectl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	child "github.com/kubebyon/kubebyon/services/cluster/kubectl"
)

const (
	// self is this program, be its file replaced meanwhile.
	self = "/proc/self/exe"
	// ownWords is kept of the output for what we have to add to it.
	ownWords = 512
	// exitSignal is added to the number of the signal that ended a child.
	exitSignal = 128
	// exitCrash is the exit status of a Go program that cannot go on.
	exitCrash = 2
	// lingering is how long the child's output may stay open after its end.
	lingering = time.Second
)

// apiError is what the tenant's API did to a run.
type apiError struct{ error }

func (e apiError) Unwrap() error { return e.error }

// errTime is the cause of a run's end at its time limit.
var errTime = errors.New("the time that a kubectl command may take is over")

// run is one kubectl child with its proxy. It fails with what ended it before its time; a command that failed is none of that.
type run struct {
	args     []string // as the filter gave them
	api      api
	server   string // what kubectl tells people
	answerBy time.Time
	limit    time.Duration
}

func (r run) do(ctx context.Context) (clusterv1.KubectlResponse, error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "kubebyon-kubectl-") // 0700
	if err != nil {
		return clusterv1.KubectlResponse{}, fmt.Errorf("kubectl: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "api")
	l, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return clusterv1.KubectlResponse{}, fmt.Errorf("kubectl: %w", err)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	timed, cancel := context.WithTimeoutCause(ctx, r.limit, errTime)
	defer cancel()
	stop := newProxy(r.api, r.answerBy, func(err error) { end(apiError{err}) }).serve(timed, l)

	all := &output{left: clusterv1.MaxKubectlOutput - ownWords}
	stdout, stderr := all.stream(), all.stream()
	cmd := exec.CommandContext(timed, self, append([]string{child.Arg}, r.args...)...)
	cmd.Env = []string{"HOME=" + dir, child.EnvSocket + "=" + socket, child.EnvServer + "=" + r.server}
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, stdout, stderr, lingering
	ended, err := runGroup(cmd)
	cause := context.Cause(timed) // before what comes now cancels it
	stop()

	res := clusterv1.KubectlResponse{Stdout: stdout.finish(), Stderr: stderr.finish(), Truncated: all.truncated, DurationMS: time.Since(began).Milliseconds()}
	switch {
	case errors.Is(cause, errTime), cause == nil && err == nil && ended.UserTime()+ended.SystemTime() >= r.limit: // the kernel ends that one
		res.ExitCode = child.ExitTime
		res.Stderr = onItsOwnLine(res.Stderr, fmt.Sprintf("KubeBYON ended it after %s, which is all the time that a command may take. Ask for less at once.", r.limit))
	case cause != nil:
		return clusterv1.KubectlResponse{}, cause
	case err != nil:
		return clusterv1.KubectlResponse{}, fmt.Errorf("kubectl: %w", err)
	default:
		res.ExitCode, res.Stderr = exit(ended, res.Stderr)
	}
	return res, nil
}

// exit gives the status of a child that ended by itself or by the system, and what it said.
func exit(ended *os.ProcessState, stderr string) (int, string) {
	status, _ := ended.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled():
		return exitSignal + int(status.Signal()), onItsOwnLine(stderr, "The system ended it ("+status.Signal().String()+"). Ask for less at once.")
	case status.ExitStatus() == exitCrash && strings.Contains(stderr, "fatal error: "):
		return exitCrash, "It needed more memory than a command may have. Ask for less at once.\n"
	}
	return status.ExitStatus(), stderr
}

// onItsOwnLine adds words for which there is room.
func onItsOwnLine(text, words string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + words + "\n"
}

// runGroup runs cmd in a process group of its own, of which nothing is left when it returns, nor when this process dies.
func runGroup(cmd *exec.Cmd) (*os.ProcessState, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// The child dies with the thread that started it, not with the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	// While it is not waited for, its number is nobody else's.
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	err := cmd.Wait()
	if cmd.ProcessState != nil { // how it ended is there; that it failed, or left its output open, is no error of ours
		err = nil
	}
	return cmd.ProcessState, err
}
