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
	"path/filepath"
)

const usage = `usage:
  machine up NAME [--suite bookworm|trixie] [--init systemd|none] [--ip ADDRESS]
  machine exec NAME -- COMMAND…
  machine down NAME…
  machine list
`

// CLI is the command line of this package, without the program's own name. It gives the exit status: that of the
// command for exec, 2 for wrong usage. KUBEBYON_CACHE and KUBEBYON_STATE say where files are kept.
func CLI(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	fail := func(err error) int {
		fmt.Fprintln(stderr, err)
		return 1
	}
	cache, state, err := folders()
	if err != nil {
		return fail(err)
	}
	switch verb, rest := args[0], args[1:]; {
	case verb == "up" && len(rest) > 0:
		o := Options{Name: rest[0], Cache: cache, State: state, Log: stderr}
		f := flag.NewFlagSet("machine up", flag.ContinueOnError)
		f.SetOutput(stderr)
		f.StringVar(&o.Suite, "suite", Bookworm, "bookworm or trixie")
		f.StringVar(&o.Init, "init", Systemd, "systemd or none")
		f.IntVar(&o.Octet, "octet", 0, "X of the network 198.18.X.0/24")
		f.Func("ip", "address in 198.18.X.0/24", func(s string) error { o.IP, err = netip.ParseAddr(s); return err })
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

// folders reads KUBEBYON_CACHE and KUBEBYON_STATE; the state is <repository>/.run where it is not set.
func folders() (cache, state string, err error) {
	if cache = os.Getenv("KUBEBYON_CACHE"); cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", "", fmt.Errorf("neither KUBEBYON_CACHE nor HOME is set: %w", err)
		}
		cache = filepath.Join(home, ".cache", "kubebyon")
	}
	if state = os.Getenv("KUBEBYON_STATE"); state == "" {
		dir, err := os.Getwd()
		if err != nil {
			return "", "", err
		}
		for !exists(filepath.Join(dir, "go.work")) {
			if dir == filepath.Dir(dir) {
				return "", "", errors.New("run this inside the repository, or set KUBEBYON_STATE to a folder")
			}
			dir = filepath.Dir(dir)
		}
		state = filepath.Join(dir, ".run")
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return "", "", err
	}
	state, err = filepath.Abs(state)
	return cache, state, err
}
