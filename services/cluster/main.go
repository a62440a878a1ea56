// Command kubebyon-cluster is the cluster service. It must hold nothing but the call of its app.
package main

import (
	"context"
	"os"

	"github.com/kubebyon/kubebyon/services/cluster/app"
)

func main() { os.Exit(app.Main(context.Background(), os.Args[1:], os.LookupEnv, os.Stderr)) }
