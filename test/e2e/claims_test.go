package e2e

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// An agent that remembers nothing is started beside an Envoy that serves. What Envoy says
// it has is accepted, so that nothing stays unanswered; and when Envoy refuses the next
// change and is restarted, it gets what it had. When the control plane takes the change
// back, nothing is wrong any more.
func TestAnAgentWithoutStateLearnsWhatEnvoyAccepted(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.agent.Kill()
		w.runAgent()
		w.stat("control_plane.connected_state", 1)
		w.standings("nothing is pending", func(counts map[string]int) bool {
			return counts["pending"] == 0 && counts["accepted"] == 6
		})
		// A listener on a port that is taken.
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		w.check(err)
		defer func() { _ = taken.Close() }()
		w.cp.Set(w.listenerAt(taken.Addr().String()))
		w.standings("the listener is rejected", func(counts map[string]int) bool { return counts["rejected"] == 1 })
		w.serves("v1")
		w.envoy.Kill()
		w.envoy = w.startEnvoy()
		w.serves("v1")
		w.cp.Set(xdstest.Listener("ingress", uint32(w.port), "ingress"))
		w.standings("nothing is rejected", func(counts map[string]int) bool {
			return counts["rejected"] == 0 && counts["accepted"] == 6
		})
		w.serves("v1")
	})
}

// listenerAt is the listener "ingress" at another address.
func (w *world) listenerAt(addr string) *listenerv3.Listener {
	w.Helper()
	_, port, err := net.SplitHostPort(addr)
	w.check(err)
	n, err := strconv.ParseUint(port, 10, 16)
	w.check(err)
	return xdstest.Listener("ingress", uint32(n), "ingress")
}

// standings waits until the counts of resources, by their standing, are as they should be.
func (w *world) standings(what string, are func(counts map[string]int) bool) {
	w.Helper()
	w.check(testbed.Eventually(limit, func() error {
		if counts := w.counts(); !are(counts) {
			return fmt.Errorf("%s: not yet: %v", what, counts)
		}
		return nil
	}))
}

// stay waits until the counts of resources by their standing are as they should be, and have stayed so for some time.
func (w *world) stay(what string, d time.Duration, are func(counts map[string]int) bool) {
	w.Helper()
	var since time.Time
	w.standings(what+", and stay it", func(counts map[string]int) bool {
		switch {
		case !are(counts):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		return !since.IsZero() && time.Since(since) >= d
	})
}

// counts returns the counts of resources by their standing; none if the agent does not answer yet.
func (w *world) counts() map[string]int {
	w.Helper()
	counts := make(map[string]int)
	status, err := w.client().Status(w.Context())
	if err != nil {
		return counts
	}
	for _, g := range status.Groups {
		for _, t := range g.Types {
			for standing, n := range t.Resources {
				counts[standing] += n
			}
		}
	}
	return counts
}

// Three restarts of an Envoy that is no child are reported, and it is served what is newest
// all the same.
func TestRestartsOnPurposeAreReportedAndChangeNothing(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start()
	w.setRoute("v2")
	w.serves("v2")
	for range 4 {
		w.check(w.envoy.Stop(10 * time.Second))
		w.envoy = w.startEnvoy()
		w.serves("v2")
	}
	status, err := w.client().Status(t.Context())
	w.check(err)
	g := groupOf(status)
	if g.ShortLives < 3 || g.Fallback != nil {
		t.Errorf("%d short lives, fallback %+v", g.ShortLives, g.Fallback)
	}
	if code, out := run(t, "resume", "--admin", "unix:"+w.path("admin.sock")); code != 1 {
		t.Errorf("resume of nothing: %d %s", code, out)
	}
}

func groupOf(s admin.Status) admin.Group {
	for _, g := range s.Groups {
		if g.UserAgent == xds.EnvoyUserAgent {
			return g
		}
	}
	return admin.Group{}
}
