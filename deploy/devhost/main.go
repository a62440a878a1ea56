// Command devhost is the development host cluster: a real Kubernetes on this Debian machine for the tenants of
// kubebyon-api to run on, and other "machines" that join them. It must never be needed in production.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/kubebyon/kubebyon/deploy/devhost/host"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == host.InitCommand {
		os.Exit(host.Init(os.Args[2]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}
