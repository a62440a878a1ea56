package httpapi

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

type (
	queryKey    struct{}
	untracedKey struct{}
	recordKey   struct{}

	// untraced is what of a request is hidden from tracing.
	untraced struct {
		address *url.URL
		header  http.Header
	}
)

// hideQuery takes the query out of the request before anything can log or trace it: /node/join has a credential
// there. Handlers read it with query. The path is hidden from tracing too, by trace.
func hideQuery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw := r.URL.RawQuery
		address := *r.URL
		address.RawQuery, address.ForceQuery, address.Fragment = "", false, ""
		r = r.WithContext(context.WithValue(r.Context(), queryKey{}, raw))
		r.URL, r.RequestURI = &address, address.EscapedPath()
		if r.Header.Get("Referer") != "" {
			r.Header.Del("Referer") // it may repeat the query, and nothing here reads it
		}
		next.ServeHTTP(w, r)
	})
}

func query(r *http.Request) (url.Values, error) {
	raw, _ := r.Context().Value(queryKey{}).(string)
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, fault.New(fault.Invalid, "query_invalid", "the query after ? is not valid")
	}
	return values, nil
}

// trace opens the request's span. A caller's trace is linked, not joined: a stranger does not choose our trace ids.
// otelhttp records the path, which may be a mistyped credential: it is given none, and the route is named instead. Nor is it
// given headers, of which it takes the client's address from whoever made up X-Forwarded-For.
func trace(next http.Handler) http.Handler {
	traced := otelhttp.NewMiddleware("http",
		otelhttp.WithPublicEndpointFn(func(*http.Request) bool { return true }),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return "HTTP" }),
	)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if whole, ok := r.Context().Value(untracedKey{}).(untraced); ok {
			r.URL, r.Header = whole.address, whole.header
		}
		// Without an exporter there is no trace id, or the caller's; people and logs need one of ours all the same.
		if span := oteltrace.SpanContextFromContext(r.Context()); !span.IsValid() || span.IsRemote() {
			var traceID oteltrace.TraceID
			var spanID oteltrace.SpanID
			_, _ = rand.Read(traceID[:])
			_, _ = rand.Read(spanID[:])
			r = r.WithContext(oteltrace.ContextWithSpanContext(r.Context(),
				oteltrace.NewSpanContext(oteltrace.SpanContextConfig{TraceID: traceID, SpanID: spanID})))
		}
		next.ServeHTTP(w, r)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(context.WithValue(r.Context(), untracedKey{}, untraced{r.URL, r.Header}))
		parents := http.Header{}
		for _, name := range []string{"Traceparent", "Tracestate"} {
			if values := r.Header[name]; len(values) > 0 {
				parents[name] = values
			}
		}
		r.URL, r.Header = &url.URL{}, parents
		traced.ServeHTTP(w, r)
	})
}

func traceID(ctx context.Context) string {
	return oteltrace.SpanContextFromContext(ctx).TraceID().String()
}

// nameRoute tells the span, the metrics and the log which route it is: a name, never what the client sent.
func nameRoute(r *http.Request, rt route) {
	name := rt.Method + " " + rt.Path
	if rec := recordOf(r); rec != nil {
		rec.route = name
		for segment := range strings.SplitSeq(r.URL.Path, "/") {
			if idForm.MatchString(segment) {
				rec.ids = append(rec.ids, segment)
			}
		}
	}
	label := attribute.String("http.route", rt.Path)
	span := oteltrace.SpanFromContext(r.Context())
	span.SetName(name)
	span.SetAttributes(label)
	if labeler, ok := otelhttp.LabelerFromContext(r.Context()); ok {
		labeler.Add(label)
	}
}

// idForm is every object's id: cl_…, tok_…, usr_…. No credential of ours has it.
var idForm = regexp.MustCompile(`^[a-z]{2,4}_[a-z0-9]{20}$`)

// record is what a request's one line in the log says, and its entry in the audit log.
type record struct {
	route, user string
	ids         []string // of the objects in the path, in their own form; never another part of it
	err         error

	// For the audit log alone.
	credential string   // ses_… or pat_…
	objects    []string // besides ids; see concerns
	fields     []string // see changes
	returned   bool     // the handler came to its end
	replayed   bool     // the answer is that of the same request before
}

func recordOf(r *http.Request) *record {
	rec, _ := r.Context().Value(recordKey{}).(*record)
	return rec
}

// observe sets the headers that every answer has, turns a panic into a 500 and writes the request's line. The path
// is left out, but for well-formed ids: it may be a mistyped credential.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &record{route: "none"}
		out := &meter{ResponseWriter: w}
		r = r.WithContext(context.WithValue(r.Context(), recordKey{}, rec))

		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")

		defer func() { //nolint:contextcheck // r carries the context
			panicked := recover()
			if err, ok := panicked.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(panicked) // a handler that means to cut the connection
			}
			if panicked != nil {
				s.log.ErrorContext(r.Context(), "request panicked", slog.String("route", rec.route), slog.Any("panic", panicked),
					slog.String("stack", string(debug.Stack())))
				if out.status == 0 {
					s.fail(out, r, fault.New(fault.Internal, "internal", "something went wrong on our side").
						Do("try again; if it stays, give the operator the trace id"))
				}
			}
			s.report(r, rec, out, time.Since(start))
			if panicked != nil && out.status < 500 {
				panic(http.ErrAbortHandler) // half an answer must not look like a whole one
			}
		}()
		next.ServeHTTP(out, r)
	})
}

func (s *Server) report(r *http.Request, rec *record, out *meter, took time.Duration) {
	level := slog.LevelInfo
	attributes := []slog.Attr{
		slog.String("method", r.Method), slog.String("route", rec.route), slog.Int("status", out.status),
		slog.Int64("bytes", out.bytes), slog.Duration("took", took), slog.String("client", clientAddress(r).String()),
	}
	if len(rec.ids) > 0 {
		attributes = append(attributes, slog.String("on", strings.Join(rec.ids, "/")))
	}
	if rec.user != "" {
		attributes = append(attributes, slog.String("user", rec.user))
	}
	if rec.replayed {
		attributes = append(attributes, slog.Bool("replayed", true))
	}
	if rec.route == "GET /healthz" || rec.route == "GET /readyz" {
		level = slog.LevelDebug
	}
	if rec.err != nil {
		f := fault.From(rec.err)
		attributes = append(attributes, slog.String("code", f.Code))
		if statusOf(f.Kind) >= 500 {
			attributes = append(attributes, slog.String("error", rec.err.Error()))
			level = slog.LevelWarn
			if f.Kind == fault.Internal {
				level = slog.LevelError
			}
		}
	}
	s.log.LogAttrs(r.Context(), level, "request", attributes...)
}

// meter counts an answer.
type meter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (m *meter) WriteHeader(status int) {
	if m.status == 0 {
		m.status = status
	}
	m.ResponseWriter.WriteHeader(status)
}

func (m *meter) Write(b []byte) (int, error) {
	if m.status == 0 {
		m.status = http.StatusOK
	}
	n, err := m.ResponseWriter.Write(b)
	m.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (m *meter) Unwrap() http.ResponseWriter { return m.ResponseWriter }
