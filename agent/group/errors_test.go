package group_test

import (
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// errorOf returns the error of a name in the dump.
func (r *rig) errorOf(typeURL, name string) string {
	for row := range r.group.Resources(admin.Filter{Type: typeURL, Name: name}) {
		return row.Error
	}
	return ""
}

// protocol.md 3.14: an error about a resource is shown, and the cached resource stays.
func TestAnErrorFromAboveLeavesTheResourceInUse(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.quiet()
		errs := []*discoveryv3.ResourceError{{
			ResourceName: &discoveryv3.ResourceName{Name: "r1"},
			ErrorDetail:  &statuspb.Status{Code: int32(codes.PermissionDenied), Message: "not yours"},
		}}
		if r.above == xdstest.Delta {
			r.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.RouteType, Nonce: r.cp.Nonce(), ResourceErrors: errs})
		} else {
			r.cp.SendRaw(0, &discoveryv3.DiscoveryResponse{TypeUrl: xds.RouteType, Nonce: r.cp.Nonce(), VersionInfo: "x", ResourceErrors: errs})
		}
		r.quiet()
		if got := r.errorOf(xds.RouteType, "r1"); got != "control plane: PermissionDenied: not yours" {
			r.Errorf("the dump says %q", got)
		}
		r.holds(c, xds.RouteType, "r1")
		r.cp.Set(xdstest.Route("r1", "c2"))
		r.quiet()
		if got := r.errorOf(xds.RouteType, "r1"); got != "" {
			r.Errorf("after a good one: %q", got)
		}
	})
}

// protocol.md 3.14: an error that a name is not found counts as its removal, but removes no cached
// resource.
func TestNotFoundFromAboveIsARemovalOfWhatIsNotHeld(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		if r.above != xdstest.Delta || r.below != xdstest.Delta {
			return // SotW cannot say what does not exist
		}
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.cp.Hold(xds.EndpointType)
		c.Subscribe(xds.EndpointType, "none")
		r.quiet()
		var errs []*discoveryv3.ResourceError
		for _, name := range []string{"none", "c1"} {
			errs = append(errs, &discoveryv3.ResourceError{
				ResourceName: &discoveryv3.ResourceName{Name: name},
				ErrorDetail:  &statuspb.Status{Code: int32(codes.NotFound)},
			})
		}
		r.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.EndpointType, Nonce: r.cp.Nonce(), ResourceErrors: errs})
		r.quiet()
		var removed []string
		for _, got := range c.Responses() {
			removed = append(removed, got.Removed...)
		}
		if !slices.Equal(removed, []string{"none"}) {
			r.Errorf("the client was told that %q do not exist, want only none", removed)
		}
		r.holds(c, xds.EndpointType, "c1")
	})
}

// protocol.md 7.3: malformed resources are NACKed at once, with every reason, and the valid ones of
// the response arrive.
func TestTheGoodPartOfAMalformedResponseArrives(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.quiet()
		good, nameless := xdstest.Pack(xdstest.Cluster("good", "")), &anypb.Any{TypeUrl: xds.ClusterType}
		wrong, twice := xdstest.Pack(xdstest.Listener("wrong", 1, "r")), xdstest.Pack(xdstest.Cluster("twice", ""))
		if r.above == xdstest.Delta {
			wrap := func(name string, body *anypb.Any) *discoveryv3.Resource {
				return &discoveryv3.Resource{Name: name, Version: "9", Resource: body}
			}
			r.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.ClusterType, Nonce: r.cp.Nonce(), Resources: []*discoveryv3.Resource{
				wrap("good", good), wrap("", nameless), wrap("wrong", wrong), wrap("twice", twice), wrap("twice", twice),
			}})
		} else {
			r.cp.SendRaw(0, &discoveryv3.DiscoveryResponse{
				TypeUrl: xds.ClusterType, Nonce: r.cp.Nonce(), VersionInfo: "9",
				Resources: []*anypb.Any{good, nameless, wrong, twice, xdstest.Pack(xdstest.Cluster("twice", "another"))},
			})
		}
		r.quiet()
		// A resource that is absent from a response with malformed resources is not removed.
		want := []string{"c1", "good"}
		if r.above == xdstest.SotW {
			want = append(want, "twice") // the first of them
		}
		r.holds(c, xds.ClusterType, want...)
		at := slices.IndexFunc(r.cp.Events(), func(e xdstest.Event) bool { return e.Kind == xdstest.Nack })
		if at < 0 {
			r.Fatalf("no NACK:\n%s", lines(r.cp.Events()))
		}
		reason := r.cp.Events()[at].Error.GetMessage()
		for _, want := range []string{"no name", "Listener", `"twice": 2 times`} {
			if !strings.Contains(reason, want) {
				r.Errorf("the NACK does not say %q: %s", want, reason)
			}
		}
	})
}
