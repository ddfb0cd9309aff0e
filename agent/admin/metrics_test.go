package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/holdfast-xds/holdfast/downstream"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
)

var (
	_ upstream.Observer   = UpstreamMetrics{}
	_ downstream.Observer = DownstreamMetrics{}
)

func busy() *agent {
	types := []Type{{Type: "CDS", TypeURL: xds.ClusterType, Resources: map[string]int{"accepted": 2, "rejected": 1}, Subscriptions: 1}}
	return &agent{
		ready: []Condition{{Name: "socket", OK: true}, {Name: "upstream"}},
		status: Status{Groups: []Group{
			{Types: types, Upstreams: []Upstream{{Name: "cp:1", Connected: true}, {Name: "cp:2"}}},
			{Types: types, Upstreams: []Upstream{{Name: "cp:1"}}},
		}},
	}
}

func count(m *Metrics) {
	up, down := m.Upstream(), m.Downstream()
	down.StreamOpened("delta")
	down.StreamOpened("delta")
	down.StreamClosed("delta")
	down.Pushed(xds.ClusterType, "delta", 3, 0)
	down.Pushed(xds.ClusterType, "delta", 0, 0)
	down.Answered(xds.ClusterType, "delta", false)
	down.Answered(xds.ClusterType, "delta", true)
	down.PeerRejected()
	up.Received("cp:1", xds.ClusterType, 3, 1)
	up.Answered("cp:1", xds.ClusterType, true)
}

func TestMetricsCountWhatPasses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) { // the age is exact
		m := NewMetrics("v1")
		count(m)
		time.Sleep(90 * time.Second)
		want := `
# HELP holdfast_pushed_resources_total Resources and removals in responses sent to clients.
# TYPE holdfast_pushed_resources_total counter
holdfast_pushed_resources_total{form="delta",type="CDS"} 3
# HELP holdfast_pushes_total Responses sent to clients.
# TYPE holdfast_pushes_total counter
holdfast_pushes_total{form="delta",type="CDS"} 2
# HELP holdfast_ready Whether a condition of readiness holds, 1 or 0.
# TYPE holdfast_ready gauge
holdfast_ready{condition="socket"} 1
holdfast_ready{condition="upstream"} 0
# HELP holdfast_resources Resources in the cache, by the answer of clients to their newest version.
# TYPE holdfast_resources gauge
holdfast_resources{standing="accepted",type="CDS"} 4
holdfast_resources{standing="pending",type="CDS"} 0
holdfast_resources{standing="rejected",type="CDS"} 2
holdfast_resources{standing="suspect",type="CDS"} 0
# HELP holdfast_socket_refused_total Connections to the socket that were rejected because of the user and groups of the client.
# TYPE holdfast_socket_refused_total counter
holdfast_socket_refused_total 1
# HELP holdfast_streams Open streams of clients.
# TYPE holdfast_streams gauge
holdfast_streams{form="delta"} 1
holdfast_streams{form="sotw"} 0
# HELP holdfast_streams_opened_total Streams that clients opened.
# TYPE holdfast_streams_opened_total counter
holdfast_streams_opened_total{form="delta"} 2
holdfast_streams_opened_total{form="sotw"} 0
# HELP holdfast_subscriptions Names that clients subscribe to; the wildcard counts as one.
# TYPE holdfast_subscriptions gauge
holdfast_subscriptions{type="CDS"} 2
# HELP holdfast_upstream_answers_total Answers sent to an upstream; result is ack or nack.
# TYPE holdfast_upstream_answers_total counter
holdfast_upstream_answers_total{result="ack",type="CDS",upstream="cp:1"} 0
holdfast_upstream_answers_total{result="nack",type="CDS",upstream="cp:1"} 1
# HELP holdfast_upstream_connected Whether a stream to the upstream is open, 1 or 0.
# TYPE holdfast_upstream_connected gauge
holdfast_upstream_connected{upstream="cp:1"} 1
holdfast_upstream_connected{upstream="cp:2"} 0
# HELP holdfast_upstream_last_message_age_seconds Time since the last response was received from an upstream.
# TYPE holdfast_upstream_last_message_age_seconds gauge
holdfast_upstream_last_message_age_seconds{type="CDS",upstream="cp:1"} 90
# HELP holdfast_upstream_last_message_timestamp_seconds When the last response was received from an upstream, in seconds since 1970.
# TYPE holdfast_upstream_last_message_timestamp_seconds gauge
holdfast_upstream_last_message_timestamp_seconds{type="CDS",upstream="cp:1"} 9.466848e+08
# HELP holdfast_upstream_resources_total Resources in responses received from an upstream.
# TYPE holdfast_upstream_resources_total counter
holdfast_upstream_resources_total{type="CDS",upstream="cp:1"} 3
# HELP holdfast_upstream_responses_total Responses received from an upstream.
# TYPE holdfast_upstream_responses_total counter
holdfast_upstream_responses_total{type="CDS",upstream="cp:1"} 1
`
		var names []string
		for line := range strings.Lines(want) {
			if f := strings.Fields(line); len(f) > 3 && f[1] == "TYPE" {
				names = append(names, f[2])
			}
		}
		if err := testutil.GatherAndCompare(m.Gatherer(busy()), strings.NewReader(want), names...); err != nil {
			t.Error(err)
		}
	})
}

// increase() of a counter that begins with 1 is 0: the first NACK would not be seen.
func TestCountersWithLabelsBeginWithZero(t *testing.T) {
	m := NewMetrics("v1")
	m.Upstream().Known("cp:1")
	begin := strings.Join([]string{
		`holdfast_answers_total{form="delta",result="nack",type="LDS"} 0`,
		`holdfast_answers_total{form="sotw",result="nack",type="CDS"} 0`,
		`holdfast_refused_total{limit="streams"} 0`,
		`holdfast_upstream_answers_total{result="nack",type="RDS",upstream="cp:1"} 0`,
		`holdfast_upstream_attempts_total{upstream="cp:1"} 0`,
		`holdfast_upstream_connects_total{upstream="cp:1"} 0`,
		`holdfast_upstream_failures_total{upstream="cp:1"} 0`,
		`holdfast_takeovers_total{result="done"} 0`,
		`holdfast_takeovers_total{result="failed"} 0`,
		`holdfast_fallbacks_total 0`,
	}, "\n")
	scrape := func() string {
		return ask(server(t, Config{State: busy(), Metrics: m}).health(), "GET", "/metrics").Body.String()
	}
	body := scrape()
	for line := range strings.Lines(begin) {
		if line = strings.TrimSpace(line); !strings.Contains(body, line+"\n") {
			t.Errorf("before anything happened there is no %s", line)
		}
	}
	count(m)
	m.Upstream().Attempted("cp:1")
	m.Upstream().Failed("cp:1", upstream.ReasonTLS)
	m.Upstream().Took("cp:1", false, 20*time.Millisecond)
	m.TakenOver(false)
	m.FellBack()
	m.Connections(3)
	m.Latency(xds.ClusterType, 20*time.Millisecond)
	m.UpstreamCertificate(time.Unix(1e9, 0))
	m.UpstreamCertificate(time.Unix(2e9, 0))
	body = scrape()
	for _, line := range []string{
		`holdfast_answers_total{form="delta",result="nack",type="CDS"} 1`,
		`holdfast_upstream_attempts_total{upstream="cp:1"} 1`,
		`holdfast_upstream_failures_total{upstream="cp:1"} 1`,
		`holdfast_upstream_failure_reasons_total{reason="tls",upstream="cp:1"} 1`,
		`holdfast_upstream_attempt_duration_seconds_count{result="failed",upstream="cp:1"} 1`,
		`holdfast_takeovers_total{result="failed"} 1`,
		`holdfast_fallbacks_total 1`,
		`holdfast_connections 3`,
		`holdfast_groups 2`,
		`holdfast_push_latency_seconds_bucket{type="CDS",le="0.025"} 1`,
		`holdfast_upstream_certificate_expiry_timestamp_seconds 2e+09`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
}

// An agent that never reached a control plane is the one that an alert must find.
func TestTheAgeOfTheLastContactIsThereWithoutAny(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		state := busy()
		state.status.Groups[0].Opened = time.Now()
		state.status.Groups[1].Opened, state.status.Groups[1].Contact = time.Now(), time.Now().Add(time.Hour)
		time.Sleep(2 * time.Hour)
		want := "# HELP holdfast_last_contact_age_seconds " +
			"Time since an upstream last answered, which is how stale the served configuration may be. The largest value of all groups; for a group that never had contact, the time since it was created. Absent without groups.\n" +
			"# TYPE holdfast_last_contact_age_seconds gauge\nholdfast_last_contact_age_seconds 7200\n"
		if err := testutil.GatherAndCompare(NewMetrics("v1").Gatherer(state), strings.NewReader(want), "holdfast_last_contact_age_seconds"); err != nil {
			t.Error(err)
		}
	})
}

func TestMetricsFollowTheCustomsOfPrometheus(t *testing.T) {
	m := NewMetrics("v1")
	count(m)
	problems, err := testutil.GatherAndLint(m.Gatherer(busy()))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestMetricsAreServed(t *testing.T) {
	m := NewMetrics("v1.2.3")
	count(m)
	body := ask(server(t, Config{State: busy(), Metrics: m}).health(), "GET", "/metrics").Body.String()
	for _, want := range []string{
		`holdfast_build_info{go_version="go1.`, `version="v1.2.3"} 1`, "go_goroutines ", "process_start_time_seconds ",
		`holdfast_resources{standing="accepted",type="CDS"} 4`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
}

func TestTypesOfClientsCannotFillTheMemory(t *testing.T) {
	m := NewMetrics("v")
	labels := make(map[string]bool)
	for i := range 1000 {
		labels[m.label(fmt.Sprintf("type.googleapis.com/acme.T%d", i))] = true
	}
	if len(labels) != maxOtherTypes+1 || !labels["other"] || !labels["acme.T0"] {
		t.Errorf("%d labels", len(labels))
	}
	if got := m.label(xds.ClusterType); got != "CDS" {
		t.Errorf("a known type is %q", got)
	}
	if got := NewMetrics("v").label("x/CDS"); got != "x/CDS" {
		t.Errorf("what calls itself like a known type is %q", got)
	}
}

// A rate needs a first value: what may be passed through is there before the first call.
func TestCallsThatArePassedThroughAreCountedFromTheStart(t *testing.T) {
	m := NewMetrics("v1")
	down := m.Downstream()
	down.PassThrough([]string{"a.B"})
	down.PassedThrough("a.B", downstream.PassedError)
	down.PassedThrough("other", downstream.NotPassed)
	want := `
# HELP holdfast_pass_through_calls_total Calls of other services, when they ended; result is ok, error, or refused for a service that is not passed through.
# TYPE holdfast_pass_through_calls_total counter
holdfast_pass_through_calls_total{result="error",service="a.B"} 1
holdfast_pass_through_calls_total{result="ok",service="a.B"} 0
holdfast_pass_through_calls_total{result="refused",service="other"} 1
`
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "holdfast_pass_through_calls_total"); err != nil {
		t.Error(err)
	}
}

// gRFC A78: a server is connected from the first attempt on, not after one that had no answer, and again with the next
// answer.
func TestTheMetricsOfGRPC(t *testing.T) {
	m := NewMetrics("v1")
	up := m.Upstream()
	connected := func(failures, connected int) {
		t.Helper()
		want := fmt.Sprintf(`# HELP grpc_xds_client_connected Whether the client has a working ADS stream to the server, 1 or 0 (gRPC A78).
# TYPE grpc_xds_client_connected gauge
grpc_xds_client_connected{grpc_target="#holdfast",grpc_xds_server="cp:1"} %d
# HELP grpc_xds_client_server_failure_total Servers that went from healthy to unhealthy (gRPC A78).
# TYPE grpc_xds_client_server_failure_total counter
grpc_xds_client_server_failure_total{grpc_target="#holdfast",grpc_xds_server="cp:1"} %d
`, connected, failures)
		if err := testutil.GatherAndCompare(m.Gatherer(&agent{}), strings.NewReader(want), "grpc_xds_client_connected", "grpc_xds_client_server_failure_total"); err != nil {
			t.Error(err)
		}
	}
	up.Known("cp:1")
	connected(0, 0)
	up.Attempted("cp:1")
	connected(0, 1)
	up.Took("cp:1", true, time.Second)
	up.Failed("cp:1", "lost") // the stream ends
	connected(0, 1)
	for range 3 {
		up.Attempted("cp:1")
		up.Took("cp:1", false, time.Second)
		connected(1, 0)
	}
	up.Attempted("cp:1")
	connected(1, 0)
	up.Took("cp:1", true, time.Second)
	connected(1, 1)

	up.Received("cp:1", xds.ClusterType, 3, 1)
	body := new(anypb.Any)
	cluster := func(name string, standing xds.Status, with Resource) Resource {
		with.Type, with.Name, with.Standing = xds.ClusterType, name, standing
		return with
	}
	state := &agent{
		status: Status{Groups: []Group{{Types: []Type{{
			Type: "CDS", TypeURL: xds.ClusterType, Errors: 2,
			Resources: map[string]int{"accepted": 5, "pending": 4, "suspect": 1, "rejected": 2},
		}}}}},
		resources: []Resource{
			cluster("a", xds.Suspect, Resource{Body: body, Good: body, GoodVersion: "1"}),
			cluster("b", xds.Nacked, Resource{Body: body, Good: body, GoodVersion: "1"}),
			cluster("c", xds.Nacked, Resource{Body: body}),
			cluster("d", xds.Acked, Resource{Body: body, Error: "not there any more"}),
			cluster("e", xds.Pending, Resource{Error: "not there"}),
		},
	}
	const labels = `grpc_target="#holdfast",grpc_xds_authority="#old",grpc_xds_cache_state="`
	want := `# HELP grpc_xds_client_resource_updates_invalid_total Resources received that were considered invalid (gRPC A78).
# TYPE grpc_xds_client_resource_updates_invalid_total counter
` + ofEachType("grpc_xds_client_resource_updates_invalid_total", 1) + `# HELP grpc_xds_client_resource_updates_valid_total Resources received that were considered valid, also if they had not changed (gRPC A78).
# TYPE grpc_xds_client_resource_updates_valid_total counter
` + ofEachType("grpc_xds_client_resource_updates_valid_total", 3) + `# HELP grpc_xds_client_resources xDS resources by state: acked, requested, nacked, nacked_but_cached or does_not_exist (gRPC A78).
# TYPE grpc_xds_client_resources gauge
`
	for _, s := range []string{"acked 5", "does_not_exist 1", "nacked 1", "nacked_but_cached 2", "requested 4"} {
		name, n, _ := strings.Cut(s, " ")
		want += "grpc_xds_client_resources{" + labels + name + `",grpc_xds_resource_type="envoy.config.cluster.v3.Cluster"} ` + n + "\n"
	}
	if err := testutil.GatherAndCompare(m.Gatherer(state), strings.NewReader(want), "grpc_xds_client_resource_updates_invalid_total",
		"grpc_xds_client_resource_updates_valid_total", "grpc_xds_client_resources"); err != nil {
		t.Error(err)
	}
}

// ofEachType is a counter of cp:1 that has a value for clusters, and 0 for all other types.
func ofEachType(name string, clusters int) (text string) {
	for _, url := range xds.Types() {
		n := 0
		if url == xds.ClusterType {
			n = clusters
		}
		text += fmt.Sprintf("%s{grpc_target=\"#holdfast\",grpc_xds_resource_type=%q,grpc_xds_server=\"cp:1\"} %d\n", name, messageName(url), n)
	}
	return text
}
