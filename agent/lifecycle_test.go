package agent

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

func TestAnAgentWhoseLoopsTurnIsAlive(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.make()
		if err := r.agent.Live(); err != nil {
			t.Errorf("before the start: %v", err)
		}
		r.run()
		r.pass(time.Hour)
		if err := r.agent.Live(); err != nil {
			t.Error(err)
		}
		r.client(xdstest.ClientConfig{Node: node("web-1")}).Subscribe(xds.ClusterType)
		r.pass(time.Second)
		var taken []string
		r.agent.takeLocks(func(what string, locks func()) {
			taken = append(taken, what)
			locks()
		})
		want := []string{"the set of groups", "the cache of web-1", "the sources of web-1", "the streams of clients", "whether an Envoy is there", "the events", "the metrics"}
		if !slices.Equal(taken, want) {
			t.Errorf("the watchdog takes the locks of %q, want %q", taken, want)
		}
	})
}

// A control plane that is away is no reason not to be ready, unless it shall be.
func TestReadinessMayRequireAnUpstream(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.ReadyRequiresUpstream = true
		r.start()
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.ClusterType)
		c.Subscribe(xds.ListenerType)
		r.pass(time.Second)
		r.ready(map[string]string{"socket": "", "configuration": "", "upstream": ""})
		r.cp.Stop()
		r.pass(time.Minute)
		r.ready(map[string]string{"socket": "", "configuration": "", "upstream": "no control plane is connected (--ready-requires upstream)"})
	})
}

// Readiness does not latch: who is about to end says so, and goes on serving.
func TestADrainingAgentIsNotReadyAndServes(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.start()
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.ClusterType)
		c.Subscribe(xds.ListenerType)
		r.pass(time.Second)
		r.agent.Drain(r.Context())
		r.agent.Drain(r.Context()) // once more
		r.ready(map[string]string{"socket": "", "configuration": "", "draining": "a drain was requested"})
		r.cp.Set(xdstest.Cluster("c2", ""))
		r.pass(time.Second)
		r.holds(c, xds.ClusterType, "c1", "c2")
	})
}

func TestATakeoverIsRefusedWhereItWouldCostSomething(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.start()
		admit := func() (net.Conn, error) {
			r.Error("admitted")
			return nil, errors.New("no connection")
		}
		if err := r.agent.Handover(admit); err == nil || !strings.Contains(err.Error(), "no socket") {
			t.Error(err)
		}
		other := r.cfg
		other.Takeover, other.Admin.Addr = true, "127.0.0.1:0"
		successor, err := New(other)
		if err != nil {
			t.Fatal(err)
		}
		if err := successor.Run(r.Context()); err == nil || !strings.Contains(err.Error(), "--takeover needs --admin unix:PATH") {
			t.Error(err)
		}
		if err := r.agent.HotRestart(r.Context()); err == nil || !strings.Contains(err.Error(), "the agent does not run Envoy") {
			t.Error(err)
		}
	})
}
