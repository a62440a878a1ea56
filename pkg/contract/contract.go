// Package contract declares what the processes say to one another: a Method per NATS subject and, in the packages
// beneath it, the messages. It imports the standard library alone and holds no behaviour.
package contract

import "time"

// Method is one request/reply subject. Req and Res travel as JSON.
type Method[Req, Res any] struct {
	Subject string        // kubebyon.v1.<service>.<method>; a constant, never built from input
	Timeout time.Duration // how long a caller waits; an earlier deadline of its context wins
	// Idempotent methods may be sent again after "no responders"; others never are.
	Idempotent bool
}

// Event is one subject that tells everybody who listens that something happened. T travels as JSON. It may be lost: whoever acts
// on it looks from time to time as well.
type Event[T any] struct {
	Subject string // kubebyon.v1.<service>.<event>; a constant, never built from input
}

// Role is what an account may do everywhere.
type Role string

// The roles.
const (
	RoleAdmin Role = "admin"
	RoleUser  Role = "user"
)

// Principal is who asks. The gateway alone makes it, from a session or an API token; services trust NATS for it.
type Principal struct {
	UserID string `json:"user_id"` // usr_…
	Role   Role   `json:"role"`
	// ReadOnly and Clusters narrow what the account may do, as an API token's scopes do. They never widen it.
	ReadOnly bool     `json:"read_only,omitempty"`
	Clusters []string `json:"clusters,omitempty"` // cl_…, at most MaxPrincipalClusters; empty: all that the account may see
}

// MaxPrincipalClusters bounds a principal to what fits its header.
const MaxPrincipalClusters = 10

// Ping is what every service answers on <subject prefix>.ping.
type Ping struct{}

// Pong names the service that answered.
type Pong struct {
	Service string `json:"service"`
	Version string `json:"version"`
}
