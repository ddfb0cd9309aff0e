package downstream_test

import (
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Findings P2, user H6: invalid names, and names beyond the limit, do not end a stream. Strangers
// choose them, by the Host of a request, and Envoy repeats them on each stream.
func TestNamesThatAreLeftOutEndNoStream(t *testing.T) {
	inBothForms(t, downstream.Config{Limits: downstream.Limits{Subscriptions: 3, RequestRate: 10_000}}, func(s *service) {
		s.put(xdstest.Cluster("c1", ""))
		c := s.client(s.dial())
		c.Subscribe(xds.ClusterType)
		s.quiet()
		c.Subscribe(xds.EndpointType, strings.Repeat("x", xds.MaxNameBytes+1), "", "c1")
		for _, name := range []string{"a", "b", "c", "d", strings.Repeat("y", xds.MaxNameBytes+1)} {
			c.Subscribe(xds.EndpointType, name)
			s.quiet()
		}
		if err := c.Err(); err != nil {
			s.Fatalf("the stream ended: %v", err)
		}
		if got := s.server.Streams()[0].Subscriptions; got != 4 { // the wildcard and three names
			s.Errorf("%d subscriptions, want 4", got)
		}
		s.put(xdstest.Cluster("c1", ""), xdstest.Cluster("c2", ""))
		s.pass(time.Second)
		s.holds(c, "c1", "c2")
	})
}

// A first request all of whose names are left out requests nothing, not everything.
func TestAFirstRequestThatIsLeftOutIsNoWildcard(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		s.put(xdstest.Cluster("c1", ""))
		c := s.client(s.dial())
		node := &corev3.Node{Id: "grpc"}
		c.Send(s.ask(node, xds.ClusterType, strings.Repeat("x", xds.MaxNameBytes+1)))
		s.pass(time.Second)
		if err := c.Err(); err != nil {
			s.Fatalf("the stream ended: %v", err)
		}
		if got := c.Names(xds.ClusterType); len(got) > 0 {
			s.Errorf("it was sent %v", got)
		}
	})
}
