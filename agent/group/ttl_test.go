package group_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// with gives a resource a TTL.
func with(ttl time.Duration, m proto.Message, name string) *discoveryv3.Resource {
	return &discoveryv3.Resource{Name: name, Resource: xdstest.Pack(m), Ttl: durationpb.New(ttl)}
}

// heartbeat refreshes the TTL of a resource, like the control plane that sent it with a version.
func (r *rig) heartbeat(typeURL, name, version string, ttl time.Duration) {
	beat := &discoveryv3.Resource{Name: name, Version: version, Ttl: durationpb.New(ttl)}
	if r.above == xdstest.Delta {
		r.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: r.cp.Nonce(), Resources: []*discoveryv3.Resource{beat}})
	} else {
		r.cp.SendRaw(0, &discoveryv3.DiscoveryResponse{
			TypeUrl: typeURL, Nonce: r.cp.Nonce(), VersionInfo: version, Resources: []*anypb.Any{xdstest.Pack(beat)},
		})
	}
	r.quiet()
}

// protocol.md 6.1 to 6.5, in the four combinations: a resource that is not refreshed is removed by
// the agent's clock, and only Delta clients get TTLs.
func TestAResourceThatIsNotRefreshedGoes(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.cp.Set(
			&discoveryv3.Resource{Name: "c2", Version: "7", Resource: xdstest.Pack(xdstest.Cluster("c2", "")), Ttl: durationpb.New(time.Minute)},
			with(time.Minute, xdstest.Route("r1", "c2"), "r1"),
		)
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.holds(c, xds.ClusterType, "c1", "c2")
		w := c.Held(xds.ClusterType)["c2"]
		if told := w.GetTtl() != nil; told != (r.below == xdstest.Delta) {
			t.Errorf("the client was told a TTL of %v", w.GetTtl())
		}
		r.pass(50 * time.Second)
		before := len(c.Responses())
		r.heartbeat(xds.ClusterType, "c2", "7", time.Minute)
		beats := slices.DeleteFunc(c.Responses()[before:], func(got xdstest.Received) bool {
			return len(got.Resources) != 1 || got.Resources[0].GetResource() != nil
		})
		if want := map[xdstest.Protocol]int{xdstest.Delta: 1}[r.below]; len(beats) != want || len(c.Responses()) != before+want {
			t.Errorf("after a heartbeat the client was told:\n%s", lines(c.Responses()[before:]))
		}
		r.pass(50 * time.Second)
		r.holds(c, xds.ClusterType, "c1", "c2")
		r.pass(20 * time.Second)
		r.holds(c, xds.ClusterType, "c1")
		// Envoy ignores the expiry of a route, so nothing is sent; but a new client does not get
		// it.
		r.holds(c, xds.RouteType, "r1")
		again := r.client(xdstest.ClientConfig{})
		again.Subscribe(xds.RouteType, "r1")
		r.pass(time.Minute)
		r.holds(again, xds.RouteType)
		r.cp.Set(with(time.Hour, xdstest.Route("r1", "c1"), "r1"))
		r.quiet()
		r.holds(again, xds.RouteType, "r1")
	})
}

// protocol.md 6.1: in a SotW response Envoy compares version_info with what it accepted, not the
// version of the wrapper. A control plane that has another version in the wrapper must not lose
// what it refreshes.
func TestHeartbeatsOfTheAcceptedResponseKeepAResource(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		if r.above != xdstest.SotW {
			return
		}
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.cp.Silent(true)
		say := func(nonce string, entries ...*anypb.Any) {
			r.cp.SendRaw(0, &discoveryv3.DiscoveryResponse{TypeUrl: xds.ListenerType, Nonce: nonce, VersionInfo: "7", Resources: entries})
			r.quiet()
		}
		say("b1", xdstest.Pack(&discoveryv3.Resource{
			Name: "l1", Version: "of the listener", Resource: xdstest.Pack(xdstest.Listener("l1", 99, "r1")), Ttl: durationpb.New(10 * time.Second),
		}))
		r.holds(c, xds.ListenerType, "l1")
		for i := range 10 {
			r.pass(5 * time.Second)
			say(fmt.Sprintf("h%d", i), xdstest.Pack(&discoveryv3.Resource{Name: "l1", Version: fmt.Sprint(i), Ttl: durationpb.New(10 * time.Second)}))
		}
		r.holds(c, xds.ListenerType, "l1")
		if n := r.count(xdstest.Nack, xds.ListenerType); n != 0 {
			t.Errorf("%d NACKs", n)
		}
		r.pass(11 * time.Second)
		r.holds(c, xds.ListenerType)
	})
}

// protocol.md 6.1: a heartbeat for a resource that is not cached is NACKed, so that the control
// plane sends the resource again.
func TestAHeartbeatForAResourceThatIsNotCachedIsNACKed(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.envoy(r.client(xdstest.ClientConfig{}))
		r.heartbeat(xds.ClusterType, "c1", "nonsense", time.Minute)
		for _, e := range r.cp.Requests(xds.ClusterType) {
			if e.Kind == xdstest.Nack {
				return
			}
		}
		t.Errorf("the control plane was asked only:\n%s", lines(r.cp.Requests(xds.ClusterType)))
	})
}

// design.md I8: without the control plane nothing refreshes a TTL, and an expired resource is not
// served to a reconnecting client either.
func TestATTLRunsOutWhileTheControlPlaneIsAway(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.cp.Set(with(time.Minute, xdstest.Cluster("c2", ""), "c2"))
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.holds(c, xds.ClusterType, "c1", "c2")
		r.cp.Stop()
		r.pass(59 * time.Second)
		r.holds(c, xds.ClusterType, "c1", "c2")
		r.pass(3 * time.Second)
		r.holds(c, xds.ClusterType, "c1")
		late := r.client(xdstest.ClientConfig{})
		late.Subscribe(xds.ClusterType)
		r.quiet()
		r.holds(late, xds.ClusterType, "c1")
	})
}
