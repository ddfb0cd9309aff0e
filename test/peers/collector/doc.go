// Package collector plays holdfast with the receiver of the OpenTelemetry Collector: what the agent exports with OTLP
// arrives there, over gRPC and over HTTP.
package collector
