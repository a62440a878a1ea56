// Package fault is the one error that crosses KubeBYON's process borders: a kind, a stable code and text that is
// safe to show. It must never carry what stays inside (causes, paths, credentials): a cause is wrapped, not printed.
package fault

import (
	"context"
	"errors"
	"fmt"
)

// Kind says what sort of failure it was, and so which HTTP status it becomes. The values travel over NATS.
type Kind string

// The kinds, with the HTTP status that the gateway answers for each.
const (
	Invalid         Kind = "invalid"         // 400: the request itself is wrong
	Unauthenticated Kind = "unauthenticated" // 401
	Forbidden       Kind = "forbidden"       // 403
	NotFound        Kind = "not_found"       // 404: absent, or not to be seen by this principal
	Conflict        Kind = "conflict"        // 409: it collides with something that exists
	Precondition    Kind = "precondition"    // 409: the object's state does not allow it now
	TooLarge        Kind = "too_large"       // 413
	Unsupported     Kind = "unsupported"     // 415
	RateLimited     Kind = "rate_limited"    // 429
	Internal        Kind = "internal"        // 500: the text stays inside
	Unavailable     Kind = "unavailable"     // 503: a part that is needed cannot be reached
	Timeout         Kind = "timeout"         // 504: no answer before the deadline
)

// Error is safe to show to the person who asked, whole. Construct it with New.
type Error struct {
	Kind    Kind   `json:"kind"`
	Code    string `json:"code"`             // stable, snake_case
	Message string `json:"message"`          // what was wrong
	Field   string `json:"field,omitempty"`  // where: the JSON field, parameter or header
	Action  string `json:"action,omitempty"` // what to do about it

	cause error
}

// New makes an error whose text may be shown to whoever asked.
func New(kind Kind, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Message: fmt.Sprintf(format, args...)}
}

// In names the place in the input.
func (e *Error) In(field string) *Error { e.Field = field; return e }

// Do names the next action for the reader.
func (e *Error) Do(format string, args ...any) *Error {
	e.Action = fmt.Sprintf(format, args...)
	return e
}

// Because keeps cause for the log and for errors.Is; it is never shown.
func (e *Error) Because(cause error) *Error { e.cause = cause; return e }

// Error is for logs and includes the cause.
func (e *Error) Error() string {
	text := string(e.Kind) + " (" + e.Code + "): " + e.Message
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.cause }

// From gives the fault in err's chain. A context's end becomes Timeout or Unavailable, anything unknown becomes
// Internal with err as its hidden cause. From(nil) is nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return New(Timeout, "timeout", "no answer within the time allowed").Do("try again").Because(err)
	case errors.Is(err, context.Canceled):
		return New(Unavailable, "canceled", "the request was abandoned before it was answered").Because(err)
	default:
		return New(Internal, "internal", "something went wrong on our side").
			Do("try again; if it stays, give the operator the trace id").Because(err)
	}
}

// Is reports whether err's chain holds a fault of that kind.
func Is(err error, kind Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == kind
}
