package grpcclient

import (
	"strings"
	"testing"
	"time"
)

// RPCs go on all the time while the control plane is killed, the agent is killed and started again, and both are. A client
// that starts while the control plane is away and the agent has only its state on disk is served too.
func TestNoRPCFailsWhileControlPlaneAndAgentAreKilled(t *testing.T) {
	t.Parallel()
	withBothUpstreams(t, func(w *world) {
		const away = time.Second
		one, two := backend(w.Rig), backend(w.Rig)
		cp := newControlPlane(w.Rig)
		cp.lead(one)
		agent := w.startAgent([]*controlPlane{cp}, "--state-dir", w.Path("state"))
		old := startClient(w.Rig, "client", agent.GRPCBootstrap())
		old.reaches(one)

		cp.server.Stop()
		time.Sleep(away)
		cp.lead(two)
		cp.serve()
		old.reaches(two)

		agent.Kill()
		time.Sleep(away)
		cp.lead(one)
		agent.Restart()
		old.reaches(one)

		cp.server.Stop()
		agent.Kill()
		time.Sleep(away)
		agent.Restart()
		late := startClient(w.Rig, "late", agent.GRPCBootstrap())
		late.reaches(one)
		old.reaches(one)
		cp.lead(two)
		cp.serve()
		late.reaches(two)
		old.reaches(two)

		old.neverFailed()
		late.neverFailed()
	})
}

// A gRPC client has no wildcard, so that a control plane with Delta has nothing to say to an agent that already has, from
// its state, all that is asked for. It answers by its silence, and must not be taken for one that is away.
func TestAControlPlaneThatAgreesIsNotTakenForSilent(t *testing.T) {
	t.Parallel()
	// As long as an upstream has for its first answer, and a little.
	const firstAnswer = 18 * time.Second
	restarted := func(w *world, upstreams []*controlPlane, flags ...string) (agentLog func() string, first *client, started func() *client) {
		w.Helper()
		to := backend(w.Rig)
		for _, cp := range upstreams {
			cp.lead(to)
		}
		agent := w.startAgent(upstreams, append(flags, "--state-dir", w.Path("state"))...)
		before := startClient(w.Rig, "before", agent.GRPCBootstrap())
		before.reaches(to)
		before.neverFailed()
		w.Check(agent.Stop(10 * time.Second))
		agent.Restart()
		start := func() *client {
			w.Helper()
			c := startClient(w.Rig, "client", agent.GRPCBootstrap())
			c.reaches(to)
			return c
		}
		return agent.Log, start(), start
	}
	heard := func(w *world, log string) {
		w.Helper()
		for line := range strings.Lines(log) {
			if strings.Contains(line, "does not answer") {
				w.Errorf("the agent says: %s", line)
			}
		}
	}

	t.Run("with a second control plane", func(t *testing.T) {
		t.Parallel()
		withBothUpstreams(t, func(w *world) {
			second := newControlPlane(w.Rig)
			log, c, _ := restarted(w, []*controlPlane{newControlPlane(w.Rig), second})
			time.Sleep(firstAnswer)
			c.neverFailed()
			heard(w, log())
			if n := second.streams.Load(); n != 0 {
				t.Errorf("the second control plane was asked %d times, though the first is healthy", n)
			}
		})
	})
	t.Run("with an end to what is stale", func(t *testing.T) {
		t.Parallel()
		withBothUpstreams(t, func(w *world) {
			const maxStale = 15 * time.Second
			log, c, start := restarted(w, []*controlPlane{newControlPlane(w.Rig)}, "--max-stale", maxStale.String())
			time.Sleep(firstAnswer + maxStale)
			c.neverFailed()
			heard(w, log())
			start().neverFailed()
		})
	})
}
