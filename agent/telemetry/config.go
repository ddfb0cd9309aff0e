package telemetry

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/sdk/trace"
)

// Config says what is exported, and to whom. The zero value exports nothing.
type Config struct {
	// Traces and Metrics are the protocols with which they are exported; "" for not.
	Traces, Metrics Protocol
	// Version is that of holdfast, Instance what tells this agent from others: the id of its node.
	Version, Instance string

	// queue and batch are numbers of spans; secrets are not logged.
	queue, batch int
	secrets      [][]byte
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
// The other variables (headers, certificates, timeouts, sampler, delays, resource) are read by the SDK. What
// it would panic about, or replace by another collector, is checked here.
func FromEnv(getenv func(string) string) (c Config, warnings []string) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return c, nil
	}
	for _, signal := range []struct {
		name string
		to   *Protocol
	}{{"TRACES", &c.Traces}, {"METRICS", &c.Metrics}} {
		exported, warning := isExported(signal.name, getenv)
		warn(&warnings, warning)
		if !exported {
			continue
		}
		if warning = checkEndpoint(signal.name, getenv); warning != "" {
			warn(&warnings, warning)
			continue
		}
		*signal.to, warning = protocol(signal.name, getenv)
		warn(&warnings, warning)
		for _, variable := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_" + signal.name + "_HEADERS"} {
			secrets, warning := headerValues(variable, getenv(variable))
			c.secrets = append(c.secrets, secrets...)
			if !slices.Contains(warnings, warning) {
				warn(&warnings, warning)
			}
		}
	}
	if c.Traces != "" {
		var warning string
		c.queue, warning = size("OTEL_BSP_MAX_QUEUE_SIZE", trace.DefaultMaxQueueSize, getenv)
		warn(&warnings, warning)
		c.batch, warning = size("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", trace.DefaultMaxExportBatchSize, getenv)
		warn(&warnings, warning)
		c.batch = min(c.batch, c.queue)
	}
	return c, warnings
}

func warn(warnings *[]string, warning string) {
	if warning != "" {
		*warnings = append(*warnings, warning)
	}
}

// exporterVariable returns the variable of the exporter that holds for a signal, its own or that of all signals, and its
// value; "" if neither is set.
func exporterVariable(signal, what string, getenv func(string) string) (variable, value string) {
	variable = "OTEL_EXPORTER_OTLP_" + signal + "_" + what
	if value = getenv(variable); value == "" {
		variable = "OTEL_EXPORTER_OTLP_" + what
		value = getenv(variable)
	}
	return variable, value
}

// checkEndpoint returns what is wrong with the endpoint of a signal, without its value, which may have a password;
// "" for nothing. The SDK would export to localhost instead.
func checkEndpoint(signal string, getenv func(string) string) (warning string) {
	variable, value := exporterVariable(signal, "ENDPOINT", getenv)
	if value == "" {
		return ""
	}
	if u, err := url.Parse(value); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return variable + ": want a URL such as http://collector:4318, also for gRPC: " + strings.ToLower(signal) + " are not exported"
	}
	return ""
}

// headerValues returns the values of headers, and what is wrong with them, without a value. Each value is there as it is
// written and as it is sent.
func headerValues(variable, headers string) (values [][]byte, warning string) {
	for pair := range strings.SplitSeq(headers, ",") {
		_, value, ok := strings.Cut(pair, "=")
		if !ok && strings.TrimSpace(pair) != "" {
			warning = variable + ": want KEY=VALUE pairs with commas between them; a pair has no ="
			value = pair
		}
		for _, secret := range append(strings.Fields(value), strings.TrimSpace(value)) { // "Bearer TOKEN": each alone, too
			if decoded, err := url.PathUnescape(secret); err == nil && decoded != secret {
				values = append(values, []byte(decoded))
			}
			values = append(values, []byte(secret))
		}
	}
	return values, warning
}

// maxSpans is the most that the SDK's queue may have.
const maxSpans = 1 << 20

func size(variable string, otherwise int, getenv func(string) string) (n int, warning string) {
	value := getenv(variable)
	if value == "" {
		return otherwise, ""
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > maxSpans {
		return otherwise, fmt.Sprintf("%s: %q: want a number from 1 to %d; %d is used", variable, value, maxSpans, otherwise)
	}
	return n, ""
}

func isExported(signal string, getenv func(string) string) (yes bool, warning string) {
	variable := "OTEL_" + signal + "_EXPORTER"
	value := getenv(variable)
	if value == "" {
		_, endpoint := exporterVariable(signal, "ENDPOINT", getenv)
		return endpoint != "", ""
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
	variable, value := exporterVariable(signal, "PROTOCOL", getenv)
	switch p := Protocol(cmp.Or(value, string(HTTP))); p {
	case GRPC, HTTP:
		return p, ""
	default:
		return HTTP, fmt.Sprintf("%s: %q is not supported, so that %s is used; %s and %s are", variable, value, HTTP, GRPC, HTTP)
	}
}
