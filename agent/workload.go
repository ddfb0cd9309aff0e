package agent

import (
	"context"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/agent/probe"
	"github.com/holdfast-xds/holdfast/upstream"
)

// drainReason is what is reported of a workload whose proxy drains.
const drainReason = "the proxy of the workload drains"

// newProber returns what probes the application; nil if nothing does.
func (a *Agent) newProber() *probe.Prober {
	if a.cfg.Workload == nil {
		return nil
	}
	cfg := *a.cfg.Workload
	cfg.Orphans, cfg.Log = a.orphans, a.cfg.Log
	if a.life.envoy != nil || a.life.admin != nil {
		cfg.Proxy = a.envoyServes
	}
	return probe.New(cfg)
}

// probe probes the application until serving ends, whether or not a control plane is connected.
func (a *Agent) probe(ctx context.Context) {
	if a.prober != nil {
		a.prober.Run(ctx)
	}
}

// envoyServes returns why Envoy, whose admin interface is known or which is the agent's child, cannot serve the application. An
// Envoy that takes over from another one in a hot restart serves: the other one does until then.
func (a *Agent) envoyServes(ctx context.Context) error {
	if a.life.envoy != nil {
		if st := a.life.envoy.Status(); st.Epoch > 0 && st.PID != 0 && !st.Draining {
			return nil
		}
		return a.life.envoy.Serving()
	}
	state, err := a.life.admin.State(ctx)
	if err == nil && state != envoy.StateLive {
		err = fmt.Errorf("it is %s", state)
	}
	return err
}

// healthOf returns the health that is reported for a group of clients: that of the workload for clients with the configured
// Node, or for all if there is none. The Node of a client with another id is not that of the workload's proxy.
func (a *Agent) healthOf(node *corev3.Node) upstream.Health {
	if a.prober == nil || a.cfg.Node != nil && node.GetId() != a.cfg.Node.GetId() {
		return nil
	}
	return a.prober
}

// reportDrain reports that the workload is unhealthy while its proxy drains.
func (a *Agent) reportDrain(drains bool) {
	switch {
	case a.prober == nil:
	case drains:
		a.prober.Drain(drainReason)
	default:
		a.prober.Resume()
	}
}
