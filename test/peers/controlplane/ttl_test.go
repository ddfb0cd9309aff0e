package controlplane

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// What is brief has this TTL, and the control plane refreshes it this often.
const (
	ttl       = 3 * time.Second
	heartbeat = time.Second
)

// Heartbeats of a snapshot cache keep what has a TTL. When the control plane is killed, that goes after its TTL and nothing
// else does; when the control plane is back, all of it is. go-control-plane knows TTLs in SotW only, and there is no direct
// Envoy to compare with: Envoy 1.40 crashes on these heartbeats in SotW (SIGSEGV), unless there is an agent between.
func TestHeartbeatsKeepWhatHasATTLUntilTheControlPlaneIsKilled(t *testing.T) {
	for _, below := range forms {
		t.Run("sotw above, "+below+" below", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "sotw", below)
			port := w.FreePort()
			s := &snapshots{cache.NewSnapshotCacheWithHeartbeating(w.ctx, false, everybody{}, silent, heartbeat)}
			w.Check(s.SetSnapshot(context.Background(), "peers", briefAndLasting(t, uint32(port), w.Backend("served"))))
			w.serve(s)
			agent := w.startAgent()
			envoy := agent.Envoy("envoy", below)
			url := fmt.Sprintf("http://127.0.0.1:%d/", port)
			w.Serves(envoy, url, "served")
			lasting := []string{"cluster lasting", "endpoints lasting", "listener lasting", "route lasting"}
			all := []string{
				"cluster brief", "cluster lasting", "endpoints brief", "endpoints lasting",
				"listener brief", "listener lasting", "route brief", "route lasting",
			}
			w.eventuallyHas(envoy, all)

			traffic := testbed.StartTraffic(url, 50*time.Millisecond)
			w.keeps(envoy, all, 3*ttl)
			if n := w.sent(resource.ClusterType); n < 5 {
				t.Errorf("%d responses with clusters in %s: there were no heartbeats", n, 3*ttl)
			}
			w.server.Stop()
			killed := time.Now()
			// The last heartbeat was at most one interval ago.
			w.keeps(envoy, all, ttl-heartbeat-500*time.Millisecond)
			w.eventuallyHas(envoy, lasting)
			w.Logf("what is brief is gone %s after the control plane", time.Since(killed).Round(100*time.Millisecond))
			w.keeps(envoy, lasting, time.Second)
			w.serve(s)
			w.eventuallyHas(envoy, all)
			w.keeps(envoy, all, 2*ttl)
			if err := traffic.Stop(); err != nil {
				t.Error(err)
			}
			w.neverNacked()
			w.NeverRejected("Envoy", envoy)
		})
	}
}

// briefAndLasting builds a listener, a route, a cluster and endpoints twice, of which those called brief have a TTL. Of
// routes Envoy keeps the last one whatever happens, so that theirs is that of the listener.
func briefAndLasting(t *testing.T, port uint32, backend string) *cache.Snapshot {
	t.Helper()
	brief := ttl
	out := make(map[resource.Type][]types.ResourceWithTTL)
	for name, ttl := range map[string]*time.Duration{"brief": &brief, "lasting": nil} {
		listener := xdstest.Listener(name, port, name)
		if ttl != nil {
			listener = xdstest.Listener(name, 1, name)
			listener.BindToPort = wrapperspb.Bool(false)
		}
		for typeURL, r := range map[resource.Type]types.Resource{
			resource.ListenerType: listener, resource.RouteType: xdstest.Route(name, name),
			resource.ClusterType: xdstest.Cluster(name, ""), resource.EndpointType: xdstest.CLA(name, backend),
		} {
			out[typeURL] = append(out[typeURL], types.ResourceWithTTL{Resource: r, TTL: ttl})
		}
	}
	snapshot, err := cache.NewSnapshotWithTTLs("1", out)
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// eventuallyHas waits until an Envoy has what is wanted and nothing else.
func (w *world) eventuallyHas(e *testbed.Envoy, want []string) {
	w.Helper()
	w.Check(e.Wait(limit, func() error {
		_, err := has(e, want)
		return err
	}))
}

// keeps watches for a while that an Envoy has what is wanted and nothing else.
func (w *world) keeps(e *testbed.Envoy, want []string, during time.Duration) {
	w.Helper()
	begun := time.Now()
	for time.Since(begun) < during {
		if _, err := has(e, want); err != nil {
			w.Fatalf("after %s of %s: %v", time.Since(begun).Round(time.Millisecond), during, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
