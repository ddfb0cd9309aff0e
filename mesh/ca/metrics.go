package ca

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of the authority. Their names are Istio's where it has them.
type Metrics struct {
	requests, issued, malformed, unauthenticated prometheus.Counter
	refused                                      *prometheus.CounterVec
	rootExpiry, chainExpiry                      prometheus.Gauge
}

// NewMetrics registers the metrics; with nil they are counted and nobody sees them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		requests:        counter("citadel_server_csr_count", "Requests for a certificate."),
		issued:          counter("citadel_server_success_cert_issuance_count", "Certificates issued."),
		malformed:       counter("citadel_server_csr_parsing_err_count", "Certificate requests that are malformed, or not for their client."),
		unauthenticated: counter("citadel_server_authentication_failure_count", "Requests whose client proves no identity."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_mesh_certificates_refused_total", Help: "Requests that got no certificate, by gRPC code.",
		}, []string{"code"}),
		rootExpiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "citadel_server_root_cert_expiry_timestamp", Help: "When the first root of the authority expires, in seconds since 1970.",
		}),
		chainExpiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "citadel_server_cert_chain_expiry_timestamp", Help: "When the first of the authority's own certificates expires, in seconds since 1970.",
		}),
	}
	if registry != nil {
		registry.MustRegister(m.requests, m.issued, m.malformed, m.unauthenticated, m.refused, m.rootExpiry, m.chainExpiry)
	}
	return m
}
