// Package telemetry makes a process observable: logs that carry trace ids, and traces and metrics over OTLP where the
// operator asked for them. It must never log a secret, and never send anything anywhere unless OTEL_* says so.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// Setup installs the process's tracer and meter providers and its propagator. The exporters are those of the standard
// OTEL_* variables; they are read from the environment by the OpenTelemetry SDK itself. Where none names an exporter or
// an endpoint nothing is exported, but trace ids still exist for logs and error answers. Call it once in a process, from
// main; shutdown sends what is buffered and must be given a deadline.
func Setup(ctx context.Context, service, version string, log *slog.Logger) (shutdown func(context.Context) error, err error) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("telemetry cannot be exported", slog.String("error", err.Error()))
	}))
	otel.SetTextMapPropagator(propagation.TraceContext{})

	res, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version)),
		resource.WithFromEnv()) // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w; it accepts key=value pairs separated by commas", err)
	}

	// Without an exporter spans are not recorded, but they have ids.
	traces := []trace.TracerProviderOption{trace.WithResource(res), trace.WithSampler(trace.NeverSample())}
	if wanted("TRACES") {
		exporter, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return nil, fmt.Errorf("OTEL_TRACES_EXPORTER: %w", err)
		}
		if !autoexport.IsNoneSpanExporter(exporter) {
			// The sampler is then OTEL_TRACES_SAMPLER's.
			traces = []trace.TracerProviderOption{trace.WithResource(res), trace.WithBatcher(exporter)}
		}
	}
	tracers := trace.NewTracerProvider(traces...)
	otel.SetTracerProvider(tracers)
	stop := []func(context.Context) error{tracers.Shutdown}

	if wanted("METRICS") {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("OTEL_METRICS_EXPORTER: %w", err), tracers.Shutdown(ctx))
		}
		meters := metric.NewMeterProvider(metric.WithResource(res), metric.WithReader(reader))
		otel.SetMeterProvider(meters)
		stop = append(stop, meters.Shutdown)
	}
	return func(ctx context.Context) error {
		var errs []error
		for _, f := range stop {
			errs = append(errs, f(ctx))
		}
		return errors.Join(errs...)
	}, nil
}

// wanted reports whether the operator named an exporter or an endpoint for the signal. The SDK's own default would be
// OTLP to localhost, which fails noisily for everybody who runs no collector.
func wanted(signal string) bool {
	for _, name := range []string{
		"OTEL_" + signal + "_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT",
	} {
		if os.Getenv(name) != "" { //nolint:forbidigo // the SDK reads OTEL_* from the environment itself
			return true
		}
	}
	return false
}
