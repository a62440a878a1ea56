// Command etcd is upstream's etcd server, built from its module: the host's store and the etcd image's content.
// It must add nothing to upstream.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
