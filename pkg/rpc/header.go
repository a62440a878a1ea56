package rpc

import (
	"context"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// The headers. NATS compares names byte by byte, so that every one is lower-case on both sides.
const (
	// headerTimeout is what was left of the caller's time when it sent, in whole milliseconds. It is relative since two
	// machines' clocks differ by more than a call takes; what the message spent on its way is not counted.
	headerTimeout   = "kb-timeout-ms"
	headerPrincipal = "kb-principal"  // contract.Principal as JSON
	headerStatus    = "kb-status"     // of an answer: ok or error. An answer with neither is no answer of ours.
	headerErrorKind = "kb-error-kind" // fault.Kind
	headerErrorCode = "kb-error-code" // fault.Error's Code
	statusOK        = "ok"
	statusError     = "error"
	maxErrorText    = 4 << 10 // bytes of a fault's message, and of its action
)

// trace carries W3C trace context whatever the process's global propagator is.
var trace = propagation.TraceContext{}

// carrier lets the propagator write headers as they are named; OpenTelemetry's own canonicalises them.
type carrier nats.Header

func (c carrier) Get(key string) string {
	if v := c[key]; len(v) == 1 {
		return v[0]
	}
	return ""
}

func (c carrier) Set(key, value string) { c[key] = []string{value} }

func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}

// requestHeader is what ctx says to the other side.
func requestHeader(ctx context.Context) (nats.Header, error) {
	h := nats.Header{}
	trace.Inject(ctx, carrier(h))
	if deadline, ok := ctx.Deadline(); ok {
		carrier(h).Set(headerTimeout, strconv.FormatInt(max(1, time.Until(deadline).Milliseconds()), 10))
	}
	if p, ok := PrincipalFrom(ctx); ok {
		s, err := encodePrincipal(p)
		if err != nil {
			return nil, err
		}
		carrier(h).Set(headerPrincipal, s)
	}
	return h, nil
}

// fromHeader is its counterpart. It never trusts: what is absent is absent, what is malformed is a fault. timeout is at
// most limit.
func fromHeader(ctx context.Context, h nats.Header, limit time.Duration) (_ context.Context, timeout time.Duration, _ *fault.Error) {
	ctx = trace.Extract(ctx, carrier(h))
	timeout = limit
	switch v := h[headerTimeout]; {
	case len(v) == 0:
	case len(v) > 1:
		return ctx, timeout, malformed(headerTimeout, nil)
	default:
		ms, err := strconv.ParseUint(v[0], 10, 31) // at most 24 days: no overflow below
		if err != nil || ms == 0 {
			return ctx, timeout, malformed(headerTimeout, err)
		}
		timeout = min(limit, time.Duration(ms)*time.Millisecond)
	}
	switch v := h[headerPrincipal]; {
	case len(v) == 0:
	case len(v) > 1:
		return ctx, timeout, malformed(headerPrincipal, nil)
	default:
		p, err := decodePrincipal(v[0])
		if err != nil {
			return ctx, timeout, malformed(headerPrincipal, err)
		}
		ctx = WithPrincipal(ctx, p)
	}
	return ctx, timeout, nil
}

func malformed(header string, cause error) *fault.Error {
	return fault.New(fault.Invalid, "header_malformed", "the header %s of this message is not one that KubeBYON sends", header).Because(cause)
}

// wireError is an error's body; its kind and code travel in headers.
type wireError struct {
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`
	Action  string `json:"action,omitempty"`
}

var errorCode = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// errorReply is f as a message. What an internal fault says, beyond its code, stays here.
func errorReply(f *fault.Error) *nats.Msg {
	kind, code := f.Kind, f.Code
	body := wireError{Message: clip(f.Message), Field: clip(f.Field), Action: clip(f.Action)}
	if !known(kind) || kind == fault.Internal {
		hidden := fault.From(errHidden)
		kind, body = fault.Internal, wireError{Message: hidden.Message, Action: hidden.Action}
	}
	if !errorCode.MatchString(code) {
		code = string(kind)
	}
	data, _ := json.Marshal(body) // three strings: it cannot fail
	return &nats.Msg{Header: nats.Header{
		headerStatus: {statusError}, headerErrorKind: {string(kind)}, headerErrorCode: {code},
	}, Data: data}
}

// fromReply gives nil for an answer, the fault for an error, and a fault for what is neither.
func fromReply(m *nats.Msg) *fault.Error {
	c := carrier(m.Header)
	switch c.Get(headerStatus) {
	case statusOK:
		if c.Get(headerErrorKind) == "" {
			return nil
		}
	case statusError:
		kind, code := fault.Kind(c.Get(headerErrorKind)), c.Get(headerErrorCode)
		if !known(kind) || !errorCode.MatchString(code) {
			break
		}
		var body wireError
		if json.Unmarshal(m.Data, &body) != nil || body.Message == "" {
			break
		}
		return &fault.Error{Kind: kind, Code: code, Message: clip(body.Message), Field: clip(body.Field), Action: clip(body.Action)}
	}
	return fault.New(fault.Internal, "reply_malformed", "a service answered something that is not an answer")
}

func known(k fault.Kind) bool {
	switch k {
	case fault.Invalid, fault.Unauthenticated, fault.Forbidden, fault.NotFound, fault.Conflict, fault.Precondition, fault.TooLarge,
		fault.Unsupported, fault.RateLimited, fault.Internal, fault.Unavailable, fault.Timeout:
		return true
	}
	return false
}

func clip(s string) string {
	if len(s) <= maxErrorText {
		return s
	}
	return strings.ToValidUTF8(s[:maxErrorText], "") + "…"
}

// headerSize is what h takes of a message's payload limit.
func headerSize(h nats.Header) int {
	n := len("NATS/1.0\r\n\r\n")
	for k, vs := range h {
		for _, v := range vs {
			n += len(k) + len(v) + len(": \r\n")
		}
	}
	return n
}

// validSubject reports whether s is a method of service: no wildcard, no blank, nothing that came from input.
func validSubject(service, s string) bool {
	return methodSubject.MatchString(s) && len(s) > len(prefix(service)) && s[:len(prefix(service))] == prefix(service)
}

var methodSubject = regexp.MustCompile(`^kubebyon\.v1\.[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$`)

func prefix(service string) string { return "kubebyon.v1." + service + "." }
