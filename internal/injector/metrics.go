package injector

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are those of one injector, with a registry of their own.
type metrics struct {
	registry     *prometheus.Registry
	reviews      *prometheus.CounterVec
	duration     prometheus.Histogram
	certExpiry   prometheus.Gauge
	caExpiry     prometheus.Gauge
	ready        prometheus.Gauge
	syncFailures prometheus.Counter
	repairs      prometheus.Counter
	settingsOK   prometheus.Gauge
}

func newMetrics(version string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_injector_reviews_total", Help: "Admission reviews by result: injected, already-injected, left-alone, skipped, rejected (created without sidecars), denied, invalid.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_injector_review_duration_seconds", Help: "Time to answer an admission review, from its first byte.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		certExpiry:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_injector_certificate_expiry_timestamp_seconds", Help: "When the serving certificate expires; 0 while there is none."}),
		caExpiry:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_injector_ca_expiry_timestamp_seconds", Help: "When the authority that signs expires; 0 while there is none."}),
		ready:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_injector_ready", Help: "1 if the API server can call this injector, else 0."}),
		syncFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_injector_sync_failures_total", Help: "How often the Secret or the webhook configuration could not be read or written."}),
		repairs:      prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_injector_ca_bundle_writes_total", Help: "How often the caBundle of the webhook configuration was written, because it differed."}),
		settingsOK:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_injector_settings_valid", Help: "1 if the file of --settings was valid when it was read last, else 0: pods are injected with the last valid one."}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_injector_build_info", Help: "1, with the version.", ConstLabels: prometheus.Labels{"version": version}})
	info.Set(1)
	for _, r := range results {
		m.reviews.WithLabelValues(r)
	}
	m.registry.MustRegister(m.reviews, m.duration, m.certExpiry, m.caExpiry, m.ready, m.syncFailures, m.repairs, m.settingsOK, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) reviewed(result string, took time.Duration) {
	m.reviews.WithLabelValues(result).Inc()
	m.duration.Observe(took.Seconds())
}
