package controlplane

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// How often all clusters are exchanged for others, how long after one another, and how often a request is made.
const (
	swaps           = 60
	swapInterval    = 250 * time.Millisecond
	requestInterval = 5 * time.Millisecond
)

// A snapshot cache that is not one for ADS sends the types in any order: in half of all swaps the route comes before the
// cluster that it leads to. No request fails for it behind the agent (protocol.md 4.7).
func TestNoRequestFailsWhileTheSnapshotsClustersAreSwapped(t *testing.T) {
	inAllForms(t, func(w *world) {
		backend, port := w.Backend("served"), w.FreePort()
		s := newSnapshots(false)
		set := func(generation int) {
			w.Helper()
			w.Check(s.set(strconv.Itoa(generation), generationOf(generation, uint32(port), backend)))
		}
		set(0)
		w.serve(s)
		envoy := w.startAgent().Envoy("envoy", w.below)
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		w.Serves(envoy, url, "served")

		traffic := testbed.StartTraffic(url, requestInterval)
		for i := range swaps {
			time.Sleep(swapInterval)
			set(i + 1)
		}
		w.Check(envoy.Wait(limit, func() error {
			members, err := envoy.Stat(fmt.Sprintf("cluster.generation-%d-0.membership_total", swaps))
			if err == nil && members != 1 {
				err = fmt.Errorf("the last cluster has %d members, want 1", members)
			}
			return err
		}))
		if err := traffic.Stop(); err != nil {
			w.Error(err)
		}
		w.neverNacked()
		w.NeverRejected("Envoy", envoy)
		w.Logf("%d of %d requests failed in %d swaps", traffic.Failed, traffic.Sent, swaps)
	})
}

// generationOf builds three clusters that no other generation has, and a route to the first of them.
func generationOf(generation int, port uint32, backend string) resources {
	out := resources{
		resource.ListenerType: {xdstest.Listener("ingress", port, "ingress")},
		resource.RouteType:    {xdstest.Route("ingress", fmt.Sprintf("generation-%d-0", generation))},
	}
	for i := range 3 {
		name := fmt.Sprintf("generation-%d-%d", generation, i)
		out[resource.ClusterType] = append(out[resource.ClusterType], types.Resource(xdstest.Cluster(name, "")))
		out[resource.EndpointType] = append(out[resource.EndpointType], types.Resource(xdstest.CLA(name, backend)))
	}
	return out
}
