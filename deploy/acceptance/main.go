// Command acceptance proves the product on real parts, over HTTP, the way its users meet it: a host cluster, PostgreSQL,
// kubebyon-api, servers that join with the very command that the API returned, and Pods with DNS on them. It must never
// look inside the product or stand in for a part of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}

// run gives the exit status: 0 where every step passed, 1 where one failed, 2 for a wrong call. The last line on stdout is
// JSON: seconds per step.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) (status int) {
	flags := flag.NewFlagSet("acceptance", flag.ContinueOnError)
	flags.SetOutput(stderr)
	stay := flags.Bool("stay", false, "stay up after the run until Ctrl-C, and print how to log in")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 2
	}
	fail := func(err error) int {
		fmt.Fprintf(stderr, "acceptance: %v\n", err)
		return 1
	}
	if os.Geteuid() != 0 {
		return fail(errors.New("it needs root, for namespaces, a bridge and cgroups: run it with sudo"))
	}
	s, err := newStack(lookup, stderr)
	if err != nil {
		return fail(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		if err := s.down(ctx, status == 0); err != nil {
			status = fail(fmt.Errorf("cleaning up: %w", err))
		}
	}()
	if err := s.up(ctx); err != nil {
		return fail(err)
	}
	r := newReport(stderr)
	err = acceptance(ctx, s, r)
	if err != nil {
		fmt.Fprintln(stderr, s.api.tail(60))
		fmt.Fprintf(stderr, "acceptance: %v\n", err)
		status = 1
	} else if *stay {
		printWelcome(stderr, s)
		<-ctx.Done()
		fmt.Fprintln(stderr, "\nstopping …")
	}
	fmt.Fprintln(stdout, r.line(err))
	return status
}

func printWelcome(out io.Writer, s *stack) {
	fmt.Fprintf(out, `
KubeBYON is up. Log in, then look around or add another machine:

  curl -sc cookie -H 'Content-Type: application/json' -d '{"email":"%[2]s","password":"%[3]s"}' %[1]s/api/auth/login
  curl -sb cookie %[1]s/api/console/clusters
  curl -sb cookie "%[1]s/api/console/nodes?cluster_id=%[4]s"
  curl -sb cookie %[1]s/api/console/clusters/%[4]s/kubeconfig > demo.kubeconfig
  curl -sb cookie -H 'Content-Type: application/json' -d '{"ttl_seconds":3600}' %[1]s/api/console/clusters/%[4]s/join-token

  %[5]s --kubeconfig demo.kubeconfig get nodes -o wide
  log: %[6]s

Ctrl-C stops everything and leaves nothing behind.
`, s.baseURL, adminEmail, s.adminPassword, s.clusterID, s.kubectl(), s.api.logPath)
}
