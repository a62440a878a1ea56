package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

func TestSecretsAreNeverShown(t *testing.T) {
	const canary = "hunter2"
	s := telemetry.Secret(canary)
	type holder struct {
		S telemetry.Secret
		P *telemetry.Secret
	}
	h := holder{s, &s}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10.3s", "%T"} {
		fmt.Fprintf(&out, verb+"\n", s)
		fmt.Fprintf(&out, verb+"\n", h)
		fmt.Fprintf(&out, verb+"\n", []telemetry.Secret{s})
	}
	fmt.Fprintln(&out, s, fmt.Errorf("x %w %v", io.EOF, s), s.String(), s.GoString())
	for _, format := range []string{"text", "json"} {
		log := telemetry.NewLogger(&out, format, "debug")
		log.Info("m", slog.Any("s", s), slog.Any("h", h), slog.Any("p", &s), slog.Any("a", []telemetry.Secret{s}), slog.Group("g", slog.Any("s", s)))
	}
	b, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(b)
	for _, never := range []string{canary, "68756e74657232", "68756E74657232", "104 117", "[104"} {
		if strings.Contains(out.String(), never) {
			t.Errorf("%q is shown in\n%s", never, &out)
		}
	}
	if string(s) != canary {
		t.Error("its own text is gone")
	}
}

func TestLoggerAddsTheTraceID(t *testing.T) {
	shutdown, err := telemetry.Setup(t.Context(), "test", "v1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = shutdown(context.Background()) }()
	ctx, span := otel.Tracer("t").Start(t.Context(), "x")
	defer span.End()
	id := telemetry.TraceID(ctx)
	if len(id) != 32 || strings.Trim(id, "0") == "" {
		t.Fatalf("without an exporter there is no trace id: %q", id)
	}
	var out bytes.Buffer
	log := telemetry.NewLogger(&out, "json", "info").With("a", 1).WithGroup("g")
	log.InfoContext(ctx, "in")
	log.Info("out")
	log.DebugContext(ctx, "hidden")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], id) || strings.Contains(lines[1], "trace_id") {
		t.Fatalf("got %s", &out)
	}
	if telemetry.TraceID(t.Context()) != "" {
		t.Error("a trace id without a trace")
	}
}

// Nothing is exported or printed unless the operator asked; asked, traces and metrics arrive.
func TestExportOnlyWhereAsked(t *testing.T) {
	var traces, metrics atomic.Int32
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/traces":
			traces.Add(1)
		case "/v1/metrics":
			metrics.Add(1)
		}
	}))
	defer collector.Close()
	run := func() {
		shutdown, err := telemetry.Setup(t.Context(), "test", "v1", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		_, span := otel.Tracer("t").Start(t.Context(), "x")
		span.End()
		h, err := otel.Meter("t").Int64Counter("x")
		if err != nil {
			t.Fatal(err)
		}
		h.Add(t.Context(), 1)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := shutdown(ctx); err != nil {
			t.Error(err)
		}
	}
	stdout := os.Stdout
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout = w
	run()
	os.Stdout = stdout
	_ = w.Close()
	if b, _ := io.ReadAll(r); len(b) > 0 {
		t.Errorf("it printed %s", b)
	}
	if traces.Load()+metrics.Load() != 0 {
		t.Error("it exported unasked")
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	run()
	if traces.Load() == 0 || metrics.Load() == 0 {
		t.Errorf("%d traces and %d metrics arrived", traces.Load(), metrics.Load())
	}
	t.Setenv("OTEL_TRACES_EXPORTER", "nonsense")
	if _, err := telemetry.Setup(t.Context(), "test", "v1", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "OTEL_TRACES_EXPORTER") {
		t.Errorf("got %v", err)
	}
}
