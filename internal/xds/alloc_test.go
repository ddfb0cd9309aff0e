package xds

import (
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// A resource costs itself and its version, and, where it came without one, its name.
func TestAResourceCostsFewAllocations(t *testing.T) {
	name := strings.Repeat("cluster-", 10)
	body, err := anypb.New(&clusterv3.Cluster{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	wrapper := &discoveryv3.Resource{Name: name, Version: "1", Resource: body}
	now := time.Now()
	for what, tc := range map[string]struct {
		make func() (*Resource, error)
		want float64
	}{
		"Delta": {func() (*Resource, error) { return FromWrapper(ClusterType, wrapper, now) }, 2},
		"SotW":  {func() (*Resource, error) { return FromAny(ClusterType, "1", body, now) }, 3},
	} {
		allocs := testing.AllocsPerRun(100, func() {
			if _, err := tc.make(); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > tc.want {
			t.Errorf("%s: %v allocations, want %v", what, allocs, tc.want)
		}
	}
}
