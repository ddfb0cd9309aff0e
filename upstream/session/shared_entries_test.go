package session

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// push builds a response of n clusters.
func push(t *testing.T, n int) *discoveryv3.DiscoveryResponse {
	t.Helper()
	m := &discoveryv3.DiscoveryResponse{TypeUrl: xds.ClusterType}
	for i := range n {
		body, err := anypb.New(&clusterv3.Cluster{Name: fmt.Sprint("c", i), EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: "s"},
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}})
		if err != nil {
			t.Fatal(err)
		}
		m.Resources = append(m.Resources, body)
	}
	return m
}

func subscribed() *Session {
	s := New(Config{Form: xds.SotW})
	s.Subscribe(xds.ClusterType, true, nil, nil)
	s.Next(time.Now())
	return s
}

// The result does not depend on whether entries are shared with the previous response, changed,
// removed, repeated, or of another pointer.
func TestAnEntryThatIsSharedIsReadAsAnewOne(t *testing.T) {
	now := time.Unix(1e9, 0)
	first := push(t, 5)
	second := proto.CloneOf(first)
	copy(second.Resources, first.Resources) // shared
	second.Resources[1] = push(t, 9).Resources[8]
	second.Resources[2] = proto.CloneOf(first.Resources[2])
	second.Resources = append(second.Resources[:4], second.Resources[0])
	shared, cloned := subscribed(), subscribed()
	for i, m := range []*discoveryv3.DiscoveryResponse{first, second, first} {
		m.VersionInfo, m.Nonce = fmt.Sprint("v", i), fmt.Sprint("n", i)
		got, err := shared.SotW(m, now)
		want, wantErr := cloned.SotW(proto.CloneOf(m), now)
		if err != nil || wantErr != nil {
			t.Fatal(err, wantErr)
		}
		if len(got.Resources) != len(want.Resources) || len(got.Errors) != len(want.Errors) || !reflect.DeepEqual(got.Removed, want.Removed) || got.Complete != want.Complete {
			t.Fatalf("response %d: got %+v, want %+v", i, got, want)
		}
		for j, r := range got.Resources {
			w := want.Resources[j]
			if r.Name != w.Name || r.Version != w.Version || r.UpstreamVersion != w.UpstreamVersion || r.EDSName != w.EDSName || !proto.Equal(r.Body, w.Body) {
				t.Errorf("response %d: got %+v, want %+v", i, r, w)
			}
		}
	}
}

// A push of cached resources costs three allocations for the response, and none for a resource.
func TestAPushOfCachedResourcesAllocatesLittle(t *testing.T) {
	const many = 2000
	s, m := subscribed(), push(t, many)
	i := 0
	allocs := testing.AllocsPerRun(10, func() {
		i++
		m.VersionInfo, m.Nonce = fmt.Sprint(i), fmt.Sprint(i)
		if _, err := s.SotW(m, time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 10 {
		t.Errorf("%v allocations for %d resources", allocs, many)
	}
}
