package group_test

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

func TestAColdClientGetsItsConfiguration(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.holds(c, xds.ClusterType, "c1")
		r.holds(c, xds.EndpointType, "c1")
		r.holds(c, xds.ListenerType, "l1")
		r.holds(c, xds.RouteType, "r1")
		for _, typeURL := range []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType} {
			if n := r.count(xdstest.Ack, typeURL); n != 1 {
				r.Errorf("%s: %d ACKs upstream, want 1\n%s", xds.Short(typeURL), n, lines(r.cp.Events()))
			}
		}
	})
}

// design.md I1, protocol.md V7, 2.7.
func TestAWildcardIsNotAnsweredBeforeAnythingIsKnown(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.cp.Hold(xds.ClusterType)
		c := r.client(xdstest.ClientConfig{})
		c.Subscribe(xds.ClusterType)
		r.pass(time.Minute)
		if got := c.Responses(); len(got) > 0 {
			r.Fatalf("answered with what nobody knows:\n%s", lines(got))
		}
		r.cp.Release(xds.ClusterType)
		r.quiet()
		if got := c.Of(xds.ClusterType); len(got) != 1 || len(got[0].Resources) > 0 {
			r.Fatalf("a set that is known to be empty must be answered once:\n%s", lines(got))
		}
	})
}

func TestTwoClientsShareOneUpstreamStream(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		a, b := r.client(xdstest.ClientConfig{}), r.client(xdstest.ClientConfig{})
		r.envoy(a)
		asked := len(r.cp.Answers())
		r.envoy(b)
		r.holds(b, xds.ListenerType, "l1")
		r.holds(b, xds.RouteType, "r1")
		if now, ever := r.cp.Streams(); now != 1 || ever != 1 {
			r.Errorf("%d streams upstream, %d ever, want 1 and 1", now, ever)
		}
		if more := len(r.cp.Answers()) - asked; more != 0 {
			r.Errorf("the second client cost %d answers of the control plane", more)
		}
		r.cp.Set(xdstest.Route("r1", "c2"))
		r.pass(time.Second) // no cluster c2 comes
		for _, c := range []*xdstest.Client{a, b} {
			if got := c.Of(xds.RouteType); len(got) != 2 {
				r.Errorf("a change must reach each client once:\n%s", lines(got))
			}
		}
	})
}

// protocol.md 1.5, 3.2, 7.9.
func TestNamesAreUnitedUpstream(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.cp.Set(xdstest.CLA("a", "127.0.0.1:1"), xdstest.CLA("b", "127.0.0.1:1"), xdstest.CLA("c", "127.0.0.1:1"))
		first, second := r.client(xdstest.ClientConfig{}), r.client(xdstest.ClientConfig{})
		first.Subscribe(xds.EndpointType, "a", "b")
		r.quiet()
		second.Subscribe(xds.EndpointType, "b", "c")
		r.quiet()
		r.holds(first, xds.EndpointType, "a", "b")
		r.holds(second, xds.EndpointType, "b", "c")
		second.Unsubscribe(xds.EndpointType, "c")
		r.quiet()
		r.cp.Set(xdstest.CLA("b", "127.0.0.1:2"))
		r.quiet()
		if n := len(first.Of(xds.EndpointType)); n != 2 {
			r.Errorf("first got %d EDS responses, want 2", n)
		}
		if n := len(second.Of(xds.EndpointType)); n < 2 || n > 3 {
			r.Errorf("second got %d EDS responses, want 2 or 3", n)
		}
	})
}
