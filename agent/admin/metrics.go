package admin

import (
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/agent/probe"
	"github.com/holdfast-xds/holdfast/agent/shadow"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// maxOtherTypes bounds the label "type": clients may name any type URL.
const maxOtherTypes = 32

// The native histograms: the factor between two buckets, the most of them, and after which time a histogram that has more
// may begin anew. Scrapers that do not know them get the classic buckets.
const (
	nativeFactor  = 1.1
	nativeBuckets = 100
	nativeReset   = time.Hour
)

// Metrics counts the events of one agent; it uses no global registry.
type Metrics struct {
	registry *prometheus.Registry

	// Of clients.
	streams                                                 *prometheus.GaugeVec
	streamsOpened, pushes, pushed, answers, refused, passed *prometheus.CounterVec
	peersRefused                                            prometheus.Counter
	connections                                             prometheus.Gauge
	// Of upstreams.
	responses, received, upstreamAnswers, attempts, connects, failures, reasons *prometheus.CounterVec
	latency, took                                                               *prometheus.HistogramVec
	certificateEnd                                                              prometheus.Gauge
	// Of the agent.
	// Those of gRPC A78, and the servers that are unhealthy in its sense.
	grpcConnected                        *prometheus.GaugeVec
	grpcFailures, grpcValid, grpcInvalid *prometheus.CounterVec
	unhealthy                            map[string]bool
	takeovers, mergedScrapes             *prometheus.CounterVec
	rehearsed, rehearsalLosses           *prometheus.GaugeVec
	fallbacks                            prometheus.Counter

	mu     sync.Mutex
	labels map[string]string   // by type URL; without those whose label is "other"
	others map[string]struct{} // labels beyond the known types
	// To find a counter by its labels takes longer than to count, and each update counts ten times.
	upstreamTypes map[[2]string]*upstreamType // by upstream and label
	clientTypes   map[[2]string]*clientType   // by label and form
}

// upstreamType has the counters of one type of one upstream.
type upstreamType struct {
	responses, resources, acks, nacks, valid, invalid prometheus.Counter
	last                                              time.Time // of the last response
}

// clientType has the counters of one type in one form.
type clientType struct {
	pushes, resources, acks, nacks prometheus.Counter
}

// NewMetrics returns metrics whose counters are zero. version is that of the program.
func NewMetrics(version string) *Metrics {
	registry := prometheus.NewRegistry()
	auto := promauto.With(registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		registry:        registry,
		streams:         auto.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_streams", Help: "Open streams of clients."}, []string{"form"}),
		streamsOpened:   counter("holdfast_streams_opened_total", "Streams that clients opened.", "form"),
		pushes:          counter("holdfast_pushes_total", "Responses sent to clients.", "type", "form"),
		pushed:          counter("holdfast_pushed_resources_total", "Resources and removals in responses sent to clients.", "type", "form"),
		answers:         counter("holdfast_answers_total", "Answers of clients to responses; result is ack or nack.", "type", "form", "result"),
		refused:         counter("holdfast_refused_total", "Streams, requests or parts of requests of clients that exceeded a limit.", "limit"),
		passed:          counter("holdfast_pass_through_calls_total", "Calls of other services, when they ended; result is ok, error, or refused for a service that is not passed through.", "service", "result"),
		responses:       counter("holdfast_upstream_responses_total", "Responses received from an upstream.", "upstream", "type"),
		received:        counter("holdfast_upstream_resources_total", "Resources in responses received from an upstream.", "upstream", "type"),
		upstreamAnswers: counter("holdfast_upstream_answers_total", "Answers sent to an upstream; result is ack or nack.", "upstream", "type", "result"),
		attempts:        counter("holdfast_upstream_attempts_total", "Attempts to open a stream to an upstream, second streams included.", "upstream"),
		connects:        counter("holdfast_upstream_connects_total", "Attempts that were answered, so that the upstream came into use.", "upstream"),
		failures:        counter("holdfast_upstream_failures_total", "Attempts that failed or were not answered in time, and streams that ended.", "upstream"),
		reasons:         counter("holdfast_upstream_failure_reasons_total", "The failures of holdfast_upstream_failures_total by reason: name, unreachable, tls, denied, lost, silent or other.", "upstream", "reason"),
		took: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_upstream_attempt_duration_seconds",
			Help:    "Time from the beginning of an attempt until its first answer, or until it failed without one; result is answered or failed.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30}, NativeHistogramBucketFactor: nativeFactor,
			NativeHistogramMaxBucketNumber: nativeBuckets, NativeHistogramMinResetDuration: nativeReset,
		}, []string{"upstream", "result"}),
		grpcConnected: auto.NewGaugeVec(prometheus.GaugeOpts{Name: "grpc_xds_client_connected", Help: "Whether the client has a working ADS stream to the server, 1 or 0 (gRPC A78)."}, []string{"grpc_target", "grpc_xds_server"}),
		grpcFailures:  counter("grpc_xds_client_server_failure_total", "Servers that went from healthy to unhealthy (gRPC A78).", "grpc_target", "grpc_xds_server"),
		grpcValid:     counter("grpc_xds_client_resource_updates_valid_total", "Resources received that were considered valid, also if they had not changed (gRPC A78).", "grpc_target", "grpc_xds_server", "grpc_xds_resource_type"),
		grpcInvalid:   counter("grpc_xds_client_resource_updates_invalid_total", "Resources received that were considered invalid (gRPC A78).", "grpc_target", "grpc_xds_server", "grpc_xds_resource_type"),
		unhealthy:     make(map[string]bool),
		takeovers:     counter("holdfast_takeovers_total", "Other agents that began to take over from this one; result is done or failed.", "result"),
		mergedScrapes: counter("holdfast_merged_scrapes_total", "Parts of scrapes of /stats/prometheus, by part and result (--istio).", "part", "result"),
		latency: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_push_latency_seconds",
			Help:    "Time from a response of an upstream until the last client that it concerned has answered, and what was ACKed is on disk; --ack-timeout does not shorten it.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30}, NativeHistogramBucketFactor: nativeFactor,
			NativeHistogramMaxBucketNumber: nativeBuckets, NativeHistogramMinResetDuration: nativeReset,
		}, []string{"type"}),
		rehearsed: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_rehearsal_timestamp_seconds",
			Help: "When the last rehearsal began, in seconds since 1970, by kind: known (holdfast rehearse), live or proof. Absent before the first.",
		}, []string{"kind"}),
		rehearsalLosses: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_rehearsal_losses", Help: "What the last rehearsal found missing or lost, by kind. Absent before the first.",
		}, []string{"kind"}),
		fallbacks:   counter("holdfast_fallbacks_total", "How often resources began to be held back because Envoy crashed with them.").WithLabelValues(),
		connections: auto.NewGauge(prometheus.GaugeOpts{Name: "holdfast_connections", Help: "Open connections of clients, over gRPC and REST."}),
		certificateEnd: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_upstream_certificate_expiry_timestamp_seconds",
			Help: "When the certificate of --upstream-cert that the last attempt used expires, in seconds since 1970; absent before the first.",
		}),
		labels:        make(map[string]string),
		others:        make(map[string]struct{}),
		upstreamTypes: make(map[[2]string]*upstreamType),
		clientTypes:   make(map[[2]string]*clientType),
		peersRefused:  counter("holdfast_socket_refused_total", "Connections to the socket that were rejected because of the user and groups of the client.").WithLabelValues(),
	}
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_build_info", Help: "Constant 1; the labels name the version.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	}, func() float64 { return 1 })
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, form := range []string{"delta", "sotw"} { // there from the start: a rate needs a first value
		m.streams.WithLabelValues(form)
		m.streamsOpened.WithLabelValues(form)
	}
	m.takeovers.WithLabelValues("done")
	m.takeovers.WithLabelValues("failed")
	for _, url := range xds.Types() {
		for _, form := range []string{"delta", "sotw"} {
			both(m.answers, xds.Short(url), form)
		}
	}
	for _, limit := range downstream.LimitNames() {
		m.refused.WithLabelValues(limit)
	}
	return m
}

// Register adds metrics that count themselves.
func (m *Metrics) Register(more prometheus.Collector) { m.registry.MustRegister(more) }

// TakeLocks takes and releases the lock, for a watchdog.
func (m *Metrics) TakeLocks() { watchdog.Lock(&m.mu) }

// TakenOver counts an agent that began to take over from this one, and whether it succeeded.
func (m *Metrics) TakenOver(done bool) {
	result := "failed"
	if done {
		result = "done"
	}
	m.takeovers.WithLabelValues(result).Inc()
}

// Merges creates the counters of the parts of merged scrapes.
func (m *Metrics) Merges(parts, results []string) {
	for _, part := range parts {
		for _, result := range results {
			m.mergedScrapes.WithLabelValues(part, result)
		}
	}
}

// Merged counts one part of a merged scrape.
func (m *Metrics) Merged(part, result string) { m.mergedScrapes.WithLabelValues(part, result).Inc() }

// The kinds of rehearsals.
const (
	KnownKind = "known"
	LiveKind  = "live"
	ProofKind = "proof"
)

// Rehearsed records the last rehearsal of a kind.
func (m *Metrics) Rehearsed(kind string, at time.Time, losses int) {
	m.rehearsed.WithLabelValues(kind).Set(seconds(at))
	m.rehearsalLosses.WithLabelValues(kind).Set(float64(losses))
}

// FellBack counts a fallback, Connections records how many connections clients have.
func (m *Metrics) FellBack()         { m.fallbacks.Inc() }
func (m *Metrics) Connections(n int) { m.connections.Set(float64(n)) }

// Latency records the time from a response of an upstream until the last client that it concerned
// has answered.
func (m *Metrics) Latency(typeURL string, took time.Duration) {
	m.latency.WithLabelValues(m.label(typeURL)).Observe(took.Seconds())
}

// UpstreamCertificate records when the agent's client certificate expires.
func (m *Metrics) UpstreamCertificate(end time.Time) {
	m.certificateEnd.Set(seconds(end))
	_ = m.registry.Register(m.certificateEnd) // the second time it is there
}

// label returns the value of the label "type" for a type URL: the short name, or "other" after
// maxOtherTypes unknown types.
func (m *Metrics) label(typeURL string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.labelOf(typeURL)
}

// labelOf is label, called under mu.
func (m *Metrics) labelOf(typeURL string) string {
	if label, known := m.labels[typeURL]; known {
		return label
	}
	label := xds.Short(typeURL)
	url, known := xds.TypeByShort(label)
	if known && url != typeURL {
		label, known = typeURL, false // an unknown type with the short name of a known one
	}
	if _, seen := m.others[label]; !known && !seen {
		if len(m.others) >= maxOtherTypes {
			return "other"
		}
		m.others[label] = struct{}{}
	}
	m.labels[typeURL] = label
	return label
}

// ofUpstream returns the counters of a type of an upstream. Called under mu.
func (m *Metrics) ofUpstream(source, typeURL string) *upstreamType {
	label := m.labelOf(typeURL)
	key := [2]string{source, label}
	t := m.upstreamTypes[key]
	if t == nil {
		message := label // an unknown type, or "other"
		if url, known := xds.TypeByShort(label); known {
			message = url
		}
		message = messageName(message)
		t = &upstreamType{
			responses: m.responses.WithLabelValues(source, label), resources: m.received.WithLabelValues(source, label),
			acks: m.upstreamAnswers.WithLabelValues(source, label, ack), nacks: m.upstreamAnswers.WithLabelValues(source, label, nack),
			valid: m.grpcValid.WithLabelValues(grpcTarget, source, message), invalid: m.grpcInvalid.WithLabelValues(grpcTarget, source, message),
		}
		m.upstreamTypes[key] = t
	}
	return t
}

// ofClients returns the counters of a type in a form. Called under mu.
func (m *Metrics) ofClients(typeURL, form string) *clientType {
	label := m.labelOf(typeURL)
	key := [2]string{label, form}
	t := m.clientTypes[key]
	if t == nil {
		t = &clientType{pushes: m.pushes.WithLabelValues(label, form), resources: m.pushed.WithLabelValues(label, form)}
		if form != downstream.Fetched { // which is not answered
			t.acks, t.nacks = m.answers.WithLabelValues(label, form, ack), m.answers.WithLabelValues(label, form, nack)
		}
		m.clientTypes[key] = t
	}
	return t
}

// The values of the label "result" of an answer.
const (
	ack  = "ack"
	nack = "nack"
)

// both creates the counters of the ACKs and of the NACKs.
func both(answers *prometheus.CounterVec, a, b string) {
	answers.WithLabelValues(a, b, ack)
	answers.WithLabelValues(a, b, nack)
}

// UpstreamMetrics is the observer of the sources: it counts the events between them and control planes.
type UpstreamMetrics struct{ m *Metrics }

// Upstream returns the observer of the sources.
func (m *Metrics) Upstream() UpstreamMetrics { return UpstreamMetrics{m} }

// Known creates the counters of an upstream, because a rate needs a first value.
func (u UpstreamMetrics) Known(source string) {
	u.m.attempts.WithLabelValues(source)
	u.m.connects.WithLabelValues(source)
	u.m.failures.WithLabelValues(source)
	for _, reason := range upstream.Reasons() {
		u.m.reasons.WithLabelValues(source, reason)
	}
	for _, answered := range []bool{false, true} {
		u.m.took.WithLabelValues(source, outcome(answered))
	}
	u.m.grpcFailures.WithLabelValues(grpcTarget, source)
	u.m.grpcConnected.WithLabelValues(grpcTarget, source)
	for _, url := range xds.Types() {
		both(u.m.upstreamAnswers, source, xds.Short(url))
		u.m.grpcValid.WithLabelValues(grpcTarget, source, messageName(url))
		u.m.grpcInvalid.WithLabelValues(grpcTarget, source, messageName(url))
	}
}

// grpcTarget is the label grpc.target: no channel is the target of the agent's stream.
const grpcTarget = "#holdfast"

// messageName returns the label grpc.xds.resource_type of a type URL.
func messageName(typeURL string) string { return typeURL[strings.LastIndex(typeURL, "/")+1:] }

// Attempted counts an attempt. As in gRPC A78, a server counts as connected from the first one on, until one fails
// without an answer, and then from the next answer on.
func (u UpstreamMetrics) Attempted(source string) {
	u.m.attempts.WithLabelValues(source).Inc()
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	u.m.grpcConnected.WithLabelValues(grpcTarget, source).Set(number(!u.m.unhealthy[source]))
}

// Connected counts an attempt that was answered, Failed one that was not.
func (u UpstreamMetrics) Connected(source string) { u.m.connects.WithLabelValues(source).Inc() }

func (u UpstreamMetrics) Failed(source, reason string) {
	u.m.failures.WithLabelValues(source).Inc()
	u.m.reasons.WithLabelValues(source, reason).Inc()
}

// Took records how long an attempt took.
func (u UpstreamMetrics) Took(source string, answered bool, d time.Duration) {
	u.m.took.WithLabelValues(source, outcome(answered)).Observe(d.Seconds())
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	if !answered && !u.m.unhealthy[source] {
		u.m.grpcFailures.WithLabelValues(grpcTarget, source).Inc()
	}
	u.m.unhealthy[source] = !answered
	u.m.grpcConnected.WithLabelValues(grpcTarget, source).Set(number(answered))
}

func outcome(answered bool) string {
	if answered {
		return "answered"
	}
	return "failed"
}

func (u UpstreamMetrics) Received(source, typeURL string, valid, invalid int) {
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	t := u.m.ofUpstream(source, typeURL)
	t.last = time.Now()
	t.responses.Inc()
	t.resources.Add(float64(valid))
	t.valid.Add(float64(valid))
	t.invalid.Add(float64(invalid))
}

func (u UpstreamMetrics) Answered(source, typeURL string, nack bool) {
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	if t := u.m.ofUpstream(source, typeURL); nack {
		t.nacks.Inc()
	} else {
		t.acks.Inc()
	}
}

// DownstreamMetrics is the observer of the server: it counts the events between it and its clients. The
// form of a stream is "delta" or "sotw".
type DownstreamMetrics struct{ m *Metrics }

// Downstream returns the observer of the server.
func (m *Metrics) Downstream() DownstreamMetrics { return DownstreamMetrics{m} }

func (d DownstreamMetrics) StreamOpened(form string) {
	d.m.streams.WithLabelValues(form).Inc()
	d.m.streamsOpened.WithLabelValues(form).Inc()
}

func (d DownstreamMetrics) Pushed(typeURL, form string, resources int, _ time.Duration) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	t := d.m.ofClients(typeURL, form)
	t.pushes.Inc()
	t.resources.Add(float64(resources))
}

func (d DownstreamMetrics) Answered(typeURL, form string, nack bool) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if t := d.m.ofClients(typeURL, form); nack {
		t.nacks.Inc()
	} else {
		t.acks.Inc()
	}
}

func (d DownstreamMetrics) PassedThrough(service, result string) {
	d.m.passed.WithLabelValues(service, result).Inc()
}

// PassThrough creates the counters of the services that are passed through.
func (d DownstreamMetrics) PassThrough(services []string) {
	for _, service := range services {
		d.m.passed.WithLabelValues(service, downstream.PassedOK)
		d.m.passed.WithLabelValues(service, downstream.PassedError)
	}
}

func (d DownstreamMetrics) StreamClosed(form string)   { d.m.streams.WithLabelValues(form).Dec() }
func (d DownstreamMetrics) LimitExceeded(limit string) { d.m.refused.WithLabelValues(limit).Inc() }
func (d DownstreamMetrics) PeerRejected()              { d.m.peersRefused.Inc() }

// Gatherer gathers the counters and, at each scrape, the metrics of the state.
func (m *Metrics) Gatherer(state State) prometheus.Gatherer {
	live := prometheus.NewRegistry()
	live.MustRegister(&stateCollector{metrics: m, state: state})
	return prometheus.Gatherers{m.registry, live}
}

// stateDescs describe the metrics that are read from the state at each scrape, by name. A counter has a
// name that ends in _total.
var stateDescs = func() map[string]*prometheus.Desc {
	descs := make(map[string]*prometheus.Desc)
	for _, m := range []struct{ name, labels, help string }{
		{"holdfast_resources", "type standing",
			"Resources in the cache, by the answer of clients to their newest version."},
		{"holdfast_subscriptions", "type", "Names that clients subscribe to; the wildcard counts as one."},
		{"holdfast_upstream_connected", "upstream", "Whether a stream to the upstream is open, 1 or 0."},
		{"holdfast_upstream_stale", "upstream",
			"Whether the upstream is in use and has sent nothing for --stale-after, 1 or 0."},
		{"holdfast_resource_errors", "type",
			"Names for which an upstream reported an error, did not answer, or sent an unusable resource."},
		{"holdfast_ready", "condition", "Whether a condition of readiness holds, 1 or 0."},
		{"holdfast_upstream_last_message_timestamp_seconds", "upstream type",
			"When the last response was received from an upstream, in seconds since 1970."},
		{"holdfast_withheld_removals", "type", "Removals that are held back because they look like an accident."},
		{"holdfast_expired_resources_total", "type", "Resources whose TTL expired."},
		{"holdfast_groups", "", "Client groups, each with its own resources and upstream subscription."},
		{"holdfast_upstream_active", "upstream", "Whether a group takes its resources from the upstream, 1 or 0."},
		{"holdfast_state_write_errors_total", "", "Failed writes of the last known good; they are retried."},
		{"holdfast_state_not_stored", "reason",
			"Resources that would be missing after a restart now without the control plane, by reason."},
		{"holdfast_last_contact_age_seconds", "",
			"Time since an upstream last answered, which is how stale the served configuration may be. The largest value of all groups; for a group that never had contact, the time since it was created. Absent without groups."},
		{"holdfast_restored_resources", "",
			"Resources that were read from disk and that no upstream has mentioned since."},
		{"holdfast_fallen_back", "", "1 while resources are held back because Envoy crashed with them, 0 otherwise."},
		{"holdfast_events_total", "", "Events that were recorded (holdfast events)."},
		{"holdfast_events_lost_total", "", "Events that are missing on disk, because it was full or failed."},
		{"holdfast_resource_bytes", "", "Size of the resources in the cache, in their newest versions."},
		{"holdfast_history_bytes", "", "Size of the earlier versions that are kept for history, diff and rollback."},
		{"holdfast_frozen", "", "1 while something is frozen or rolled back, 0 otherwise."},
		{"holdfast_frozen_overdue", "", "1 while a freeze lasts longer than it was meant to, 0 otherwise."},
		{"holdfast_frozen_changes", "", "Changes of the control plane that are not served because of a freeze."},
		{"holdfast_seed_used", "",
			"1 while a seed is served, because no upstream answers and nothing is stored, 0 otherwise."},
		{"holdfast_seed_failed", "", "1 while a seed is needed and none can be used, 0 otherwise."},
		{"holdfast_seed_published_timestamp_seconds", "",
			"Time of the seed in the place that --seed-publish names, by whichever agent, in seconds since 1970; absent while none was seen there."},
		{"holdfast_seed_publish_errors_total", "", "Attempts to publish a seed that failed."},
		{"holdfast_fallback_suspects", "", "Resources that are held back because Envoy crashed with them."},
		{"holdfast_envoy_short_lives_total", "",
			"How often an Envoy that is not the agent's child disconnected within a minute of its start."},
		{"holdfast_state_damaged", "",
			"1 if the state on disk was damaged when the agent started, so that records are missing."},
		{"holdfast_state_durable", "", "Whether the last known good is written to disk, 1 or 0."},
		{"holdfast_state_bytes", "", "Size of the last known good on disk."},
		{"holdfast_state_last_write_timestamp_seconds", "",
			"When the last known good was last written, in seconds since 1970."},
		{"holdfast_state_skipped_records_total", "reason",
			"Records that were not stored, or not used, since the start."},
		{"holdfast_envoy_live", "", "Whether the Envoy that the agent runs reports that it is LIVE, 1 or 0."},
		{"holdfast_envoy_epoch", "", "Hot restarts of the Envoy that the agent runs since its last ordinary start."},
		{"holdfast_envoy_crashes_total", "", "Crashes of the Envoy that the agent runs, after which it was restarted."},
		{"holdfast_workload_healthy", "",
			"Whether the workload is reported to the control plane as healthy, 1 or 0; absent while that is unknown, or the application is not probed."},
		{"holdfast_workload_probes_total", "result", "Probes of the application since the start; result is success or failure."},
		{"holdfast_upstream_last_message_age_seconds", "upstream type",
			"Time since the last response was received from an upstream."},
		{"holdfast_certificate_expiry_timestamp_seconds", "secret ca",
			"When the certificate in use expires, in seconds since 1970; absent while there is none."},
		{"holdfast_certificate_next_attempt_timestamp_seconds", "secret ca",
			"When the next certificate is requested, in seconds since 1970; absent if the source pushes it."},
		{"holdfast_certificates_issued_total", "secret ca", "Certificates that were verified and taken into use."},
		{"holdfast_certificates_failed_total", "secret ca reason", "Failed attempts to get a certificate, by reason."},
		{"holdfast_certificate_failing_attempts", "secret ca",
			"Failed attempts to get a certificate since the last success."},
		{"holdfast_certificate_valid", "secret ca", "Whether a certificate is in use that has not expired, 1 or 0."},
		{"holdfast_trusted_roots", "trust_domain ca", "Root certificates that are trusted."},
		{"grpc_xds_client_resources", "grpc_target grpc_xds_authority grpc_xds_cache_state grpc_xds_resource_type",
			"xDS resources by state: acked, requested, nacked, nacked_but_cached or does_not_exist (gRPC A78)."},
		{"holdfast_shadow_compared", "type", "Resources that the last comparison of `holdfast shadow` compared."},
		{"holdfast_shadow_differences", "type kind",
			"Resources that Envoy has otherwise than it would be served, for longer than --grace; kind is missing, extra, content or unanswered."},
		{"holdfast_shadow_settling", "", "Resources that differ for less than --grace: an update may be on its way."},
		{"holdfast_shadow_last_comparison_timestamp_seconds", "",
			"When Envoy was last compared with what it would be served, in seconds since 1970; absent before the first time."},
		{"holdfast_shadow_comparisons_total", "result", "Comparisons since the start; result is success or failure."},
		{"holdfast_certificate_faults", "",
			"Problems with sources of certificates, and with files that secrets are made from."},
	} {
		descs[m.name] = prometheus.NewDesc(m.name, m.help, strings.Fields(m.labels), nil)
	}
	return descs
}()

// stateCollector reads the state at each scrape.
type stateCollector struct {
	metrics *Metrics
	state   State
}

// Describe tells the registry what Collect sends.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range stateDescs {
		ch <- d
	}
}

// sender sends a value of one of stateDescs.
type sender func(name string, v float64, labels ...string)

// Collect sends the values, summed over the groups.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	send := func(name string, v float64, labels ...string) {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(stateDescs[name], kind, v, labels...)
	}
	status := c.state.Status()
	c.collectTypes(send, status.Groups)
	c.collectStates(send, status.Groups)
	collectGroups(send, status.Groups)
	send("holdfast_events_total", float64(status.Events))
	send("holdfast_events_lost_total", float64(status.EventsLost))
	collectStorage(send, status.Storage)
	collectPublishing(send, status.Publishing)
	collectCertificates(send, status.Certificates)
	if w := status.Workload; w != nil {
		if w.State != probe.Unknown || w.Draining != "" {
			send("holdfast_workload_healthy", number(w.State == probe.Healthy && w.Draining == ""))
		}
		send("holdfast_workload_probes_total", float64(w.Successes), "success")
		send("holdfast_workload_probes_total", float64(w.Failures), "failure")
	}
	collectShadow(send, status.Shadow)
	if e := status.Envoy; e != nil {
		send("holdfast_envoy_live", number(e.State == envoy.StateLive))
		send("holdfast_envoy_epoch", float64(e.Epoch))
		send("holdfast_envoy_crashes_total", float64(e.Restarts))
	}
	ready := make(map[string]float64)
	for _, cond := range c.state.Ready() {
		if was, seen := ready[cond.Name]; !seen || was > 0 {
			ready[cond.Name] = number(cond.OK)
		}
	}
	for name, v := range ready {
		send("holdfast_ready", v, name)
	}
	c.metrics.mu.Lock()
	defer c.metrics.mu.Unlock()
	for labels, t := range c.metrics.upstreamTypes {
		if !t.last.IsZero() {
			send("holdfast_upstream_last_message_timestamp_seconds", seconds(t.last), labels[0], labels[1])
			send("holdfast_upstream_last_message_age_seconds", time.Since(t.last).Seconds(), labels[0], labels[1])
		}
	}
}

// collectTypes sends the metrics of resources, by type.
func (c *stateCollector) collectTypes(send sender, groups []Group) {
	types := make(map[string]Type) // sums, by label
	for _, g := range groups {
		for _, t := range g.Types {
			label := c.metrics.label(t.TypeURL)
			sum := types[label]
			sum.Subscriptions += t.Subscriptions
			sum.Errors += t.Errors
			sum.Withheld += t.Withheld
			sum.Expired += t.Expired
			if sum.Resources == nil {
				sum.Resources = make(map[string]int)
			}
			for _, s := range []xds.Status{xds.Pending, xds.Acked, xds.Suspect, xds.Nacked} {
				sum.Resources[s.String()] += t.Resources[s.String()]
			}
			types[label] = sum
		}
	}
	for label, t := range types {
		for standing, n := range t.Resources {
			send("holdfast_resources", float64(n), label, standing)
		}
		send("holdfast_subscriptions", float64(t.Subscriptions), label)
		send("holdfast_resource_errors", float64(t.Errors), label)
		send("holdfast_withheld_removals", float64(t.Withheld), label)
		send("holdfast_expired_resources_total", float64(t.Expired), label)
	}
}

// collectStates sends the resources by their state in gRPC A78. Only those that clients did not accept are looked at one
// by one.
func (c *stateCollector) collectStates(send sender, groups []Group) {
	counts := make(map[string]map[string]int) // by name of the message and state
	look := make(map[string]string)           // names of messages, by type URL
	for _, g := range groups {
		for _, t := range g.Types {
			message := messageName(t.TypeURL)
			if label := c.metrics.label(t.TypeURL); label == "other" {
				message = label
			}
			if counts[message] == nil {
				counts[message] = map[string]int{"acked": 0, "requested": 0, "nacked": 0, "nacked_but_cached": 0, "does_not_exist": 0}
			}
			counts[message]["acked"] += t.Resources[xds.Acked.String()]
			counts[message]["requested"] += t.Resources[xds.Pending.String()]
			if t.Errors+t.Resources[xds.Nacked.String()]+t.Resources[xds.Suspect.String()] > 0 {
				look[t.TypeURL] = message
			}
		}
	}
	for url, message := range look {
		for r := range c.state.Resources(Filter{Type: url}) {
			switch nacked := r.Standing == xds.Nacked || r.Standing == xds.Suspect; {
			case nacked && r.GoodVersion != "":
				counts[message]["nacked_but_cached"]++
			case nacked && r.Body != nil:
				counts[message]["nacked"]++
			case r.Body == nil && r.Error != "":
				counts[message]["does_not_exist"]++
			}
		}
	}
	for message, states := range counts {
		for state, n := range states {
			send("grpc_xds_client_resources", float64(n), grpcTarget, "#old", state, message)
		}
	}
}

// collectGroups sends the metrics of groups and their upstreams.
func collectGroups(send sender, groups []Group) {
	upstreams := make(map[string]Upstream)
	restored, fallenBack, oldest := 0, false, time.Duration(-1)
	suspects, shortLives := 0, uint64(0)
	frozen, overdue, waiting, history, bytes := false, false, 0, int64(0), int64(0)
	seeded, unseeded := false, false
	for _, g := range groups {
		restored += g.Restored
		if g.Fallback != nil {
			fallenBack = true
			suspects += len(g.Fallback.Suspects)
		}
		history += g.HistoryBytes
		bytes += g.Bytes
		if g.Seed != nil {
			seeded, unseeded = seeded || g.Seed.Used, unseeded || g.Seed.Error != ""
		}
		if g.Freeze != nil {
			frozen, overdue = true, overdue || g.Freeze.Overdue(time.Now())
			waiting += g.Freeze.waiting()
		}
		shortLives += g.ShortLivesTotal
		contact := g.Contact
		if contact.IsZero() {
			contact = g.Opened
		}
		if !contact.IsZero() {
			oldest = max(oldest, time.Since(contact))
		}
		for _, u := range g.Upstreams {
			all := upstreams[u.Name]
			upstreams[u.Name] = Upstream{Connected: all.Connected || u.Connected, Stale: all.Stale || u.Stale, Active: all.Active || u.Active}
		}
	}
	send("holdfast_groups", float64(len(groups)))
	send("holdfast_restored_resources", float64(restored))
	send("holdfast_fallen_back", number(fallenBack))
	send("holdfast_fallback_suspects", float64(suspects))
	send("holdfast_history_bytes", float64(history))
	send("holdfast_resource_bytes", float64(bytes))
	send("holdfast_seed_used", number(seeded))
	send("holdfast_seed_failed", number(unseeded))
	send("holdfast_frozen", number(frozen))
	send("holdfast_frozen_overdue", number(overdue))
	send("holdfast_frozen_changes", float64(waiting))
	send("holdfast_envoy_short_lives_total", float64(shortLives))
	if oldest >= 0 {
		send("holdfast_last_contact_age_seconds", oldest.Seconds())
	}
	for name, u := range upstreams {
		send("holdfast_upstream_connected", number(u.Connected), name)
		send("holdfast_upstream_stale", number(u.Stale), name)
		send("holdfast_upstream_active", number(u.Active), name)
	}
}

// collectPublishing sends the metrics of the seed that the agent publishes; p is nil if it publishes none.
func collectPublishing(send sender, p *Publishing) {
	if p == nil {
		return
	}
	if !p.There.IsZero() {
		send("holdfast_seed_published_timestamp_seconds", seconds(p.There))
	}
	send("holdfast_seed_publish_errors_total", float64(p.Failures))
}

// collectStorage sends the metrics of the state on disk; s is nil if there is none.
// collectShadow sends what a shadow has found. A type that was compared and has no difference has a 0.
func collectShadow(send sender, r *shadow.Report) {
	if r == nil {
		return
	}
	counts := make(map[[2]string]int)
	for kind, n := range r.Compared {
		send("holdfast_shadow_compared", float64(n), kind)
		for _, k := range shadow.Kinds() {
			counts[[2]string{kind, string(k)}] = 0
		}
	}
	for _, c := range r.Counts {
		counts[[2]string{c.Type, string(c.Kind)}] = c.N
	}
	for labels, n := range counts {
		send("holdfast_shadow_differences", float64(n), labels[0], labels[1])
	}
	send("holdfast_shadow_settling", float64(r.Settling))
	if !r.At.IsZero() {
		send("holdfast_shadow_last_comparison_timestamp_seconds", seconds(r.At))
	}
	send("holdfast_shadow_comparisons_total", float64(r.Comparisons), "success")
	send("holdfast_shadow_comparisons_total", float64(r.Errors), "failure")
}

func collectStorage(send sender, s *Storage) {
	if s == nil {
		return
	}
	send("holdfast_state_durable", number(s.Durable))
	send("holdfast_state_bytes", float64(s.Bytes))
	if !s.Committed.IsZero() {
		send("holdfast_state_last_write_timestamp_seconds", seconds(s.Committed))
	}
	send("holdfast_state_damaged", number(s.Damage != ""))
	send("holdfast_state_write_errors_total", float64(s.WriteErrors))
	for reason, n := range s.Skipped {
		send("holdfast_state_skipped_records_total", float64(n), reason)
		send("holdfast_state_not_stored", float64(s.NotStored[reason]), reason)
	}
}

// collectCertificates sends the metrics of certificates; s is nil if none are issued.
func collectCertificates(send sender, s *sds.Status) {
	if s == nil {
		return
	}
	now := time.Now()
	for _, id := range s.Identities {
		if !id.NotAfter.IsZero() {
			send("holdfast_certificate_expiry_timestamp_seconds", seconds(id.NotAfter), id.Secret, id.CA)
		}
		if !id.Next.IsZero() {
			send("holdfast_certificate_next_attempt_timestamp_seconds", seconds(id.Next), id.Secret, id.CA)
		}
		send("holdfast_certificate_valid", number(now.Before(id.NotAfter)), id.Secret, id.CA)
		send("holdfast_certificate_failing_attempts", float64(id.Attempts), id.Secret, id.CA)
		send("holdfast_certificates_issued_total", float64(id.Issued), id.Secret, id.CA)
		for _, reason := range sds.Reasons() {
			send("holdfast_certificates_failed_total", float64(id.Failed[reason]), id.Secret, id.CA, string(reason))
		}
	}
	roots := make(map[[2]string]int)
	for _, r := range s.Roots {
		roots[[2]string{r.Domain, r.CA}]++
	}
	for labels, n := range roots {
		send("holdfast_trusted_roots", float64(n), labels[0], labels[1])
	}
	faults := len(s.Faults)
	for _, f := range s.Files {
		if f.Error != "" {
			faults++
		}
	}
	send("holdfast_certificate_faults", float64(faults))
}

// seconds returns a time in seconds since 1970.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
