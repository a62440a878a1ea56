package telemetry

import (
	"net/http"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Transport gives each request over next a client span, named for what system it goes to ("kubernetes"), and sends the
// trace along. The span holds method, host and path, never the query, a header or a body, and ends with the response's
// headers. It is made to measure for client-go's rest.Config.Wrap.
func Transport(system string, next http.RoundTripper) http.RoundTripper {
	return &transport{system, next, otel.Tracer("github.com/kubebyon/kubebyon/pkg/telemetry")}
}

type transport struct {
	system string
	next   http.RoundTripper
	tracer trace.Tracer
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, span := t.tracer.Start(req.Context(), t.system+" "+req.Method, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("http.request.method", req.Method), attribute.String("server.address", req.URL.Host),
			attribute.String("url.path", req.URL.Path)))
	defer span.End()
	req = req.Clone(ctx) // a RoundTripper must not change what it was given
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))
	res, err := t.next.RoundTrip(req)
	if err != nil {
		span.SetStatus(codes.Error, "no response")
		return nil, err
	}
	span.SetAttributes(attribute.Int("http.response.status_code", res.StatusCode))
	if res.StatusCode >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, res.Status)
	}
	return res, nil
}

// WrappedRoundTripper lets client-go find the transport beneath.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }
