// Command edge answers over NATS for public access. It must hold no logic of its own.
package main

import (
	"context"
	"os"

	"github.com/kubebyon/kubebyon/services/edge/app"
)

func main() { os.Exit(app.Main(context.Background(), os.Args[1:], os.LookupEnv, os.Stderr)) }
