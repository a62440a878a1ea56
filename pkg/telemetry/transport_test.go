package telemetry_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

func TestTransport(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	defer otel.SetTracerProvider(before)
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("traceparent")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	ctx, root := provider.Tracer("t").Start(t.Context(), "root")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/v1/nodes?token=hunter2", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer hunter2")
	rt := telemetry.Transport("kubernetes", http.DefaultTransport)
	res, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if !strings.Contains(got, root.SpanContext().TraceID().String()) || strings.Contains(got, root.SpanContext().SpanID().String()) {
		t.Errorf("traceparent is %q", got)
	}
	if req.Header.Get("traceparent") != "" {
		t.Error("the caller's request was changed")
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := rt.RoundTrip(req.WithContext(cancelled)); err == nil {
		t.Error("a cancelled request succeeded")
	}
	ended := spans.Ended()
	if len(ended) != 2 || ended[0].Name() != "kubernetes GET" || ended[0].Parent().SpanID() != root.SpanContext().SpanID() {
		t.Fatalf("got %v", ended)
	}
	for _, s := range ended {
		if text := fmt.Sprint(s.Attributes(), s.Events(), s.Status()); strings.Contains(text, "hunter2") {
			t.Errorf("a span holds a secret: %s", text)
		}
	}
}
