// Command bench measures how fast the product is and how little it takes, as ratios to the same work done without it, in
// one run on one machine, and writes docs/performance.md. It must never write a number that it did not measure, and a
// goal that is missed is a result, not a failure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// inOneProcess is the argument that turns this program into what GET …/clusters is compared with.
const inOneProcess = "in-one-process"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) == 3 && os.Args[1] == inOneProcess {
		os.Exit(serveInOneProcess(ctx, os.Args[2], os.Stdout, os.Stderr))
	}
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}

// phases in the order in which they run. Each stands on the stack alone, and on the tenant that idle made.
var phases = []struct {
	name string
	do   func(*bench, context.Context) error
}{
	{"provision", (*bench).provision},
	{"five", (*bench).fiveAtOnce},
	{"idle", (*bench).idle},
	{"join", (*bench).join},
	{"nodes", (*bench).nodes},
	{"clusters", (*bench).clusters},
	{"identity", (*bench).identity},
	{"edge", (*bench).edge},
}

// run gives the exit status: 0 where everything was measured, 1 where something failed, 2 for a wrong call.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) (status int) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("only", "", "run these phases, separated by commas, and print the table instead of writing it: provision, five, idle, join, nodes, clusters, identity, edge")
	rounds := flags.Int("rounds", 3, "how often each slow thing is measured")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *rounds < 1 {
		return 2
	}
	fail := func(err error) int {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	if os.Geteuid() != 0 {
		return fail(errors.New("it needs root, for namespaces, a bridge and cgroups: run it with sudo"))
	}
	s, err := newStack(lookup, stderr)
	if err != nil {
		return fail(err)
	}
	b := &bench{stack: s, rounds: *rounds, report: report{facts: machineFacts(time.Now())}}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		if err := s.down(ctx, status == 0); err != nil {
			status = fail(fmt.Errorf("cleaning up: %w", err))
		}
	}()
	busy := loadAverage()
	if err := s.up(ctx); err != nil {
		return fail(err)
	}
	wanted := strings.Split(*only, ",")
	b.skipIdle = *only != "" && !slices.Contains(wanted, "idle")
	for _, phase := range phases {
		if *only != "" && phase.name != "idle" && !slices.Contains(wanted, phase.name) {
			continue
		}
		s.say("== %s", phase.name)
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, 10*time.Minute)
		err := phase.do(b, limited)
		cancel()
		if err != nil {
			return fail(fmt.Errorf("%s: %w", phase.name, err))
		}
		s.say("   %s took %.0f s", phase.name, time.Since(began).Seconds())
	}
	if load := loadAverage(); busy > 1 {
		b.report.comment("The machine was shared during the run (1-minute load average %s before it, %s after its last step, which is our own load): times are upper bounds, ratios are what to read.", number(busy), number(load))
	}
	text := b.report.markdown()
	if *only != "" {
		fmt.Fprint(stdout, text)
		return 0
	}
	if err := os.WriteFile(filepath.Join(s.root, "docs", "performance.md"), []byte(text), 0o644); err != nil {
		return fail(err)
	}
	fmt.Fprint(stdout, text)
	return 0
}

// bench is one run.
type bench struct {
	*stack
	rounds int
	report report
	tenant tenant // made by idle, used by what follows

	skipIdle bool // make the tenant, measure nothing at rest
}
