// Command kubebyon-setup makes the secrets that the services, NATS, PostgreSQL and HAProxy know one another by, each in a place of
// its own, and completes what is missing of them. It must never change a secret that is there, nor print one.
package main

import (
	"context"
	"os"
)

func main() { os.Exit(Main(context.Background(), os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)) }
