// Command kubebyon-api is the whole product in one process, for one host: the gateway, the four services and a NATS server
// of their own between them. It must add no behaviour: the split binaries run the same code.
package main

import (
	"context"
	"os"
)

func main() { os.Exit(Main(context.Background(), os.Args[1:], os.LookupEnv, os.Stderr)) }
