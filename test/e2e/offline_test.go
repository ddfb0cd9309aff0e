package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// What holdfast is for: agent and Envoy are killed and start again with no control
// plane reachable, and Envoy serves from what was kept on disk. When the control
// plane is back, what it changed meanwhile swaps in without a failed request.
func TestAgentAndEnvoyStartWithoutAControlPlane(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		w.setRoute("v2")
		w.serves("v2")
		w.saved()
		w.cp.Stop()
		w.envoy.Kill()
		w.agent.Kill()
		w.runAgent()
		w.envoy = w.startEnvoy()
		w.serves("v2")
		w.neverWaited()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.setRoute("v1")
		w.restartControlPlane()
		w.serves("v1")
		w.check(traffic.Stop())
		w.neverRemoved()
	})
}

// saved waits until everything that was accepted is on disk.
func (w *world) saved() {
	w.Helper()
	began := time.Now() // what was accepted until now may not be written yet
	w.storage("quiet", func(s *admin.Storage) bool {
		return s != nil && s.Durable && time.Since(s.Committed) > 500*time.Millisecond && time.Since(began) > 500*time.Millisecond
	})
}

// The control plane goes away and comes back, again and again: a hundred times over
// the four combinations. Each time something has changed when it is back.
func TestTheControlPlaneGoesAndComesAHundredTimes(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		traffic := testbed.StartTraffic(w.url, requestInterval)
		for i := range 25 {
			w.cp.Stop()
			text := []string{"v2", "v1"}[i%2]
			w.setRoute(text)
			w.restartControlPlane()
			w.serves(text)
		}
		w.check(traffic.Stop())
		w.neverRemoved()
		w.neverWaited()
		w.Logf("%d requests, none failed", traffic.Sent)
	})
}

// The agent is killed without a warning, fifty times, half of them while the control
// plane is away; Envoy goes on with what it has, and is told of changes afterwards.
func TestTheAgentIsKilledFiftyTimes(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		w.saved()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		for i := range testbed.Times(13, 4) {
			away := i%2 == 1
			if away {
				w.cp.Stop()
			}
			w.agent.Kill()
			w.runAgent()
			w.stat("control_plane.connected_state", 1)
			if away {
				w.restartControlPlane()
			}
			if i%4 == 3 {
				text := []string{"v1", "v2"}[i/4%2]
				w.setRoute(text)
				w.serves(text)
			}
		}
		w.check(traffic.Stop())
		w.neverRemoved()
		w.stat("cluster_manager.warming_clusters", 0)
		w.Logf("%d requests, none failed", traffic.Sent)
	})
}

// Agent and Envoy are killed together, twenty times, with the control plane away all
// the while: each time Envoy serves again, from what is on disk.
func TestAgentAndEnvoyAreKilledTogetherTwentyTimes(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		w.saved()
		w.cp.Stop()
		for range 5 {
			w.envoy.Kill()
			w.agent.Kill()
			begun := time.Now()
			w.runAgent()
			w.envoy = w.startEnvoy()
			w.serves("v1")
			w.Logf("from the start of both to the first answer: %s", time.Since(begun).Round(time.Millisecond))
			w.neverWaited()
		}
		w.setRoute("v2")
		w.restartControlPlane()
		w.serves("v2")
	})
}

// The disk is full in the middle of it all: nothing stops, the status says so, and
// when there is room again everything is on disk.
func TestADiskThatIsFullStopsNothing(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	disk := w.path("disk")
	w.check(os.Mkdir(disk, 0o700))
	// A small disk, which exists for the agent alone and goes with it.
	w.agentVia = testbed.OnDisk(disk, "256k")
	w.start("--state-dir", filepath.Join(disk, "state"))
	w.saved()
	traffic := testbed.StartTraffic(w.url, requestInterval)
	w.check(testbed.FillDisk(w.agent.PID(), disk))
	for i := range 200 {
		w.cp.Set(xdstest.CLA(fmt.Sprintf("filler-%d", i), "127.0.0.1:1"))
		w.cp.Set(xdstest.Cluster(fmt.Sprintf("filler-%d", i), ""))
	}
	w.setRoute("v2")
	w.serves("v2")
	w.storage("in memory only", func(s *admin.Storage) bool {
		return !s.Durable && strings.Contains(s.Error, "no space left")
	})
	w.check(os.Remove(fmt.Sprintf("/proc/%d/root%s/filler", w.agent.PID(), disk)))
	w.storage("on disk again", func(s *admin.Storage) bool { return s.Durable })
	w.check(traffic.Stop())
	w.saved()
	w.cp.Stop()
	w.envoy.Kill()
	w.envoy = w.startEnvoy()
	w.serves("v2")
}

// storage waits until the agent says something of its disk.
func (w *world) storage(what string, holds func(*admin.Storage) bool) {
	w.Helper()
	w.check(testbed.Eventually(3*limit, func() error {
		s, err := w.status()
		if err == nil && !holds(s.Storage) {
			err = fmt.Errorf("the state is not %s: %+v", what, s.Storage)
		}
		return err
	}))
}

// status asks the agent for what it knows.
func (w *world) status() (s admin.Status, err error) {
	w.Helper()
	code, out := run(w.T, "status", "-o", "json", "--admin", "unix:"+w.path("admin.sock"))
	if code != 0 {
		return s, fmt.Errorf("status: %s", out)
	}
	return s, json.Unmarshal([]byte(out), &s)
}

// The first upstream is away and the second takes over with other versions, and back:
// no request fails, and nothing is removed that both have.
func TestTheSecondControlPlaneTakesOverAndTheFirstComesBack(t *testing.T) {
	inAllForms(t, func(w *world) {
		second := xdstest.New(xdstest.Config{})
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		w.check(err)
		second.Serve(lis)
		t.Cleanup(second.Stop)
		second.Set(w.mesh("c2")...)
		w.start("--upstream", lis.Addr().String(), "--failover-after", "500ms")
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.cp.Stop()
		w.serves("v2") // what the second says
		w.restartControlPlane()
		w.serves("v1")
		w.check(traffic.Stop())
		w.neverRemoved()
	})
}

// A resource with a TTL goes when nobody refreshes it, and only then: the listener
// that steers traffic to "v2" does not outlive the control plane.
func TestATTLEndsWhatNobodyRefreshes(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		port := w.freePort()
		w.cp.Set(&discoveryv3.Resource{
			Name: "brief", Ttl: durationpb.New(3 * time.Second),
			Resource: xdstest.Pack(xdstest.Listener("brief", uint32(port), "ingress")),
		})
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		w.answers(url, http.StatusOK)
		w.cp.Stop()
		w.stat("listener_manager.total_listeners_active", 1)
		if _, _, err := testbed.Get(url); err == nil {
			t.Error("the listener is still there")
		}
		w.serves("v1")
		w.envoy.Kill()
		w.agent.Kill()
		w.runAgent()
		w.envoy = w.startEnvoy()
		w.serves("v1")
		w.stat("listener_manager.total_listeners_active", 1)
	})
}

// A control plane that is there and slow: what was kept is served after
// --restore-after at the latest, and what it says then swaps in.
func TestASlowControlPlaneDoesNotHoldEnvoyBack(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"), "--restore-after", "500ms")
		w.saved()
		w.envoy.Kill()
		w.agent.Kill()
		w.cp.Silent(true)
		w.setRoute("v2")
		w.runAgent()
		w.envoy = w.startEnvoy()
		w.serves("v1") // what was kept: the control plane has said nothing
		w.neverWaited()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.cp.Silent(false)
		w.serves("v2")
		w.check(traffic.Stop())
		w.neverRemoved()
	})
}

// A stream that is open and silent is not trusted for ever: a second one is opened
// beside it, and takes over when it answers. Envoy notices nothing.
func TestASilentStreamIsReplacedByAnother(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--stale-after", "1s")
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.cp.Silent(true)
		streams := func(want int) {
			w.check(testbed.Eventually(limit, func() error {
				if now, _ := w.cp.Streams(); now != want {
					return fmt.Errorf("%d streams, want %d", now, want)
				}
				return nil
			}))
		}
		streams(2)
		w.setRoute("v2")
		w.cp.Silent(false)
		w.serves("v2")
		streams(1)
		w.check(traffic.Stop())
		w.neverRemoved()
	})
}

// --max-stale: an Envoy that comes anew is not served what is older, and /readyz says
// why; when the control plane is back it is served.
func TestWhatIsOlderThanMaxStaleIsNotServed(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"), "--max-stale", "2s")
		w.saved()
		w.cp.Stop()
		w.envoy.Kill()
		w.agent.Kill()
		w.runAgent()
		w.check(testbed.Eventually(limit, func() error {
			s, err := w.status()
			if err != nil {
				return err
			}
			for _, c := range s.Conditions {
				if !c.OK && strings.Contains(c.Reason, "longer than --max-stale 2s") {
					return nil
				}
			}
			return fmt.Errorf("it is not said to be too old: %+v", s.Conditions)
		}))
		w.envoy = w.startEnvoy()
		w.stat("control_plane.connected_state", 1)
		time.Sleep(time.Second) // room for what must not happen
		if n := w.value("cluster_manager.cds.update_success") + w.value("listener_manager.lds.update_success"); n != 0 {
			t.Errorf("Envoy was given %d updates", n)
		}
		w.restartControlPlane()
		w.serves("v1")
	})
}

// A state of a later version, and one that is damaged, do not stop anything: they are
// set aside, and what can be read is served.
func TestAStateThatCannotBeReadIsSetAside(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start("--state-dir", w.path("state"))
	w.saved()
	w.cp.Stop()
	w.envoy.Kill()
	w.agent.Kill()
	later := filepath.Join(w.path("state"), "state-999.log")
	w.check(os.WriteFile(later, []byte("not of this version"), 0o600))
	w.runAgent()
	w.envoy = w.startEnvoy()
	w.serves("v1")
	w.storage("said to be set aside", func(s *admin.Storage) bool {
		return s.Durable && slices.Contains(s.Aside, "state-999.log.foreign")
	})
}
