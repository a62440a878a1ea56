// Package edgev1 is the edge service's contract. It must hold no behaviour.
package edgev1

import (
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
)

// Queue is the queue group that the service's replicas share.
const Queue = "edge"

// PingMethod answers whether the service lives.
var PingMethod = contract.Method[contract.Ping, contract.Pong]{Subject: "kubebyon.v1.edge.ping", Timeout: time.Second, Idempotent: true}
