package agent

import (
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// design.md section 3: the key of a group is node id, user agent and GENERATOR.
func TestClientsOfOneKindShareAnUpstreamStreamAndOthersDoNot(t *testing.T) {
	grpcClient := node("web-1")
	grpcClient.UserAgentName = "gRPC Go"
	elsewhere := node("web-1")
	elsewhere.Locality = &corev3.Locality{Region: "other"}
	for name, tc := range map[string]struct {
		other   *corev3.Node
		streams int
	}{
		"the same node":              {node("web-1"), 1},
		"other metadata":             {node("web-1", "A", "1"), 1},
		"another locality":           {elsewhere, 1},
		"another id":                 {node("web-2"), 2},
		"another user agent":         {grpcClient, 2},
		"another generator":          {node("web-1", "GENERATOR", "grpc"), 2},
		"an empty generator is none": {node("web-1", "GENERATOR", ""), 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBothForms(t, func(r *rig) {
				r.start()
				a, b := r.client(xdstest.ClientConfig{Node: node("web-1")}), r.client(xdstest.ClientConfig{Node: tc.other})
				a.Subscribe(xds.ClusterType)
				r.quiet()
				b.Subscribe(xds.ClusterType)
				r.pass(2 * time.Second)
				r.holds(a, xds.ClusterType, "c1")
				r.holds(b, xds.ClusterType, "c1")
				r.streams(tc.streams, tc.streams)
				if got := len(r.agent.groups.Members()); got != tc.streams {
					r.Errorf("%d groups, want %d", got, tc.streams)
				}
			})
		})
	}
}

// protocol.md 8.9: untouched, but for the two features that the agent has.
func TestTheNodeOfAClientIsForwardedUntouched(t *testing.T) {
	full := node("web-1", "ISTIO_VERSION", "1.30", "GENERATOR", "x")
	full.Locality = &corev3.Locality{Region: "r", Zone: "z", SubZone: "s"}
	full.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
		Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40},
	}}
	full.Extensions = []*corev3.Extension{{Name: "envoy.filters.http.router", Category: "envoy.filters.http"}}
	full.ClientFeatures = []string{"xds.config.resource-in-sotw", "envoy.lb.does_not_support_overprovisioning"}
	full.ProtoReflect().SetUnknown([]byte{0xfa, 0x3e, 1, 'x'}) // field 1007, of a later Envoy
	want := proto.CloneOf(full)
	want.ClientFeatures = append(want.ClientFeatures, "xds.config.supports-resource-ttl")
	inBothForms(t, func(r *rig) {
		r.start()
		c := r.client(xdstest.ClientConfig{Node: full})
		c.Subscribe(xds.ClusterType)
		r.quiet()
		asked := r.cp.Requests(xds.ClusterType)
		if len(asked) == 0 || !proto.Equal(asked[0].Node, want) {
			r.Errorf("got %v, want %v", asked, want)
		}
	})
}

func TestTheAgentSubscribesBeforeAnyClient(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = &corev3.Node{Id: "web-1", Cluster: "web"}
		r.start()
		r.pass(2 * time.Second)
		r.streams(1, 1)
		for _, typeURL := range []string{xds.ClusterType, xds.ListenerType} {
			asked := r.cp.Requests(typeURL)
			if len(asked) == 0 || len(asked[0].Names)+len(asked[0].Subscribe) > 0 {
				r.Errorf("%s: asked %v, want a wildcard", xds.Short(typeURL), asked)
			}
		}
		if n := r.cp.Requests(xds.ClusterType)[0].Node; n.GetId() != "web-1" || n.GetCluster() != "web" || n.GetUserAgentName() != "envoy" {
			r.Errorf("asked with %v", n)
		}
		// Nobody needs the control plane any more for what was fetched.
		r.cp.Stop()
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.ClusterType)
		c.Subscribe(xds.ListenerType)
		r.quiet()
		r.holds(c, xds.ClusterType, "c1")
		r.holds(c, xds.ListenerType, "l1")
		if got := len(r.agent.groups.Members()); got != 1 {
			r.Errorf("%d groups, want the adopted one alone", got)
		}
	})
}

// What was fetched before is kept, though no client comes for a long time.
func TestWhatWasFetchedWaitsForAClient(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node, r.cfg.Group.Cache.Linger = node("web-1"), time.Minute
		r.start()
		r.pass(24 * time.Hour)
		r.streams(1, 1)
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.ClusterType)
		r.quiet()
		r.holds(c, xds.ClusterType, "c1")
		r.streams(1, 1)
	})
}

// An Envoy that is there already connects as soon as it can.
func TestAClientThatIsThereAtOnceJoinsThePrefetchedGroup(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("web-1")
		r.start()
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.ClusterType)
		r.pass(2 * time.Second)
		r.holds(c, xds.ClusterType, "c1")
		r.streams(1, 1)
	})
}

func TestAClientWithTheConfiguredNodeAdoptsTheGroupAsItIs(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("web-1", "A", "1")
		r.start()
		r.pass(2 * time.Second)
		same := node("web-1", "A", "1")
		same.Extensions = []*corev3.Extension{{Name: "x"}} // what a configured node cannot have
		c := r.client(xdstest.ClientConfig{Node: same})
		c.Subscribe(xds.ClusterType)
		r.pass(2 * time.Second)
		r.holds(c, xds.ClusterType, "c1")
		r.streams(1, 1)
	})
}

func TestAClientWhoseNodeDiffersReplacesTheConfiguredOne(t *testing.T) {
	located := node("web-1")
	located.Locality = &corev3.Locality{Zone: "z"}
	other := node("web-1")
	other.Cluster = "other"
	for name, differs := range map[string]*corev3.Node{
		"metadata": node("web-1", "A", "2"), "locality": located, "cluster": other,
	} {
		t.Run(name, func(t *testing.T) {
			inBothForms(t, func(r *rig) {
				r.cfg.Node = node("web-1")
				r.start()
				r.pass(2 * time.Second)
				c := r.client(xdstest.ClientConfig{Node: differs})
				c.Subscribe(xds.ClusterType)
				c.Subscribe(xds.ListenerType)
				r.pass(time.Minute)
				r.streams(1, 2)
				var second *corev3.Node
				for _, e := range slices.Backward(r.cp.Events()) {
					if e.Stream == 2 && e.Node != nil {
						second = e.Node
					}
				}
				want := proto.CloneOf(differs)
				want.ClientFeatures = []string{"xds.config.resource-in-sotw", "xds.config.supports-resource-ttl"}
				if !proto.Equal(second, want) {
					r.Errorf("the second stream is of %v, want %v", second, want)
				}
				r.holds(c, xds.ClusterType, "c1")
				r.holds(c, xds.ListenerType, "l1")
				for _, got := range c.Responses() {
					if len(got.Removed) > 0 || len(got.Resources) == 0 {
						r.Errorf("the client was told %s", got)
					}
				}
				// Only the first client adopts.
				again := r.client(xdstest.ClientConfig{Node: node("web-1", "A", "3")})
				again.Subscribe(xds.ClusterType)
				r.pass(time.Minute)
				r.streams(1, 2)
			})
		})
	}
}

// What the flags say of the node fills what an Envoy of that name leaves out, and
// nothing else.
func TestTheConfiguredNodeFillsWhatAClientLeavesOut(t *testing.T) {
	configured := node("web-1", "A", "1", "B", "2")
	configured.Locality, configured.UserAgentName = &corev3.Locality{Zone: "z"}, ""
	full := node("web-1", "A", "3")
	full.Cluster, full.Locality = "own", &corev3.Locality{Zone: "y"}
	filled := node("web-1", "A", "3", "B", "2")
	filled.Cluster, filled.Locality = full.Cluster, full.Locality
	for _, c := range []struct {
		name      string
		says, has *corev3.Node
	}{
		{"it says nothing", &corev3.Node{}, configured},
		{"it says its id", &corev3.Node{Id: "web-1"}, configured},
		{"it says everything but one", full, filled},
		{"it is another", node("web-2"), node("web-2")},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := proto.CloneOf(c.says)
			if got := completed(c.says, configured); !proto.Equal(got, c.has) {
				t.Errorf("%v becomes %v, want %v", c.says, got, c.has)
			}
			if !proto.Equal(c.says, before) {
				t.Errorf("what the client said was changed into %v", c.says)
			}
		})
	}
	if got := completed(full, nil); got != full {
		t.Errorf("without a configured node %v became %v", full, got)
	}
}

// design.md I11: a group ends with the leases of its last client.
func TestAGroupClosesAfterTheLingerTime(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Group.Cache.Linger = 10 * time.Minute
		r.start()
		stays, goes := r.client(xdstest.ClientConfig{Node: node("stays")}), r.client(xdstest.ClientConfig{Node: node("goes")})
		stays.Subscribe(xds.ClusterType)
		goes.Subscribe(xds.ClusterType)
		r.pass(2 * time.Second)
		r.streams(2, 2)
		goes.Disconnect()
		r.pass(9 * time.Minute)
		r.streams(2, 2)
		if err := goes.Connect(r.Context()); err != nil { // in time: it is the same group
			r.Fatal(err)
		}
		r.pass(time.Hour)
		r.streams(2, 2)
		goes.Disconnect()
		r.pass(11 * time.Minute)
		r.streams(1, 2)
		if got := r.agent.groups.Members(); len(got) != 1 || got[0].Key().Node != "stays" {
			r.Errorf("%d groups", len(got))
		}
		// It comes back as a new one.
		if err := goes.Connect(r.Context()); err != nil {
			r.Fatal(err)
		}
		r.pass(2 * time.Second)
		r.holds(goes, xds.ClusterType, "c1")
		r.holds(stays, xds.ClusterType, "c1")
		r.streams(2, 3)
	})
}
