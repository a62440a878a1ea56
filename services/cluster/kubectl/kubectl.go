// Package kubectl is kubectl as a child process of the service: the commands that only read, put together by name. It holds no
// credential and reads none; its one way out is the socket that its parent gives it. It must never learn to change anything, to
// run another program, or to read or write a file.
package kubectl

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/features"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// Arg is the first argument of a process that is to be kubectl; kubectl's own follow.
const Arg = "kubebyon-kubectl"

// The variables of its environment. There is no other that it reads.
const (
	EnvSocket = "KUBEBYON_KUBECTL_SOCKET" // the Unix socket at which the tenant's API is served, without TLS and credentials
	EnvServer = "KUBEBYON_KUBECTL_SERVER" // where that API really is, for what kubectl tells people: https://host:port
)

// ExitTime is the exit status of a run that was ended at its time limit, as that of timeout(1).
const ExitTime = 124

// exitUsage is the exit status of a call that is none of the service's.
const exitUsage = 2

// Main is the process: it runs kubectl with args and gives the exit status, unless kubectl itself ends the process first. It
// limits the process for good before it does anything.
func Main(args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	socket, _ := lookup(EnvSocket)
	server, _ := lookup(EnvServer)
	if socket == "" || server == "" {
		fmt.Fprintf(stderr, "%s: it is started by KubeBYON alone, with %s and %s\n", Arg, EnvSocket, EnvServer)
		return exitUsage
	}
	if err := limit(); err != nil {
		fmt.Fprintf(stderr, "%s: its limits cannot be set: %v\n", Arg, err)
		return exitUsage
	}
	return run(args, newClient(server, socket, stderr), stdout, stderr)
}

func run(args []string, via *client, stdout, stderr io.Writer) int {
	// Watches lead nowhere here, so that lists have to be asked for as lists. It is known to client-go, and not locked.
	if gates, ok := features.FeatureGates().(interface {
		Set(features.Feature, bool) error
	}); ok {
		_ = gates.Set(features.WatchListClient, false)
	}
	cmdutil.BehaviorOnFatal(func(text string, status int) {
		if text != "" {
			fmt.Fprintln(stderr, strings.TrimSuffix(text, "\n"))
		}
		os.Exit(status) // as kubectl means it: what calls this does not expect to go on
	})
	root := newCommand(via, genericiooptions.IOStreams{In: strings.NewReader(""), Out: stdout, ErrOut: stderr})
	root.SetArgs(args)
	if err := root.Execute(); err != nil {
		cmdutil.CheckErr(err)
	}
	return 0
}

// Command gives the tree of commands, for tests that hold the filter's table against it. It reaches nothing.
func Command() *cobra.Command {
	return newCommand(newClient("https://tenant.invalid", "/nonexistent/socket", io.Discard), genericiooptions.NewTestIOStreamsDiscard())
}
