//go:build pending

package deploy

import (
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/google/go-containerregistry/pkg/v1/tarball"
	_ "k8s.io/client-go/kubernetes"
	_ "github.com/google/go-cmp/cmp"
	_ "golang.org/x/sys/unix"
)
