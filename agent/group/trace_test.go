package group_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/telemetry"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// traced replaces the agent by one whose spans are in the returned exporter when they end.
func (r *rig) traced() *tracetest.InMemoryExporter {
	spans := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))
	r.restartAgentAs(func(cfg *group.Config) { cfg.Tracer = telemetry.NewTracer(provider, "xdstest") })
	return spans
}

// tree has the traces of a type as lines: an update, and below it what clients were sent.
func tree(spans tracetest.SpanStubs, typeURL string) (lines []string) {
	describe := func(s tracetest.SpanStub) string {
		out := s.Name
		for _, a := range s.Attributes {
			switch a.Key {
			case "xds.names":
				out += " " + strings.Join(a.Value.AsStringSlice(), ",")
			case "holdfast.superseded":
				out += " superseded"
			}
		}
		for _, e := range s.Events {
			out += " " + e.Name
		}
		if s.Status.Code == codes.Error {
			out += ": " + s.Status.Description
		}
		if n := len(s.Links); n > 0 {
			out += fmt.Sprintf(", %d links", n)
		}
		return out
	}
	of := func(s tracetest.SpanStub) bool {
		return slices.ContainsFunc(s.Attributes, func(a attribute.KeyValue) bool {
			return a.Key == "xds.type" && a.Value.AsString() == xds.Short(typeURL)
		})
	}
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	for _, s := range spans {
		if s.Parent.IsValid() || !of(s) {
			continue
		}
		lines = append(lines, describe(s))
		for _, child := range spans {
			if child.Parent.SpanID() == s.SpanContext.SpanID() {
				lines = append(lines, "  "+describe(child))
			}
		}
	}
	return lines
}

func TestAnUpdateIsTracedUntilItIsACKed(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		spans := r.traced()
		first, second := r.client(xdstest.ClientConfig{}), r.client(xdstest.ClientConfig{})
		r.envoy(first)
		r.envoy(second)
		r.pass(time.Second)
		spans.Reset()
		r.cp.Set(xdstest.Route("r1", "c2"))
		r.pass(time.Second)
		want := []string{"xds.update r1 applied", "  xds.push r1 sent", "  xds.push r1 sent"}
		if got := tree(spans.GetSpans(), xds.RouteType); !slices.Equal(got, want) {
			r.Errorf("%q, want %q", got, want)
		}
	})
}

func TestANACKIsInTheTrace(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		spans := r.traced()
		bad := false
		c := r.client(xdstest.ClientConfig{Reject: func(string, *discoveryv3.Resource) error {
			if bad {
				return errors.New("no such filter")
			}
			return nil
		}})
		r.envoy(c)
		r.pass(time.Second)
		spans.Reset()
		bad = true
		r.cp.Set(xdstest.Route("r1", "c2"))
		r.pass(time.Second)
		want := []string{"xds.update r1 applied: xdstest: r1: no such filter", "  xds.push r1 sent: r1: no such filter"}
		if got := tree(spans.GetSpans(), xds.RouteType); !slices.Equal(got, want) {
			r.Errorf("%q, want %q", got, want)
		}
	})
}

// What concerns no client, and what is answered before it has taken effect, is complete, too.
func TestAnUpdateThatConcernsNobodyIsTraced(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		spans := r.traced()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		c.Close()
		r.pass(time.Second)
		spans.Reset()
		r.cp.Set(xdstest.Route("r1", "c2"))
		r.pass(time.Second)
		want := []string{"xds.update r1 applied"}
		if got := tree(spans.GetSpans(), xds.RouteType); !slices.Equal(got, want) {
			r.Errorf("%q, want %q", got, want)
		}
	})
}

func TestAClientThatLeavesEndsTheTrace(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		spans := r.traced()
		c := r.client(xdstest.ClientConfig{Manual: true})
		r.envoy(c)
		r.pass(time.Second)
		for _, got := range c.Responses() {
			c.Ack(got)
		}
		r.pass(time.Second)
		spans.Reset()
		for i := range 3 {
			r.cp.Set(xdstest.Route("r1", fmt.Sprint("c", i+2)))
			r.pass(time.Second)
		}
		if got := tree(spans.GetSpans(), xds.RouteType); len(got) > 0 {
			r.Errorf("before the answer: %q", got)
		}
		c.Close()
		r.pass(time.Second)
		got := tree(spans.GetSpans(), xds.RouteType)
		updates := slices.DeleteFunc(slices.Clone(got), func(line string) bool { return !strings.HasPrefix(line, "xds.update r1 applied") })
		if len(updates) != 3 || !strings.Contains(strings.Join(got, "\n"), "xds.push r1 sent: the stream ended before an answer") {
			r.Errorf("%q", got)
		}
	})
}
