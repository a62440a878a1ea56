// Package tokenv1 is the token service's contract. It must hold no behaviour.
package tokenv1

import (
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
)

// Queue is the queue group that the service's replicas share.
const Queue = "token"

// The methods. Every one but Ping and JoinScript needs a principal.
var (
	PingMethod = contract.Method[contract.Ping, contract.Pong]{Subject: "kubebyon.v1.token.ping", Timeout: time.Second, Idempotent: true}
	Create     = contract.Method[CreateRequest, CreateResponse]{Subject: "kubebyon.v1.token.create", Timeout: 10 * time.Second}
	List       = contract.Method[ListRequest, ListResponse]{Subject: "kubebyon.v1.token.list", Timeout: 5 * time.Second, Idempotent: true}
	Revoke     = contract.Method[RevokeRequest, Token]{Subject: "kubebyon.v1.token.revoke", Timeout: 10 * time.Second, Idempotent: true}
	JoinScript = contract.Method[JoinScriptRequest, JoinScriptResponse]{Subject: "kubebyon.v1.token.join_script", Timeout: 10 * time.Second, Idempotent: true}
)

// Forget removes the records of a cluster that is being removed, or is gone: what the cluster service asks as itself, without a
// principal. Of one that lives on it is a conflict (cluster_not_deleting). Asking again does no harm.
var Forget = contract.Method[ForgetRequest, ForgetResponse]{Subject: "kubebyon.v1.token.forget", Timeout: 5 * time.Second, Idempotent: true}

// Status of a token, derived when it is read.
type Status string

// The statuses.
const (
	Active  Status = "active"
	Expired Status = "expired"
	Revoked Status = "revoked"
)

// Token is the record of a bootstrap token. It never holds the secret half.
type Token struct {
	ID         string     `json:"id"`         // tok_ + 20 of [a-z0-9]
	ClusterID  string     `json:"cluster_id"` // cl_…
	TokenID    string     `json:"token_id"`   // the public half, [a-z0-9]{6}
	Status     Status     `json:"status"`
	CreatedBy  string     `json:"created_by"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at"`
	RevokedAt  *time.Time `json:"revoked_at,omitempty"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"` // when its join script was last fetched
}

// CreateRequest asks for a bootstrap token. TTLSeconds nil means the default of 7200; else 60 … 604800.
type CreateRequest struct {
	ClusterID   string `json:"cluster_id"`
	TTLSeconds  *int64 `json:"ttl_seconds,omitempty"`
	JoinBaseURL string `json:"join_base_url,omitempty"` // from the settings; the gateway fills it
}

// CreateResponse holds a credential, in JoinCommand alone: never log it.
type CreateResponse struct {
	Token       Token  `json:"token"`
	JoinCommand string `json:"join_command"`
}

// ListRequest asks for a cluster's tokens.
type ListRequest struct {
	ClusterID string `json:"cluster_id"`
}

// ListResponse is ordered newest first.
type ListResponse struct {
	Tokens []Token `json:"tokens"`
}

// RevokeRequest ends a token at once, in the tenant and in our record.
type RevokeRequest struct {
	ClusterID string `json:"cluster_id"`
	ID        string `json:"id"` // tok_…
}

// ForgetRequest names the cluster.
type ForgetRequest struct {
	ClusterID string `json:"cluster_id"`
}

// ForgetResponse counts the records that were there.
type ForgetResponse struct {
	Forgotten int64 `json:"forgotten"`
}

// JoinScriptRequest carries a machine's bootstrap token: never log it.
type JoinScriptRequest struct {
	Token       string       `json:"token"`         // id.secret
	JoinBaseURL string       `json:"join_base_url"` // where the machine reached us; the gateway fills it
	Mirror      []MirrorFile `json:"mirror"`
}

// MirrorFile is a file that the gateway serves to workers at <join_base_url>/node/mirror/<name>.
type MirrorFile struct {
	Name   string `json:"name"` // for example kubelet-v1.37.2-linux-amd64
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// JoinScriptResponse holds a credential: never log it.
type JoinScriptResponse struct {
	Script string `json:"script"`
}
