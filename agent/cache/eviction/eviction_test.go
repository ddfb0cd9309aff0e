package eviction

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// The oldest that nobody subscribes to goes, and none while something is held back; the endpoints of a cluster are subscribed to as long
// as the cluster is.
func TestTheOldestWithoutASubscriptionGoes(t *testing.T) {
	var u *Unreferenced
	var s *state.State
	union := subscriptions.New(time.Minute, func(k xds.Key) {
		if k.Type == xds.ClusterType {
			u.Subscribed(s.Table(k.Type), k.Name)
		}
	})
	s = state.New(union, nil, func() {})
	clusters := s.Table(xds.ClusterType)
	var evicted []string
	keeping := false
	u = New(s, 2, func() bool { return keeping }, func(k xds.Key) {
		evicted = append(evicted, k.Name)
		s.Table(k.Type).Drop(k.Name)
	})
	put := func(name string) {
		r := &xds.Resource{Type: xds.ClusterType, Name: name, Version: "1", EDSName: "of " + name}
		u.Update(clusters, name, clusters.Put(r, contents.Origin{}, nil).Entry)
	}
	client := union.Open()
	client.Subscribe(xds.ClusterType, false, []string{"a"}, nil)
	for _, name := range []string{"a", "b", "c", "d"} {
		put(name)
	}
	endpoints := slices.Sorted(s.Table(xds.EndpointType).Names.Clusters())
	if !slices.Equal(evicted, []string{"b"}) || u.Len() != 2 || !slices.Equal(endpoints, []string{"of a"}) {
		t.Errorf("%v went, %d are left, endpoints of %v", evicted, u.Len(), endpoints)
	}
	client.Subscribe(xds.ClusterType, false, []string{"c"}, []string{"a"})
	put("e")
	if endpoints = slices.Sorted(s.Table(xds.EndpointType).Names.Clusters()); !slices.Equal(evicted, []string{"b", "d"}) || !slices.Equal(endpoints, []string{"of c"}) {
		t.Errorf("%v went, endpoints of %v", evicted, endpoints)
	}
	keeping = true
	put("f")
	put("g")
	if len(evicted) != 2 {
		t.Errorf("%v went while something is held back", evicted)
	}
	keeping = false
	u.UpdateAll(false)
	if len(evicted) != 4 || clusters.Entry("c") == nil {
		t.Errorf("%v went", evicted)
	}
}
