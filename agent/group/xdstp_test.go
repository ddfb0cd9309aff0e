package group_test

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// endpointsPath is the beginning of the names of one directory.
const endpointsPath = "xdstp://auth/envoy.config.endpoint.v3.ClusterLoadAssignment/foo/"

func member(name string) *discoveryv3.Resource {
	w := xdstest.Wrap(xdstest.CLA("any", "127.0.0.1:1"), "1")
	w.Name = name
	return w
}

// notEnvoy is a client that subscribes to collections of endpoints, which no Envoy does.
var notEnvoy = xdstest.ClientConfig{Node: &corev3.Node{Id: "web-1", UserAgentName: "other"}}

// inDelta runs a test with a Delta control plane: only Delta can say that a collection is empty.
func inDelta(t *testing.T, test func(*rig)) {
	t.Helper()
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		if r.above == xdstest.Delta {
			r.cp.Silent(true) // it does not know collections: the test answers
			test(r)
		}
	})
}

func (r *rig) tell(nonce string, resources []*discoveryv3.Resource, removed ...string) {
	r.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: xds.EndpointType, Nonce: nonce, Resources: resources, RemovedResources: removed,
	})
	r.quiet()
}

// protocol.md 8.7.
func TestACollectionIsServed(t *testing.T) {
	inDelta(t, func(r *rig) {
		glob, a, b := endpointsPath+"*?k=1&l=2", endpointsPath+"a?k=1&l=2", endpointsPath+"b?k=1&l=2"
		c := r.client(notEnvoy)
		c.Subscribe(xds.EndpointType, glob)
		r.quiet()
		asked := r.cp.Requests(xds.EndpointType)
		if len(asked) != 1 || !slices.Equal(asked[0].Subscribe, []string{glob}) {
			r.Fatalf("asked for:\n%s", lines(asked))
		}
		// The parameters of a name are a set; other ones belong elsewhere.
		r.tell("n1", []*discoveryv3.Resource{member(endpointsPath + "a?l=2&k=1"), member(endpointsPath + "other?k=9")})
		r.holds(c, xds.EndpointType, a)
		r.tell("n2", []*discoveryv3.Resource{member(b)})
		r.holds(c, xds.EndpointType, a, b)
		second := r.client(notEnvoy)
		second.Subscribe(xds.EndpointType, endpointsPath+"*?l=2&k=1")
		r.quiet()
		r.holds(second, xds.EndpointType, a, b)
		r.tell("n3", nil, b)
		if r.below == xdstest.Delta {
			r.holds(c, xds.EndpointType, a)
		}
		r.pass(time.Second)
		if n := r.count(xdstest.Nack, xds.EndpointType); n != 0 {
			r.Errorf("%d NACKs", n)
		}
	})
}

// protocol.md 8.7: a name whose parameters are in another order is the same resource, also in
// removals, heartbeats and errors.
func TestEverythingThatIsSaidOfANameIsSaidInAnyOrderOfItsParameters(t *testing.T) {
	inDelta(t, func(r *rig) {
		glob, ours, theirs := endpointsPath+"*?k=1&l=2", endpointsPath+"a?k=1&l=2", endpointsPath+"a?l=2&k=1"
		c := r.client(notEnvoy)
		c.Subscribe(xds.EndpointType, glob)
		r.quiet()
		w := member(theirs)
		w.Ttl = durationpb.New(10 * time.Second)
		r.tell("n1", []*discoveryv3.Resource{w})
		r.holds(c, xds.EndpointType, ours)
		r.pass(8 * time.Second)
		r.tell("n2", []*discoveryv3.Resource{{Name: theirs, Version: "1", Ttl: durationpb.New(10 * time.Second)}})
		r.pass(8 * time.Second)
		r.holds(c, xds.EndpointType, ours)
		if len(r.group.Cache().Resources(xds.EndpointType)) != 1 {
			r.Errorf("the heartbeat did not keep it")
		}
		r.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.EndpointType, Nonce: "n3", ResourceErrors: []*discoveryv3.ResourceError{{
			ResourceName: &discoveryv3.ResourceName{Name: theirs},
			ErrorDetail:  &statuspb.Status{Code: int32(codes.Unavailable), Message: "busy"},
		}}})
		r.quiet()
		if got := r.group.Cache().Resources(xds.EndpointType); len(got) != 1 || got[0].Err == nil {
			r.Errorf("what is reported of it is not known of it: %+v", got)
		}
		r.tell("n4", nil, theirs)
		r.pass(time.Second)
		if got := r.group.Cache().Resources(xds.EndpointType); len(got) != 0 {
			r.Errorf("after the removal %d are held: %s", len(got), got[0].Name)
		}
		if r.below == xdstest.Delta {
			r.holds(c, xds.EndpointType)
		}
		if n := r.count(xdstest.Nack, xds.EndpointType); n != 0 {
			r.Errorf("%d NACKs", n)
		}
	})
}

func TestAnEmptyCollectionIsSaidToBeEmpty(t *testing.T) {
	inDelta(t, func(r *rig) {
		if r.below == xdstest.SotW {
			return
		}
		glob := endpointsPath + "*"
		c := r.client(notEnvoy)
		c.Subscribe(xds.EndpointType, glob)
		r.quiet()
		if got := c.Responses(); len(got) > 0 {
			r.Fatalf("answered before anything is known:\n%s", lines(got))
		}
		r.tell("n1", nil, glob)
		got := c.Responses()
		if len(got) != 1 || !slices.Equal(got[0].Removed, []string{glob}) {
			r.Fatalf("got:\n%s", lines(got))
		}
		r.tell("n2", []*discoveryv3.Resource{member(endpointsPath + "a")})
		r.holds(c, xds.EndpointType, endpointsPath+"a")
	})
}
