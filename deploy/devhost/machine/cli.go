package machine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

const usage = `usage:
  machine up NAME [--suite bookworm|trixie] [--init systemd|none] [--ip ADDRESS]
  machine exec NAME -- COMMAND…
  machine down NAME…
  machine list
`

// CLI is the command line of this package, without the program's own name. It gives the exit status: that of the
// command for exec, 2 for wrong usage. KUBEBYON_CACHE, KUBEBYON_STATE and
// KUBEBYON_DEVHOST_NETWORK mean what they mean to the host.
func CLI(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	fail := func(err error) int {
		fmt.Fprintln(stderr, err)
		return 1
	}
	dir, err := os.Getwd()
	if err != nil {
		return fail(err)
	}
	l, err := layout.FromEnv(os.LookupEnv, dir)
	if err != nil {
		return fail(err)
	}
	state := l.State
	switch verb, rest := args[0], args[1:]; {
	case verb == "up" && len(rest) > 0:
		o := Options{Name: rest[0], Octet: l.Net.Octet(), Cache: l.Cache, State: state, Log: stderr}
		f := flag.NewFlagSet("machine up", flag.ContinueOnError)
		f.SetOutput(stderr)
		f.StringVar(&o.Suite, "suite", Bookworm, "bookworm or trixie")
		f.StringVar(&o.Init, "init", Systemd, "systemd or none")
		f.Func("ip", "address on the host's network, from .11 upward", func(s string) (err error) { o.IP, err = netip.ParseAddr(s); return err })
		if err := f.Parse(rest[1:]); err != nil || f.NArg() > 0 {
			fmt.Fprint(stderr, usage)
			return 2
		}
		m, err := Up(ctx, o)
		if err != nil {
			return fail(err)
		}
		fmt.Fprintf(stdout, "%s %s\n", m.Name, m.IP)
	case verb == "exec" && len(rest) > 1:
		m, err := Find(state, rest[0])
		if err != nil {
			return fail(err)
		}
		command := rest[1:]
		if command[0] == "--" {
			command = command[1:]
		}
		if len(command) == 0 {
			fmt.Fprint(stderr, usage)
			return 2
		}
		err = m.Exec(ctx, os.Stdin, stdout, stderr, command...)
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() >= 0 {
			return exit.ExitCode()
		}
		if err != nil {
			return fail(err)
		}
	case verb == "down" && len(rest) > 0:
		for _, name := range rest {
			m, err := Find(state, name)
			if err == nil {
				err = m.Down(ctx)
			}
			if err != nil {
				return fail(err)
			}
		}
	case verb == "list" && len(rest) == 0:
		all, err := List(state)
		if err != nil {
			return fail(err)
		}
		for _, m := range all {
			word := "stopped"
			if m.Running() {
				word = "running"
			}
			fmt.Fprintf(stdout, "%-20s %-9s %-8s %-15s %s\n", m.Name, m.Suite, m.Init, m.IP, word)
		}
	default:
		fmt.Fprint(stderr, usage)
		return 2
	}
	return 0
}
