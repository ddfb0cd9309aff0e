package telemetry

import (
	"strings"
	"testing"
)

// OpenTelemetry's specification, "Environment Variable Specification".
func TestTheEnvironmentSaysWhatIsExported(t *testing.T) {
	for _, tc := range []struct {
		environ         string
		traces, metrics Protocol
		warnings        string // a part of them
	}{
		{"", "", "", ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", HTTP, HTTP, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4318/v1/traces", HTTP, "", ""},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://c:4318/v1/metrics", "", HTTP, ""},
		{"OTEL_TRACES_EXPORTER=otlp", HTTP, "", ""},
		{"OTEL_METRICS_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "", GRPC, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317 OTEL_METRICS_EXPORTER=none OTEL_EXPORTER_OTLP_PROTOCOL=grpc", GRPC, "", ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317 OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", HTTP, GRPC, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_SDK_DISABLED=True", "", "", ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_EXPORTER_OTLP_PROTOCOL=http/json", HTTP, HTTP, `OTEL_EXPORTER_OTLP_PROTOCOL: "http/json" is not supported, so that http/protobuf is used`},
		{"OTEL_TRACES_EXPORTER=zipkin,otlp", HTTP, "", `OTEL_TRACES_EXPORTER: ["zipkin"] is not supported and has no effect; otlp and none are`},
		{"OTEL_TRACES_EXPORTER=console OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", "", HTTP, `["console"] is not supported`},
		{"OTEL_METRICS_EXPORTER=prometheus", "", "", "always serves its metrics to Prometheus"},
	} {
		t.Run(tc.environ, func(t *testing.T) {
			c, warnings := FromEnv(func(name string) string {
				for variable := range strings.FieldsSeq(tc.environ) {
					if value, ok := strings.CutPrefix(variable, name+"="); ok {
						return value
					}
				}
				return ""
			})
			if c.Traces != tc.traces || c.Metrics != tc.metrics || c.Enabled() != (tc.traces != "" || tc.metrics != "") {
				t.Errorf("traces %q, metrics %q", c.Traces, c.Metrics)
			}
			if got := strings.Join(warnings, "\n"); !strings.Contains(got, tc.warnings) || (got != "") != (tc.warnings != "") {
				t.Errorf("warnings %q", got)
			}
		})
	}
}
