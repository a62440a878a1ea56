package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// retries are the pauses before an idempotent method is sent again after "no responders": a replica that is being replaced
// may take its place within them, and together they stay within milliseconds.
var retries = [...]time.Duration{5 * time.Millisecond, 20 * time.Millisecond}

// Client gives m as a typed function over conn. It carries ctx's trace, principal and remaining time (at most m.Timeout)
// to the service. A failure is a *fault.Error: the service's own, or
//
//	unavailable service_unavailable    nobody listens on the subject, or NATS is not connected: known in milliseconds
//	timeout     service_timeout        no answer in time; the service may still have done the work
//	too_large   request_too_large      the request is over NATS' payload limit
//	unavailable canceled               ctx was cancelled
//	internal    reply_malformed        what came back is no answer of ours
func Client[Req, Res any](conn *nats.Conn, m contract.Method[Req, Res]) func(context.Context, Req) (Res, error) {
	call := newSide(oteltrace.SpanKindClient, m.Subject, m.Timeout, nil).chain()(
		func(ctx context.Context, request any) (any, error) {
			reply, err := send(ctx, conn, m.Subject, m.Idempotent, request)
			if err != nil {
				return nil, err
			}
			// Fields that we do not know are a newer service's.
			var res Res
			if err := decode(reply.Data, &res); err != nil {
				return nil, fault.New(fault.Internal, "reply_malformed", "a service answered something that is not an answer").
					Because(fmt.Errorf("%s: %w", m.Subject, err))
			}
			return res, nil
		})
	return func(ctx context.Context, req Req) (Res, error) {
		response, err := call(ctx, req)
		if err != nil {
			var zero Res
			return zero, fault.From(err)
		}
		return response.(Res), nil
	}
}

// decode leaves an answer that is asked for as json.RawMessage as it came. It sees no more of it than that it is a JSON
// object from end to end: a service's encoder wrote it, and NATS carries a message whole or not at all.
func decode(data []byte, res any) error {
	if raw, ok := res.(*json.RawMessage); ok {
		if len(data) < 2 || data[0] != '{' || data[len(data)-1] != '}' {
			return errors.New("it is no JSON object")
		}
		*raw = data
		return nil
	}
	return json.Unmarshal(data, res)
}

func send(ctx context.Context, conn *nats.Conn, subject string, idempotent bool, request any) (*nats.Msg, error) {
	data, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("%s: the request cannot be encoded: %w", subject, err)
	}
	for try := 0; ; try++ {
		header, err := requestHeader(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: the principal cannot be sent: %w", subject, err)
		}
		// The client library would keep the message while it reconnects, and send it when nobody waits for it any more.
		if s := conn.Status(); s != nats.CONNECTED && s != nats.DRAINING_SUBS {
			return nil, unavailable(subject, fmt.Errorf("NATS is %s", s))
		}
		msg := &nats.Msg{Subject: subject, Header: header, Data: data}
		if limit := conn.MaxPayload(); limit > 0 && int64(len(data)+headerSize(header)) > limit {
			return nil, requestTooLarge(len(data), limit, nil)
		}
		reply, err := conn.RequestMsgWithContext(ctx, msg)
		switch {
		case err == nil:
			if f := fromReply(reply); f != nil {
				return nil, asCaller(subject, f)
			}
			return reply, nil
		case errors.Is(err, nats.ErrNoResponders):
			if !idempotent || try >= len(retries) || !sleep(ctx, retries[try]) {
				return nil, unavailable(subject, err)
			}
		case errors.Is(err, nats.ErrMaxPayload):
			return nil, requestTooLarge(len(data), conn.MaxPayload(), err)
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
			return nil, timedOut(subject, err)
		case errors.Is(err, context.Canceled):
			return nil, err
		default: // the connection is closed, draining, or broke under the request
			return nil, unavailable(subject, err)
		}
	}
}

func unavailable(subject string, cause error) *fault.Error {
	return fault.New(fault.Unavailable, "service_unavailable", "a part of KubeBYON that this needs cannot be reached").
		Do("try again in a moment").Because(fmt.Errorf("%s: %w", subject, cause))
}

func timedOut(subject string, cause error) *fault.Error {
	return fault.New(fault.Timeout, "service_timeout", "a part of KubeBYON did not answer in time").
		Do("try again; what was asked for may have happened all the same").Because(fmt.Errorf("%s: %w", subject, cause))
}

// asCaller gives a handler's ended context the same code that the caller's own end of patience has: which of the two comes
// first is chance.
func asCaller(subject string, f *fault.Error) *fault.Error {
	switch {
	case f.Kind == fault.Timeout && f.Code == fault.From(context.DeadlineExceeded).Code:
		return timedOut(subject, f)
	case f.Kind == fault.Unavailable && f.Code == fault.From(context.Canceled).Code: // the service is stopping
		return unavailable(subject, f)
	}
	return f
}

func requestTooLarge(size int, limit int64, cause error) *fault.Error {
	return fault.New(fault.TooLarge, "request_too_large", "the request has %d bytes; at most %d are taken", size, limit).Because(cause)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
