package cache

import (
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// edsCluster is a cluster that takes its endpoints under a name.
func edsCluster(version, endpoints string) *xds.Resource {
	return &xds.Resource{
		Type: xds.ClusterType, Name: "c", Version: version, EDSName: endpoints,
		Body: &anypb.Any{TypeUrl: xds.ClusterType},
	}
}

// If the control plane disconnected between a cluster and its endpoints, the client would have a
// cluster that cannot warm.
func TestTheEndpointsOfASubscribedClusterAreSubscribedTo(t *testing.T) {
	c := New(Config{})
	w := c.Watch("client")
	w.Subscribe(xds.ClusterType, true, nil, nil)
	in := c.Subscriptions()
	in.Changes()
	told := func() (add, drop []string) {
		for _, want := range in.Changes() {
			if want.Type == xds.EndpointType {
				return want.Subscribe, want.Unsubscribe
			}
		}
		return nil, nil
	}
	check := func(when, wantAdd, wantDrop string) {
		t.Helper()
		add, drop := told()
		if one(add) != wantAdd || one(drop) != wantDrop {
			t.Errorf("%s: more %q, less %q; want %q and %q", when, add, drop, wantAdd, wantDrop)
		}
	}
	put := func(r *xds.Resource) {
		c.Apply(xds.Update{Source: "s", Type: xds.ClusterType, Resources: []*xds.Resource{r}}, nil)
	}
	put(edsCluster("1", "a"))
	check("a cluster comes", "a", "")
	put(edsCluster("2", "a"))
	check("it changes", "", "")
	put(edsCluster("3", "b"))
	check("its endpoints have another name", "b", "a")
	w.Subscribe(xds.EndpointType, false, []string{"b"}, nil)
	check("a client asks for them too", "", "")
	c.Apply(xds.Update{Source: "s", Type: xds.ClusterType, Removed: []string{"c"}}, nil)
	check("the cluster goes", "", "")
	w.Subscribe(xds.EndpointType, false, nil, []string{"b"})
	check("the client no longer asks", "", "b")
}

func TestTheEndpointsOfAnUnsubscribedClusterAreNotSubscribedTo(t *testing.T) {
	c := New(Config{})
	w := c.Watch("client")
	w.Subscribe(xds.ClusterType, true, nil, nil)
	c.Apply(xds.Update{Source: "s", Type: xds.ClusterType, Resources: []*xds.Resource{edsCluster("1", "a")}}, nil)
	w.Subscribe(xds.ClusterType, false, nil, nil)
	for _, want := range c.Subscriptions().Changes() {
		if len(want.Subscribe) > 0 {
			t.Errorf("wanted: %v", want)
		}
	}
}

func one(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	if len(names) == 0 {
		return ""
	}
	return "several"
}
