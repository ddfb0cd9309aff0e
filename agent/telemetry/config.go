package telemetry

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Config says what is exported, and to whom. The zero value exports nothing.
type Config struct {
	// Traces and Metrics are the protocols with which they are exported; "" for not.
	Traces, Metrics Protocol
	// Version is that of holdfast, Instance what tells this agent from others: the id of its node.
	Version, Instance string
}

// Protocol is one of OTLP's.
type Protocol string

// The protocols that are supported.
const (
	GRPC Protocol = "grpc"
	HTTP Protocol = "http/protobuf"
)

// Enabled reports whether anything is exported.
func (c Config) Enabled() bool { return c.Traces != "" || c.Metrics != "" }

// FromEnv reads the environment variables by which OpenTelemetry's specification ("Environment Variable
// Specification") selects exporters. A signal is exported if OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER
// says "otlp", or if it is not set and there is an endpoint. As the specification demands, a value that is
// not supported harms nothing: it is reported as a warning, for the log.
//
// The other variables (endpoints, headers, certificates, timeouts, sampler, batches, interval, resource)
// are read by the SDK.
func FromEnv(getenv func(string) string) (c Config, warnings []string) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return c, nil
	}
	for _, signal := range []struct {
		name string
		to   *Protocol
	}{{"TRACES", &c.Traces}, {"METRICS", &c.Metrics}} {
		exported, warning := isExported(signal.name, getenv)
		if warning != "" {
			warnings = append(warnings, warning)
		}
		if !exported {
			continue
		}
		*signal.to, warning = protocol(signal.name, getenv)
		if warning != "" {
			warnings = append(warnings, warning)
		}
	}
	return c, warnings
}

func isExported(signal string, getenv func(string) string) (yes bool, warning string) {
	variable := "OTEL_" + signal + "_EXPORTER"
	value := getenv(variable)
	if value == "" {
		return getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != "", ""
	}
	var others []string
	for name := range strings.SplitSeq(value, ",") {
		switch name = strings.TrimSpace(name); name {
		case "otlp":
			yes = true
		case "none", "":
		default:
			others = append(others, name)
		}
	}
	switch {
	case len(others) == 0:
	case signal == "METRICS" && slices.Equal(others, []string{"prometheus"}):
		warning = variable + `: "prometheus" has no effect, because the agent always serves its metrics to Prometheus, on --health and --admin`
	default:
		warning = fmt.Sprintf("%s: %q is not supported and has no effect; otlp and none are", variable, others)
	}
	return yes, warning
}

func protocol(signal string, getenv func(string) string) (p Protocol, warning string) {
	variable := "OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL"
	value := getenv(variable)
	if value == "" {
		variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
		value = getenv(variable)
	}
	switch p := Protocol(cmp.Or(value, string(HTTP))); p {
	case GRPC, HTTP:
		return p, ""
	default:
		return HTTP, fmt.Sprintf("%s: %q is not supported, so that %s is used; %s and %s are", variable, value, HTTP, GRPC, HTTP)
	}
}
