package collector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/confignet"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
)

// collector is a receiver of the OpenTelemetry Collector, and what it received.
type collector struct {
	grpc, http string
	traces     consumertest.TracesSink
	metrics    consumertest.MetricsSink
}

func start(r *rig.Rig) *collector {
	c := &collector{grpc: r.FreeAddr(), http: r.FreeAddr()}
	factory := otlpreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	cfg.Protocols.GRPC.GetOrInsertDefault().NetAddr = confignet.AddrConfig{Endpoint: c.grpc, Transport: confignet.TransportTypeTCP}
	cfg.Protocols.HTTP.GetOrInsertDefault().ServerConfig.NetAddr = confignet.AddrConfig{Endpoint: c.http, Transport: confignet.TransportTypeTCP}
	ctx, settings := context.Background(), receivertest.NewNopSettings(factory.Type())
	traces, err := factory.CreateTraces(ctx, settings, cfg, &c.traces)
	r.Check(err)
	metrics, err := factory.CreateMetrics(ctx, settings, cfg, &c.metrics)
	r.Check(err)
	host := componenttest.NewNopHost()
	r.Check(traces.Start(ctx, host))
	r.Check(metrics.Start(ctx, host))
	r.Cleanup(func() {
		if err := errors.Join(traces.Shutdown(ctx), metrics.Shutdown(ctx)); err != nil {
			r.Error(err)
		}
	})
	return c
}

// serve starts a control plane whose only route answers with a text, and an agent of it. url is where an Envoy of the agent
// answers.
func serve(r *rig.Rig, text string, flags ...string) (cp *xdstest.ControlPlane, agent *rig.Agent, url string) {
	r.Helper()
	cp, at := xdstest.New(xdstest.Config{}), listen(r)
	cp.Serve(at)
	r.Cleanup(cp.Stop)
	port := r.FreePort()
	cp.Set(xdstest.Listener("l1", uint32(port), "r1"), xdstest.TextRoute("r1", text))
	agent = r.StartAgent("agent", append([]string{"--upstream", at.Addr().String(), "--upstream-plaintext"}, flags...)...)
	return cp, agent, fmt.Sprintf("http://127.0.0.1:%d/", port)
}

// spans returns the spans of a name whose attribute xds.type is the given one.
func (c *collector) spans(name, typ string) (out []ptrace.Span) {
	for _, batch := range c.traces.AllTraces() {
		for _, of := range batch.ResourceSpans().All() {
			for _, scope := range of.ScopeSpans().All() {
				for _, span := range scope.Spans().All() {
					if got, _ := span.Attributes().Get("xds.type"); span.Name() == name && got.Str() == typ {
						out = append(out, span)
					}
				}
			}
		}
	}
	return out
}

// metric returns the sum of a counter or gauge, in the newest export that has it.
func (c *collector) metric(name string) (sum float64, found bool) {
	for _, batch := range slices.Backward(c.metrics.AllMetrics()) {
		for _, of := range batch.ResourceMetrics().All() {
			for _, scope := range of.ScopeMetrics().All() {
				for _, m := range scope.Metrics().All() {
					if m.Name() != name {
						continue
					}
					var points pmetric.NumberDataPointSlice
					switch m.Type() {
					case pmetric.MetricTypeGauge:
						points = m.Gauge().DataPoints()
					case pmetric.MetricTypeSum:
						points = m.Sum().DataPoints()
					default:
						return 0, false
					}
					for _, p := range points.All() {
						sum += p.DoubleValue()
					}
					return sum, true
				}
			}
		}
	}
	return 0, false
}

// service returns the attributes of the resource of the first traces.
func (c *collector) service() map[string]any {
	for _, batch := range c.traces.AllTraces() {
		for _, of := range batch.ResourceSpans().All() {
			return of.Resource().Attributes().AsRaw()
		}
	}
	return nil
}

// A route changes on its way to a real Envoy, and then one that Envoy NACKs.
func TestUpdatesAreTracedAndMetricsExported(t *testing.T) {
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			r := rig.New(t)
			c := start(r)
			endpoint := c.grpc
			if protocol != "grpc" {
				endpoint = c.http
			}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+endpoint)
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
			t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
			t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")

			cp, agent, url := serve(r, "before", "--node-id", rig.Node, "--node-cluster", rig.Node)
			envoy := agent.Envoy("envoy", "delta")
			r.Serves(envoy, url, "before")

			cp.Set(xdstest.TextRoute("r1", "after"))
			r.Serves(envoy, url, "after")
			bad := xdstest.TextRoute("r1", "bad")
			bad.VirtualHosts = append(bad.VirtualHosts, bad.VirtualHosts[0]) // two for all hosts
			cp.Set(bad)

			var update, push ptrace.Span
			r.Eventually(func() error {
				for _, u := range c.spans("xds.update", "RDS") {
					if u.Status().Code() != ptrace.StatusCodeError {
						continue
					}
					for _, p := range c.spans("xds.push", "RDS") {
						if p.ParentSpanID() == u.SpanID() {
							update, push = u, p
							return nil
						}
					}
				}
				return fmt.Errorf("no NACK among %d and %d spans", len(c.spans("xds.update", "RDS")), len(c.spans("xds.push", "RDS")))
			})
			const reason = "wildcard domain"
			if !strings.Contains(push.Status().Message(), reason) || !strings.Contains(update.Status().Message(), reason) {
				t.Errorf("the reasons are %q and %q", update.Status().Message(), push.Status().Message())
			}
			if push.StartTimestamp() < update.StartTimestamp() || push.EndTimestamp() > update.EndTimestamp() || push.TraceID() != update.TraceID() {
				t.Errorf("the response is not within the update: %s to %s, %s to %s", update.StartTimestamp(), update.EndTimestamp(), push.StartTimestamp(), push.EndTimestamp())
			}
			if events(update) != "applied" || events(push) != "sent" {
				t.Errorf("events %q and %q", events(update), events(push))
			}
			if names, _ := update.Attributes().Get("xds.names"); !slices.Equal(names.Slice().AsRaw(), []any{"r1"}) {
				t.Errorf("names %v", names.AsRaw())
			}
			if s := c.service(); s["service.name"] != "holdfast" || s["deployment.environment.name"] != "test" || s["service.instance.id"] != rig.Node || s["service.version"] == "" {
				t.Errorf("the resource is %v", s)
			}
			r.Eventually(func() error {
				if n, ok := c.metric("holdfast_upstream_connected"); !ok || n != 1 {
					return fmt.Errorf("holdfast_upstream_connected is %v (%v)", n, ok)
				}
				if n, ok := c.metric("holdfast_pushes_total"); !ok || n < 4 {
					return fmt.Errorf("holdfast_pushes_total is %v (%v)", n, ok)
				}
				return nil
			})
		})
	}
}

func events(s ptrace.Span) string {
	var names []string
	for _, e := range s.Events().All() {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// Nothing waits for a collector that is away or hangs, and the agent ends in time.
func TestACollectorThatIsAwayOrHangsHarmsNothing(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		for _, protocol := range []string{"grpc", "http/protobuf"} {
			t.Run(fmt.Sprintf("%s, hangs: %v", protocol, hangs), func(t *testing.T) {
				r := rig.New(t)
				endpoint := r.FreeAddr()
				if hangs {
					at := listen(r)
					endpoint = at.Addr().String()
					go hang(at)
				}
				t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+endpoint)
				t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
				t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
				t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
				t.Setenv("OTEL_METRIC_EXPORT_TIMEOUT", "1000")
				t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "1000")
				cp, agent, url := serve(r, "0")
				envoy := agent.Envoy("envoy", "sotw")
				for i := range 20 {
					cp.Set(xdstest.TextRoute("r1", fmt.Sprint(i)))
					r.Serves(envoy, url, fmt.Sprint(i))
				}
				r.Eventually(func() error {
					if log := agent.Log(); !strings.Contains(log, "telemetry not exported") {
						return errors.New("the log does not say so")
					}
					return nil
				})
				if err := agent.Stop(10 * time.Second); err != nil {
					t.Errorf("it does not end in time: %v", err)
				}
			})
		}
	}
}

// hang accepts connections and never answers.
func hang(lis net.Listener) {
	var open []net.Conn
	for {
		conn, err := lis.Accept()
		if err != nil {
			for _, conn := range open {
				_ = conn.Close()
			}
			return
		}
		open = append(open, conn)
	}
}

func listen(r *rig.Rig) net.Listener {
	r.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	r.Check(err)
	r.Cleanup(func() { _ = lis.Close() })
	return lis
}

// Rubbish in the variables, and a collector that refuses and repeats the token, keep the agent neither from serving nor
// its log clean of secrets.
func TestRubbishInTheVariablesHarmsNothing(t *testing.T) {
	const planted = "PLANTED-TOKEN-0123456789"
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, "not allowed: %s", r.Header.Get("Authorization"))
	}))
	defer refuses.Close()
	for name, environ := range map[string]map[string]string{
		"numbers":            {"OTEL_EXPORTER_OTLP_ENDPOINT": refuses.URL, "OTEL_BSP_MAX_QUEUE_SIZE": "-1", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "-1", "OTEL_METRIC_EXPORT_INTERVAL": "-1", "OTEL_BSP_SCHEDULE_DELAY": "-1", "OTEL_EXPORTER_OTLP_TIMEOUT": "x"},
		"a huge queue":       {"OTEL_EXPORTER_OTLP_ENDPOINT": refuses.URL, "OTEL_BSP_MAX_QUEUE_SIZE": "999999999999"},
		"a token is refused": {"OTEL_EXPORTER_OTLP_ENDPOINT": refuses.URL, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20" + planted, "OTEL_BSP_SCHEDULE_DELAY": "50"},
		"a colon for =":      {"OTEL_EXPORTER_OTLP_ENDPOINT": refuses.URL, "OTEL_EXPORTER_OTLP_HEADERS": "authorization: Bearer " + planted},
		"no URL":             {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:" + planted + "/x%zz@127.0.0.1:1"},
		"no certificate":     {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:1", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere/" + planted},
		"a wrong sampler":    {"OTEL_EXPORTER_OTLP_ENDPOINT": refuses.URL, "OTEL_TRACES_SAMPLER": "nonsense", "OTEL_TRACES_SAMPLER_ARG": "x", "OTEL_RESOURCE_ATTRIBUTES": "a%zz,b=%zz"},
	} {
		t.Run(name, func(t *testing.T) {
			r := rig.New(t)
			for variable, value := range environ {
				t.Setenv(variable, value)
			}
			_, agent, url := serve(r, "served", "--state-dir", r.Path("state"))
			r.Serves(agent.Envoy("envoy", "delta"), url, "served")
			r.Eventually(func() error {
				if log := agent.Log(); !strings.Contains(log, "OTEL_") && !strings.Contains(log, "telemetry not exported") {
					return errors.New("the log says nothing")
				}
				return nil
			})
			r.Check(agent.Stop(10 * time.Second))
			if name == "no certificate" {
				return // the path of a file is no secret
			}
			if strings.Contains(agent.Log(), planted) {
				t.Error("the log has a secret")
			}
			events, err := os.ReadFile(r.Path("state/events.jsonl"))
			r.Check(err)
			if strings.Contains(string(events), planted) {
				t.Error("the events on disk have a secret")
			}
		})
	}
}
