package controlplane

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// The time between two exchanges of all clusters for others, and the load meanwhile: so many connections, with a request on
// each of them once per interval.
const (
	swapInterval    = 250 * time.Millisecond
	requestInterval = 2 * time.Millisecond
	connections     = 2
)

// A snapshot cache that is not one for ADS sends the types in any order, and removes the old clusters together with the
// arrival of the new ones. No request fails for it behind the agent (protocol.md 4.7).
func TestNoRequestFailsWhileTheSnapshotsClustersAreSwapped(t *testing.T) {
	inAllForms(t, func(w *world) {
		s := newSnapshots(false)
		w.swaps(s, 60, func(generation int, to resources) error { return s.set(strconv.Itoa(generation), to) })
	})
}

// Linear caches are changed one after the other. Routes that come 20 ms before the clusters that they lead to fail no
// request behind the agent.
func TestNoRequestFailsThoughRoutesComeBeforeTheirClusters(t *testing.T) {
	inAllForms(t, func(w *world) {
		s := newLinears()
		w.swaps(s, 20, func(_ int, to resources) error {
			if err := change(s.of[resource.RouteType], to[resource.RouteType]); err != nil {
				return err
			}
			time.Sleep(20 * time.Millisecond)
			return s.set("", to)
		})
	})
}

// swaps exchanges all clusters several times under load, and fails the test if a request fails.
func (w *world) swaps(s store, times int, set func(generation int, to resources) error) {
	w.Helper()
	backend, port := w.Backend("served"), w.FreePort()
	w.Check(s.set("0", generationOf(0, uint32(port), backend)))
	w.serve(s)
	envoy := w.startAgent().Envoy("envoy", w.below)
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	w.Serves(envoy, url, "served")

	load := testbed.StartLoad(url, requestInterval, connections)
	for i := range times {
		time.Sleep(swapInterval)
		w.Check(set(i+1, generationOf(i+1, uint32(port), backend)))
	}
	w.Check(envoy.Wait(limit, func() error {
		members, err := envoy.Stat(fmt.Sprintf("cluster.generation-%d-0.membership_total", times))
		if err == nil && members != 1 {
			err = fmt.Errorf("the last cluster has %d members, want 1", members)
		}
		return err
	}))
	if err := load.Stop(); err != nil {
		w.Error(err)
	}
	w.neverNacked()
	w.NeverRejected("Envoy", envoy)
	w.Logf("%d of %d requests failed in %d swaps", load.Failed(), load.Sent(), times)
}

// generationOf builds three clusters that no other generation has, and a route to the first of them.
func generationOf(generation int, port uint32, backend string) resources {
	out := resources{
		resource.ListenerType: {xdstest.Listener("ingress", port, "ingress")},
		resource.RouteType:    {xdstest.Route("ingress", fmt.Sprintf("generation-%d-0", generation))},
	}
	for i := range 3 {
		name := fmt.Sprintf("generation-%d-%d", generation, i)
		out[resource.ClusterType] = append(out[resource.ClusterType], xdstest.Cluster(name, ""))
		out[resource.EndpointType] = append(out[resource.EndpointType], xdstest.CLA(name, backend))
	}
	return out
}
