package group_test

import (
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// protocol.md 8.4: an unknown name is requested upstream before it is answered.
func TestAnOnDemandClusterIsFetched(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Hold(xds.ClusterType)
		c.Subscribe(xds.ClusterType, "odc")
		r.quiet()
		asked := r.cp.Requests(xds.ClusterType)
		last := asked[len(asked)-1]
		if !slices.Contains(append(last.Names, last.Subscribe...), "odc") {
			r.Fatalf("the control plane was not asked:\n%s", lines(asked))
		}
		r.cp.Set(xdstest.Cluster("odc", ""))
		r.cp.Release(xds.ClusterType)
		r.pass(2 * time.Second)
		r.holds(c, xds.ClusterType, "c1", "odc")
	})
}

// protocol.md 3.4, 8.4: a name is not found only if an upstream says so, and then at once.
func TestAnOnDemandClusterThatDoesNotExistIsNotFound(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		before := len(c.Of(xds.ClusterType))
		c.Subscribe(xds.ClusterType, "nope")
		r.quiet()
		removed := false
		for _, got := range c.Of(xds.ClusterType)[before:] {
			removed = removed || slices.Contains(got.Removed, "nope")
		}
		// Only Delta can express it, on both sides.
		if want := r.above == xdstest.Delta && r.below == xdstest.Delta; removed != want {
			r.Errorf("not found: %v, want %v\n%s", removed, want, lines(c.Of(xds.ClusterType)))
		}
		r.holds(c, xds.ClusterType, "c1")
	})
}

// protocol.md V9, 2.4: Envoy's SotW requests lose their wildcard when on-demand
// names come. The clusters stay, also after a reconnect.
func TestOnDemandClustersDoNotEndTheWildcard(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		if r.below == xdstest.Delta {
			return // there Envoy names the wildcard
		}
		r.mesh()
		r.cp.Set(xdstest.Cluster("odc", ""))
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		nonce := c.Of(xds.ClusterType)[0].Nonce
		c.Send(&discoveryv3.DiscoveryRequest{TypeUrl: xds.ClusterType, ResourceNames: []string{"odc"}, ResponseNonce: nonce, VersionInfo: "1"})
		r.pass(2 * time.Second)
		r.holds(c, xds.ClusterType, "c1", "odc")
		second := r.client(xdstest.ClientConfig{})
		second.Send(&discoveryv3.DiscoveryRequest{
			TypeUrl: xds.ClusterType, ResourceNames: []string{"nope", "odc"}, VersionInfo: "1", Node: nodeXdstest(),
		})
		r.pass(30 * time.Second)
		for _, got := range second.Of(xds.ClusterType) {
			if !slices.Contains(got.Names(), "c1") {
				r.Errorf("an answer without the wildcard's clusters: %s", got)
			}
		}
	})
}

// vhost is a virtual host with an alias.
func vhost(name string, aliases ...string) *discoveryv3.Resource {
	return &discoveryv3.Resource{Name: name, Version: "1", Aliases: aliases, Resource: xdstest.Unknown(xds.VirtualHostType, name)}
}

// protocol.md V11, 3.15, 8.3.
func TestVirtualHostsOnDemand(t *testing.T) {
	inDelta(t, func(r *rig) {
		if r.below == xdstest.SotW {
			return // VHDS exists in Delta only
		}
		c := r.client(xdstest.ClientConfig{})
		c.Subscribe(xds.VirtualHostType)
		r.quiet()
		tell := func(nonce string, resources []*discoveryv3.Resource, removed ...string) {
			r.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.VirtualHostType, Nonce: nonce, Resources: resources, RemovedResources: removed})
			r.quiet()
		}
		// The removal of a name that it never had ends Envoy's wait at its start.
		tell("n1", nil, "rc/x")
		if got := c.Of(xds.VirtualHostType); len(got) != 1 || !slices.Equal(got[0].Removed, []string{"rc/x"}) {
			r.Fatalf("the first answer:\n%s", lines(got))
		}
		second := r.client(xdstest.ClientConfig{})
		second.Subscribe(xds.VirtualHostType)
		r.quiet()
		if got := second.Of(xds.VirtualHostType); len(got) != 1 || !slices.Equal(got[0].Removed, []string{"rc/x"}) {
			r.Fatalf("the first answer of a later client:\n%s", lines(got))
		}
		c.Subscribe(xds.VirtualHostType, "rc/host.example:80")
		r.quiet()
		tell("n2", []*discoveryv3.Resource{vhost("rc/vh", "rc/host.example:80")})
		r.holds(c, xds.VirtualHostType, "rc/vh")
		// An alias that resolves to nothing is answered at once, without a body.
		c.Subscribe(xds.VirtualHostType, "rc/unknown:80")
		r.quiet()
		tell("n3", []*discoveryv3.Resource{{Name: "rc/unknown:80", Version: "1", Aliases: []string{"rc/unknown:80"}}})
		got := c.Of(xds.VirtualHostType)
		last := got[len(got)-1]
		if len(last.Resources) != 1 || last.Resources[0].GetResource() != nil || !slices.Equal(last.Resources[0].GetAliases(), []string{"rc/unknown:80"}) {
			r.Errorf("want a resource without a body:\n%s", lines(got))
		}
	})
}
