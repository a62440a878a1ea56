package telemetry

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// NewLogger writes to w as "json" or (anything else) "text". Level is one of debug, info, warn, error; another word means
// info, since config has checked it already. A record made with a context that is being traced carries its trace_id.
func NewLogger(w io.Writer, format, level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(strings.TrimSpace(level))); err != nil {
		l = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: l}
	if strings.EqualFold(strings.TrimSpace(format), "json") {
		return slog.New(handler{slog.NewJSONHandler(w, o)})
	}
	return slog.New(handler{slog.NewTextHandler(w, o)})
}

// TraceID is the id under which an operator finds ctx's request, or "" outside of one.
func TraceID(ctx context.Context) string {
	if sc := trace.SpanContextFromContext(ctx); sc.HasTraceID() {
		return sc.TraceID().String()
	}
	return ""
}

// handler adds the trace id, so that nobody has to remember to.
type handler struct{ slog.Handler }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if id := TraceID(ctx); id != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", id))
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(a []slog.Attr) slog.Handler { return handler{h.Handler.WithAttrs(a)} }

func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }
