package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/go-kit/kit/endpoint"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

const scope = "github.com/kubebyon/kubebyon/pkg/rpc"

var errHidden = errors.New("hidden")

// side is one method at one end.
type side struct {
	subject  string
	kind     oteltrace.SpanKind // client or server
	timeout  time.Duration
	log      *slog.Logger
	tracer   oteltrace.Tracer
	duration metric.Float64Histogram
}

func newSide(kind oteltrace.SpanKind, subject string, timeout time.Duration, log *slog.Logger) *side {
	s := &side{subject: subject, kind: kind, timeout: timeout, log: log, tracer: otel.Tracer(scope)}
	// It fails for a malformed name alone, and then gives an instrument that does nothing.
	s.duration, _ = otel.Meter(scope).Float64Histogram("kubebyon.rpc."+kind.String()+".duration", metric.WithUnit("s"),
		metric.WithDescription("Time of a call, by method and outcome"))
	return s
}

// chain is what surrounds every call, at both ends and in this order. What it returns always fails with a *fault.Error.
func (s *side) chain() endpoint.Middleware {
	return endpoint.Chain(s.traced, s.measured, s.logged, s.timed, recovered)
}

func (s *side) traced(next endpoint.Endpoint) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		ctx, span := s.tracer.Start(ctx, s.subject, oteltrace.WithSpanKind(s.kind),
			oteltrace.WithAttributes(attribute.String("rpc.system", "nats"), attribute.String("rpc.method", s.subject)))
		defer span.End()
		response, err := next(ctx, request)
		if f := fault.From(err); f != nil {
			span.SetAttributes(attribute.String("kubebyon.error.kind", string(f.Kind)), attribute.String("kubebyon.error.code", f.Code))
			if ours(f) {
				span.SetStatus(codes.Error, f.Code)
			}
			return nil, f
		}
		return response, nil
	}
}

func (s *side) measured(next endpoint.Endpoint) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		start := time.Now()
		response, err := next(ctx, request)
		if !s.duration.Enabled(ctx) { // to gather what nobody collects takes longer than many a call
			return response, err
		}
		outcome := "ok"
		if f := fault.From(err); f != nil {
			outcome = string(f.Kind)
		}
		s.duration.Record(ctx, time.Since(start).Seconds(),
			metric.WithAttributes(attribute.String("rpc.method", s.subject), attribute.String("outcome", outcome)))
		return response, err
	}
}

// logged writes a failure once, where it happened: at the server, with the cause that does not travel. The client's side
// has no log; its caller answers for what it gets.
func (s *side) logged(next endpoint.Endpoint) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		response, err := next(ctx, request)
		f := fault.From(err)
		if f == nil || s.log == nil {
			return response, err
		}
		level := slog.LevelDebug
		switch {
		case f.Kind == fault.Internal:
			level = slog.LevelError
		case ours(f) || errors.Unwrap(f) != nil:
			level = slog.LevelWarn
		}
		s.log.LogAttrs(ctx, level, "a call failed", slog.String("method", s.subject), slog.String("kind", string(f.Kind)),
			slog.String("code", f.Code), slog.String("error", err.Error()))
		return response, err
	}
}

// timed gives the call the method's time; an earlier deadline stays.
func (s *side) timed(next endpoint.Endpoint) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		return next(ctx, request)
	}
}

func recovered(next endpoint.Endpoint) endpoint.Endpoint {
	return func(ctx context.Context, request any) (response any, err error) {
		defer func() {
			if r := recover(); r != nil {
				response, err = nil, fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			}
		}()
		return next(ctx, request)
	}
}

// ours reports a failure that the operator should see, as against one that the caller caused.
func ours(f *fault.Error) bool {
	return f.Kind == fault.Internal || f.Kind == fault.Unavailable || f.Kind == fault.Timeout
}
