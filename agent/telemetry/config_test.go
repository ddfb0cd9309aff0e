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
		{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317 OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "", "", "OTEL_EXPORTER_OTLP_ENDPOINT: want a URL such as http://collector:4318, also for gRPC: traces are not exported"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://user:LEAK/PASS%zz@c:1 OTEL_METRICS_EXPORTER=otlp", "", HTTP, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: want a URL"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_HEADERS=authorization:LEAK", HTTP, "", "OTEL_EXPORTER_OTLP_HEADERS: want KEY=VALUE pairs"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_BSP_MAX_QUEUE_SIZE=-1", HTTP, "", `OTEL_BSP_MAX_QUEUE_SIZE: "-1": want a number from 1 to 1048576; 2048 is used`},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_BSP_MAX_QUEUE_SIZE=99999999999", HTTP, "", "2048 is used"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_BSP_MAX_EXPORT_BATCH_SIZE=many", HTTP, "", "512 is used"},
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
			if c.Traces != "" && (c.queue < 1 || c.batch < 1 || c.batch > c.queue) {
				t.Errorf("a queue of %d, batches of %d", c.queue, c.batch)
			}
			if strings.Contains(strings.Join(warnings, "\n"), "LEAK") {
				t.Errorf("a warning has a secret: %q", warnings)
			}
			if got := strings.Join(warnings, "\n"); !strings.Contains(got, tc.warnings) || (got != "") != (tc.warnings != "") {
				t.Errorf("warnings %q", got)
			}
		})
	}
}
