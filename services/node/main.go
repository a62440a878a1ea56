// Command node lists the nodes of tenants over NATS. It must hold no logic of its own.
package main

import (
	"context"
	"os"

	"github.com/kubebyon/kubebyon/services/node/app"
)

func main() { os.Exit(app.Main(context.Background(), os.Args[1:], os.LookupEnv, os.Stderr)) }
