package group_test

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// protocol.md V1, 4.1: Envoy warms a changed cluster until an EDS message comes.
func TestEndpointsFollowTheirClusterThoughUnchanged(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		before := len(c.Of(xds.EndpointType))
		r.cp.Set(xdstest.StaticCluster("other", "127.0.0.1:1"))
		r.quiet()
		if got := c.Of(xds.EndpointType); len(got) != before {
			r.Fatalf("EDS was sent though no cluster of its changed:\n%s", lines(got))
		}
		changed := xdstest.Cluster("c1", "")
		changed.AltStatName = "changed"
		r.cp.Set(changed)
		r.quiet()
		if got := c.Of(xds.EndpointType); len(got) != before+1 || !slices.Equal(got[before].Names(), []string{"c1"}) {
			r.Fatalf("EDS must follow once:\n%s", lines(c.Responses()))
		}
	})
}

// protocol.md 1.4: an EDS request that repeats an answered nonce is answered.
func TestARepeatedEndpointRequestIsAnswered(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		if r.below == xdstest.Delta {
			return // there Envoy does not ask
		}
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		before := len(c.Of(xds.EndpointType))
		c.Repeat(xds.EndpointType)
		r.quiet()
		if got := len(c.Of(xds.EndpointType)); got != before+1 {
			r.Fatalf("%d EDS responses after the repetition, want %d", got, before+1)
		}
	})
}

// design.md I4, protocol.md 4.7.
func TestAClusterIsRemovedASecondAfterTheRest(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.cp.Set(xdstest.StaticCluster("c2", "127.0.0.1:1"))
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Remove(xds.ClusterType, "c2")
		r.quiet()
		r.holds(c, xds.ClusterType, "c1", "c2")
		r.pass(time.Second)
		r.holds(c, xds.ClusterType, "c1")
	})
}

func TestAListenerIsRemovedAtOnceAndARouteNever(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.cp.Set(xdstest.Listener("l2", 2, "r1"))
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.holds(c, xds.ListenerType, "l1", "l2")
		r.cp.Remove(xds.ListenerType, "l2")
		r.quiet()
		r.holds(c, xds.ListenerType, "l1")
		if r.above == xdstest.SotW {
			r.cp.Remove(xds.RouteType, "r1")
			r.quiet()
			r.holds(c, xds.RouteType, "r1") // absence says nothing in SotW (I3)
		}
	})
}

func TestAClusterThatComesBackIsNotRemoved(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Remove(xds.ClusterType, "c1")
		r.quiet()
		r.cp.Set(xdstest.Cluster("c1", ""))
		r.pass(5 * time.Second)
		r.holds(c, xds.ClusterType, "c1")
		for _, got := range c.Of(xds.ClusterType) {
			if len(got.Removed) > 0 {
				r.Errorf("removed: %s", got)
			}
		}
	})
}

func TestUnchangedResourcesAreNotSentAgain(t *testing.T) {
	for _, cfg := range []xdstest.Config{{}, {EmptyVersions: true}, {ResendAll: true}, {EmptyVersions: true, ResendAll: true}} {
		inAllForms(t, cfg, func(r *rig) {
			r.mesh()
			c := r.client(xdstest.ClientConfig{})
			r.envoy(c)
			before := len(c.Responses())
			r.cp.Resend(xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType)
			r.quiet()
			r.cp.Cut(nil)
			r.pass(time.Minute)
			if now, ever := r.cp.Streams(); now != 1 || ever < 2 {
				r.Fatalf("%d streams, %d ever: the upstream was not opened again", now, ever)
			}
			if got := c.Responses(); len(got) != before {
				r.Fatalf("sent again:\n%s", lines(got[before:]))
			}
		})
	}
}
