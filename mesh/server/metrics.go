package server

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// Metrics are the metrics of the pushes. Their names are Istio's, so that its dashboards work.
type Metrics struct {
	downstream.NoObserver
	convergence, queueTime, debounceTime, pushTime       prometheus.Histogram
	xdsPushTime, generation                              *prometheus.HistogramVec
	triggers, rejects, pushes, classes, refused, patches *prometheus.CounterVec
	missing                                              prometheus.Counter
	proxies, services, maxProxies                        prometheus.Gauge
	behind, holdingBack, frozen                          func() float64 // set by New
}

// NewMetrics registers the metrics; with nil they are counted and nobody sees them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	buckets := []float64{.01, .05, .1, .25, .5, 1, 3, 5, 10, 20, 30}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	m := &Metrics{
		convergence:  histogram("pilot_proxy_convergence_time", "Seconds from a change until a proxy that it concerns has ACKed it."),
		queueTime:    histogram("pilot_proxy_queue_time", "Seconds that a proxy waited in the push queue."),
		debounceTime: histogram("pilot_debounce_time", "Seconds from the first of the changes that are pushed together until their push."),
		pushTime:     histogram("pilot_pushcontext_init_seconds", "Seconds that a snapshot took."),
		triggers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_push_triggers", Help: "Changes that requested a push, by reason.",
		}, []string{"type"}),
		rejects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_total_xds_rejects", Help: "Responses that proxies NACKed, by type.",
		}, []string{"type"}),
		proxies: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pilot_xds", Help: "Connected proxies."}),
		maxProxies: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_mesh_max_proxies", Help: "Proxies that may be connected, as --max-proxies says; 0 for any number.",
		}),
		services: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pilot_services", Help: "Services of all registries."}),
	}
	m.pushes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilot_xds_pushes", Help: "Responses sent to proxies, by type."}, []string{"type"})
	m.xdsPushTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pilot_xds_push_time", Help: "Seconds that a response took until it was handed to the transport.", Buckets: buckets,
	}, []string{"type"})
	m.generation = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "holdfast_mesh_generation_seconds", Help: "Seconds that the configuration of a class of proxies took, by part: clusters, listeners, routes, inbound.", Buckets: buckets,
	}, []string{"part"})
	m.classes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_mesh_class_lookups_total", Help: "Requests for the configuration of a class of proxies: hit if it was there, miss if it was generated.",
	}, []string{"part", "result"})
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_mesh_clients_refused_total", Help: "Clients that were not served, by gRPC code: they do not prove who they are, are somebody else, or are more than --max-proxies.",
	}, []string{"code"})
	m.patches = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_mesh_envoyfilter_failures_total", Help: "Patches of EnvoyFilters that were left out of a resource that was generated, by type: they could not be applied, or broke a rule of Envoy.",
	}, []string{"type"})
	m.missing = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "holdfast_mesh_secrets_withheld_total", Help: "Secrets that proxies asked for and did not get: there is none, nothing of the proxy names it, or the proxy has not authenticated.",
	})
	if registry != nil {
		registry.MustRegister(m.patches, m.refused, m.missing, m.convergence, m.queueTime, m.debounceTime, m.pushTime, m.triggers, m.rejects, m.proxies, m.maxProxies, m.services,
			m.pushes, m.xdsPushTime, m.generation, m.classes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "holdfast_mesh_proxies_behind", Help: "Connected proxies that have not answered a change yet.",
			}, func() float64 { return m.behind() }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "holdfast_mesh_proxies_holding_back", Help: "Connected proxies whose agent holds back what this server removed or emptied, because that looks like an accident.",
			}, func() float64 { return m.holdingBack() }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "holdfast_mesh_proxies_frozen", Help: "Connected proxies of which an operator has frozen or rolled back something in the agent, so that they do not get what this server sends.",
			}, func() float64 { return m.frozen() }))
	}
	return m
}

// Pushed counts a response: Metrics is a downstream.Observer.
func (m *Metrics) Pushed(typeURL, _ string, _ int, took time.Duration) {
	label := strings.ToLower(xds.Short(typeURL))
	m.pushes.WithLabelValues(label).Inc()
	m.xdsPushTime.WithLabelValues(label).Observe(took.Seconds())
}

// looked counts a lookup of the configuration of a class, which took a time to generate; 0 for none.
func (m *Metrics) looked(part string, generated time.Duration) {
	if generated == 0 {
		m.classes.WithLabelValues(part, "hit").Inc()
		return
	}
	m.classes.WithLabelValues(part, "miss").Inc()
	m.generation.WithLabelValues(part).Observe(generated.Seconds())
}

func (m *Metrics) converged(d time.Duration) { m.convergence.Observe(d.Seconds()) }
func (m *Metrics) queued(d time.Duration)    { m.queueTime.Observe(d.Seconds()) }
func (m *Metrics) debounced(d time.Duration) { m.debounceTime.Observe(d.Seconds()) }
func (m *Metrics) connected(n int)           { m.proxies.Set(float64(n)) }
func (m *Metrics) rejected(typeURL string)   { m.rejects.WithLabelValues(xds.Short(typeURL)).Inc() }

func (m *Metrics) patchFailed(t string) { m.patches.WithLabelValues(xds.Short(t)).Inc() }

func (m *Metrics) snapshot(d time.Duration, services int) {
	m.pushTime.Observe(d.Seconds())
	m.services.Set(float64(services))
}

func (m *Metrics) triggered(r *push.Request) {
	for reason, n := range r.Reasons {
		m.triggers.WithLabelValues(string(reason)).Add(float64(n))
	}
}
