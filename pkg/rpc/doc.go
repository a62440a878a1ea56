// Package rpc carries the contract's methods over NATS request/reply: typed functions on one side, typed handlers on the
// other, and between them one go-kit chain of tracing, metrics, logging, deadline and recovery. It must never let a call
// hang, an error look like an answer, or an internal error's text leave its service; and it alone sees `any`.
package rpc
