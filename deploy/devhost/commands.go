package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kubebyon/kubebyon/deploy/devhost/build"
	"github.com/kubebyon/kubebyon/deploy/devhost/host"
	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
	"github.com/kubebyon/kubebyon/deploy/devhost/machine"
	"github.com/kubebyon/kubebyon/deploy/devhost/mirror"
)

const usage = `devhost runs a Kubernetes cluster on this machine for development and tests.

  devhost up          start it (or use the cluster of KUBECONFIG) and write the kubeconfig
  devhost down        stop it
  devhost status      what runs; exit status 1 unless it is ready
  devhost build       Kubernetes and the rest, downloaded or built into the cache
  devhost mirror DIR  fill DIR with what workers download (KUBEBYON_MIRROR_DIR)
  devhost machine …   up, exec, down, list: other machines on the host's network

  KUBEBYON_CACHE            programs and images (default ~/.cache/kubebyon)
  KUBEBYON_STATE            this run's files (default .run in the repository)
  KUBEBYON_DEVHOST_NETWORK  198.18.X.0/24, for a second host beside the first (default 198.18.0.0/24)
  KUBECONFIG                a cluster to use instead
`

// run carries out one command and gives its exit status.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	if args[0] == "machine" {
		return machine.CLI(ctx, args[1:], stdout, stderr)
	}
	err := command(ctx, args, lookup, stdout, stderr)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprint(stderr, usage)
		return 2
	default:
		fmt.Fprintf(stderr, "devhost %s: %v\n", args[0], err)
		return 1
	}
}

var errUsage = errors.New("wrong usage")

func command(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) error {
	if len(args) == 3 && args[0] == host.ProvisionerCommand {
		return host.Provisioner(ctx, args[1], args[2])
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	l, err := layout.FromEnv(lookup, dir)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	start := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(stderr, "devhost %5.1f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	h := &host.Host{Layout: l, Self: self, Say: say, Kubeconfig: external(l, lookup)}
	switch {
	case args[0] == "up" && len(args) == 1:
		if err := h.Up(ctx); err != nil {
			return err
		}
		say("up")
		fmt.Fprintln(stdout, l.Kubeconfig())
		return nil
	case args[0] == "down" && len(args) == 1:
		return h.Down(ctx)
	case args[0] == "status" && len(args) == 1:
		text, err := h.Status(ctx)
		fmt.Fprintln(stdout, text)
		return err
	case args[0] == "build" && len(args) == 1:
		_, err := build.Ensure(ctx, l, build.All(), say)
		return err
	case args[0] == "mirror" && len(args) == 2:
		return mirror.Fill(ctx, l, args[1], say)
	default:
		return errUsage
	}
}

// external is the kubeconfig of the user's own cluster; ours, which a shell may still have in KUBECONFIG, is none.
func external(l layout.Layout, lookup func(string) (string, bool)) string {
	v, _ := lookup("KUBECONFIG")
	if v == "" {
		return ""
	}
	if abs, err := filepath.Abs(v); err == nil && abs == l.Kubeconfig() {
		return ""
	}
	return v
}
