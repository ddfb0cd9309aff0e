package session

import (
	"fmt"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Config.Cached builds a map of everything under the lock of the state. It must be called once,
// however many names are looked up.
func TestCachedNamesAreListedOnceForAllLateNames(t *testing.T) {
	const names = 1000
	cached := make(map[string]string)
	var late []string
	for i := range names {
		name := fmt.Sprintf("c%d", i)
		cached[name] = "1"
		late = append(late, name)
	}
	listed := 0
	now := time.Unix(1e9, 0)
	s := New(Config{Form: xds.SotW, Cached: func(string) map[string]string { listed++; return cached }})
	s.Subscribe(xds.ClusterType, false, []string{"first"}, nil)
	s.Next(now)
	s.Subscribe(xds.ClusterType, false, late, nil)
	s.Next(now)
	for range 3 {
		listed = 0
		if _, err := s.SotW(&discoveryv3.DiscoveryResponse{TypeUrl: xds.ClusterType, Nonce: "n", VersionInfo: "1"}, now); err != nil {
			t.Fatal(err)
		}
		if listed > 1 {
			t.Errorf("a response without %d names that are cached: listed %d times", names, listed)
		}
	}
	listed = 0
	s.Overdue(now.Add(time.Hour))
	if listed > 1 {
		t.Errorf("when %d names are overdue: listed %d times", names, listed)
	}
}
