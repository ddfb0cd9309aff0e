package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// What a client accepted is on disk when the control plane hears of its ACK: the agent is
// killed at a random moment from 0 to 50 ms after it, two hundred times, and started again
// with no control plane to ask. Each time it serves what was accepted.
func TestWhatWasACKedUpstreamSurvivesAKill(t *testing.T) {
	kills := testbed.Times(200, 20)
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, form, form)
			state := []string{"--state-dir", w.path("state")}
			random := rand.New(rand.NewPCG(1, 2))
			last := "c1" // as in the mesh
			for n := range kills / len(xdstest.Protocols()) {
				w.startAgent(state...)
				c := w.scripted()
				c.Subscribe(xds.ClusterType)
				c.Subscribe(xds.RouteType, "ingress")
				w.leadsTo(c, last) // from the disk or, to begin with, from the control plane
				last = fmt.Sprint("number-", n)
				w.setAndAcked(xdstest.Route("ingress", last))
				time.Sleep(time.Duration(random.IntN(50_000)) * time.Microsecond)
				w.agent.Kill()
				c.Disconnect()
				w.cp.Stop()
				w.runAgent()
				c = w.scripted()
				c.Subscribe(xds.RouteType, "ingress")
				w.leadsTo(c, last)
				w.agent.Kill()
				c.Disconnect()
				w.restartControlPlane()
			}
		})
	}
}

// scripted connects a client of the test's own to the agent.
func (w *world) scripted() *xdstest.Client {
	w.Helper()
	conn, err := grpc.NewClient("unix:"+w.path("xds.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.check(err)
	w.Cleanup(func() { _ = conn.Close() })
	c := xdstest.NewClient(conn, xdstest.ClientConfig{Protocol: w.below, Node: &corev3.Node{Id: "e2e", Cluster: "e2e", UserAgentName: xds.EnvoyUserAgent}})
	w.Cleanup(c.Disconnect)
	w.check(c.Connect(w.Context()))
	return c
}

// leadsTo waits until a client's route leads to a cluster.
func (w *world) leadsTo(c *xdstest.Client, want string) {
	w.Helper()
	w.check(testbed.Eventually(limit, func() error {
		var route routev3.RouteConfiguration
		held := c.Held(xds.RouteType)["ingress"]
		if held == nil {
			return fmt.Errorf("the client has no route; its stream: %v", c.Err())
		}
		if err := held.GetResource().UnmarshalTo(&route); err != nil {
			return err
		}
		if got := route.GetVirtualHosts()[0].GetRoutes()[0].GetRoute().GetCluster(); got != want {
			return fmt.Errorf("the route leads to %q, want %q", got, want)
		}
		return nil
	}))
}

// setAndAcked changes a route, and waits until the control plane hears of an ACK of it: one
// of an answer that was made before is none.
func (w *world) setAndAcked(route *routev3.RouteConfiguration) {
	w.Helper()
	before := len(w.cp.Answers())
	w.cp.Set(route)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	w.check(w.cp.Wait(ctx, func() bool {
		nonces := make(map[string]bool)
		for _, a := range w.cp.Answers()[before:] {
			nonces[a.Nonce] = a.Type == xds.RouteType
		}
		events := w.cp.Events()
		return slices.ContainsFunc(events[max(0, len(events)-10):], func(e xdstest.Event) bool { return e.Kind == xdstest.Ack && nonces[e.Nonce] })
	}))
}
