// Command kubebyon-gateway is the HTTP edge as a process of its own. It must hold nothing but the call of app.Main.
package main

import (
	"context"
	"os"

	"github.com/kubebyon/kubebyon/gateway/app"
)

func main() { os.Exit(app.Main(context.Background(), os.Args[1:], os.LookupEnv, os.Stderr)) }
