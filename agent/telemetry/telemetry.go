// Package telemetry exports the agent's metrics, and a trace of each update, with OpenTelemetry's protocol
// (OTLP), if OpenTelemetry's environment variables say so.
//
// It promises that:
//   - nothing waits for a collector: what it does not take in time is dropped, and the log says so;
//   - a trace has no content of resources and no secret: types and names of resources, numbers, the ids
//     of nodes, and the reasons of NACKs as the log has them;
//   - without the variables it costs nothing but the size of the program.
//
// Metrics are those that the agent serves to Prometheus, under the same names. A Telemetry is made with
// New; Start starts its goroutines, and the function that Start returns ends them. Tracers may be used
// concurrently.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/holdfast-xds/holdfast/internal/redact"
)

// flushWithin is how long the end of the agent waits for the collector to take what is left.
const flushWithin = 3 * time.Second

// Telemetry exports metrics and traces. A nil Telemetry exports nothing.
type Telemetry struct {
	cfg      Config
	log      *slog.Logger
	failures atomic.Uint64
	traces   *trace.TracerProvider // nil if traces are not exported, and before Start
}

// New returns a Telemetry, or nil if nothing is to be exported. It does no I/O.
func New(cfg Config, log *slog.Logger) *Telemetry {
	if !cfg.Enabled() {
		return nil
	}
	return &Telemetry{cfg: cfg, log: log}
}

// Start begins to export; gatherer has the metrics. What cannot be started is logged. The returned function
// exports what is left, waits for the collector for 3 s at most, and returns when all goroutines have ended.
// Start is called once, before the first Tracer.
func (t *Telemetry) Start(ctx context.Context, gatherer prometheus.Gatherer) (stop func()) {
	if t == nil {
		return func() {}
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(t.failed))
	otel.SetLogger(logr.New(sink{t.log}))
	from, err := t.resource(ctx)
	if err != nil {
		t.failed(err) // a part of it is known
	}
	var ends []func(context.Context) error
	if t.cfg.Traces != "" {
		if exporter, err := t.traceExporter(ctx); err != nil {
			t.log.Warn("traces cannot be exported", "protocol", string(t.cfg.Traces), "err", redact.Error(err, t.cfg.secrets...))
		} else {
			t.traces = trace.NewTracerProvider(trace.WithBatcher(exporter, trace.WithMaxQueueSize(t.cfg.queue), trace.WithMaxExportBatchSize(t.cfg.batch)), trace.WithResource(from))
			ends = append(ends, t.traces.Shutdown)
		}
	}
	if t.cfg.Metrics != "" {
		if exporter, err := t.metricExporter(ctx); err != nil {
			t.log.Warn("metrics cannot be exported", "protocol", string(t.cfg.Metrics), "err", redact.Error(err, t.cfg.secrets...))
		} else {
			reader := metric.NewPeriodicReader(exporter, metric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(gatherer))))
			ends = append(ends, metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(from)).Shutdown)
		}
	}
	t.log.Info("telemetry exported", "traces", string(t.cfg.Traces), "metrics", string(t.cfg.Metrics))
	return func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushWithin)
		defer cancel()
		for _, end := range ends {
			if err := end(within); err != nil {
				t.failed(err)
			}
		}
	}
}

// resource describes the agent. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it.
func (t *Telemetry) resource(ctx context.Context) (*resource.Resource, error) {
	about := []attribute.KeyValue{attribute.String("service.name", "holdfast"), attribute.String("service.version", t.cfg.Version)}
	if t.cfg.Instance != "" {
		about = append(about, attribute.String("service.instance.id", t.cfg.Instance))
	}
	return resource.New(ctx, resource.WithAttributes(about...), resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
}

func (t *Telemetry) traceExporter(ctx context.Context) (trace.SpanExporter, error) {
	if t.cfg.Traces == GRPC {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

func (t *Telemetry) metricExporter(ctx context.Context) (metric.Exporter, error) {
	if t.cfg.Metrics == GRPC {
		return otlpmetricgrpc.New(ctx)
	}
	return otlpmetrichttp.New(ctx)
}

// failed logs an error of the SDK. A collector that is away makes one for each batch: the 1st, 2nd, 4th, …
// is a warning, the others are for debugging.
func (t *Telemetry) failed(err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	n, level := t.failures.Add(1), slog.LevelDebug
	if bits.OnesCount64(n) == 1 {
		level = slog.LevelWarn
	}
	t.log.Log(context.Background(), level, "telemetry not exported", "times", n, "err", redact.Error(err, t.cfg.secrets...),
		"todo", fmt.Sprintf("check the OTEL_EXPORTER_OTLP_… variables, and that the collector speaks %s", t.protocols()))
}

func (t *Telemetry) protocols() string {
	switch {
	case t.cfg.Traces == "", t.cfg.Traces == t.cfg.Metrics:
		return string(t.cfg.Metrics)
	case t.cfg.Metrics == "":
		return string(t.cfg.Traces)
	}
	return fmt.Sprintf("%s for traces and %s for metrics", t.cfg.Traces, t.cfg.Metrics)
}

// sink takes the log of the SDK. Only messages are passed on: what the SDK says beside them are values of variables.
type sink struct{ log *slog.Logger }

func (sink) Init(logr.RuntimeInfo)            {}
func (sink) Enabled(int) bool                 { return false }
func (sink) Info(int, string, ...any)         {}
func (s sink) WithValues(...any) logr.LogSink { return s }
func (s sink) WithName(string) logr.LogSink   { return s }

func (s sink) Error(_ error, what string, _ ...any) {
	s.log.Warn("OpenTelemetry cannot use one of its variables", "what", what)
}
