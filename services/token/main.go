// Command token issues bootstrap tokens and serves join scripts over NATS. It must hold no logic of its own.
package main

import (
	"context"
	"os"

	"github.com/kubebyon/kubebyon/services/token/app"
)

func main() { os.Exit(app.Main(context.Background(), os.Args[1:], os.LookupEnv, os.Stderr)) }
