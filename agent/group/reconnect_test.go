package group_test

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	upsession "github.com/holdfast-xds/holdfast/upstream/session"
)

func TestAClientThatComesBackIsServedWithoutTheControlPlane(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Stop()
		c.Close()
		r.pass(2 * time.Hour) // leases do not run out without an upstream (I11)
		again := r.client(xdstest.ClientConfig{})
		r.envoy(again)
		r.holds(again, xds.ClusterType, "c1")
		r.holds(again, xds.EndpointType, "c1")
		r.holds(again, xds.ListenerType, "l1")
		r.holds(again, xds.RouteType, "r1")
	})
}

// design.md I2: a restarted agent does not remove what it does not know yet.
func TestAnAgentThatRestartsRemovesNothing(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.cp.Set(xdstest.Cluster("c2", ""), xdstest.CLA("c2", "127.0.0.1:1"))
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Refuse(true)
		r.cp.Cut(nil)
		r.restartAgent()
		r.quiet() // the client sees that its connection is gone
		if err := c.Reconnect(r.Context()); err != nil {
			r.Fatal(err)
		}
		r.pass(time.Minute)
		r.holds(c, xds.ClusterType, "c1", "c2")
		r.holds(c, xds.ListenerType, "l1")
		before := len(c.Responses())
		r.cp.Refuse(false)
		r.pass(time.Minute)
		r.holds(c, xds.ClusterType, "c1", "c2")
		r.holds(c, xds.ListenerType, "l1")
		for _, got := range c.Responses()[before:] {
			if len(got.Removed) > 0 {
				r.Errorf("removed: %s", got)
			}
		}
	})
}

// protocol.md 3.5: a resource that was removed while the agent was not running is removed from
// clients when an upstream has sent everything.
func TestWhatWasDeletedMeanwhileIsRemovedAfterSync(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.cp.Set(xdstest.Cluster("c2", ""), xdstest.CLA("c2", "127.0.0.1:1"), xdstest.Listener("l2", 2, "r1"))
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.stopAgent()
		r.cp.Remove(xds.ClusterType, "c2")
		r.cp.Remove(xds.ListenerType, "l2")
		r.startAgent()
		r.quiet() // the client sees that its connection is gone
		if err := c.Reconnect(r.Context()); err != nil {
			r.Fatal(err)
		}
		r.pass(10 * time.Second)
		r.holds(c, xds.ClusterType, "c1")
		r.holds(c, xds.ListenerType, "l1")
	})
}

func TestChangesDuringAnOutageArriveAfterIt(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.cp.Set(xdstest.Listener("l2", 2, "r1"))
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Stop()
		r.pass(time.Minute)
		r.cp.Set(xdstest.Route("r1", "c9"))
		r.cp.Remove(xds.ListenerType, "l2")
		r.holds(c, xds.ListenerType, "l1", "l2")
		r.cp.Serve(r.up.Listen())
		r.pass(time.Minute)
		r.holds(c, xds.ListenerType, "l1")
		if got := c.Of(xds.RouteType); len(got) != 2 {
			r.Fatalf("want the first route and the changed one:\n%s", lines(got))
		}
	})
}

// protocol.md 7.10: a Delta request lists what is cached, a SotW request the last ACKed version.
// For one resource Delta lists another version, so that the server has something to answer.
func TestAReconnectSaysWhatIsHeld(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(2 * time.Second)
		r.cp.Cut(nil)
		r.pass(time.Minute)
		for _, e := range r.cp.Requests(xds.ClusterType) {
			if e.Stream != 2 || e.Kind != xdstest.Subscribe {
				continue
			}
			if r.above == xdstest.Delta && e.Initial["c1"] != upsession.UnknownVersion || r.above == xdstest.SotW && (e.Version == "" || e.Nonce != "") {
				r.Fatalf("first request of the new stream: %s", e)
			}
			for _, e := range r.cp.Requests(xds.RouteType) {
				if e.Stream == 2 && e.Kind == xdstest.Subscribe && r.above == xdstest.Delta && e.Initial["r1"] != "1" {
					r.Errorf("the second request of the new stream: %s", e)
				}
			}
			return
		}
		r.Fatalf("no second stream:\n%s", lines(r.cp.Events()))
	})
}

// design.md I11.
func TestTheSubscriptionsOfADisconnectedClientEndAfterTheLingerTime(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.cp.Set(xdstest.CLA("a", "127.0.0.1:1"), xdstest.CLA("b", "127.0.0.1:1"))
		stays, goes := r.client(xdstest.ClientConfig{}), r.client(xdstest.ClientConfig{})
		stays.Subscribe(xds.EndpointType, "a")
		goes.Subscribe(xds.EndpointType, "b")
		r.pass(2 * time.Second)
		r.pass(15 * time.Minute)
		goes.Close()
		r.pass(16 * time.Minute) // and so past the second stream that a quiet one is replaced by
		events := len(r.cp.Events())
		r.pass(13 * time.Minute)
		if got := r.cp.Events()[events:]; len(got) > 0 {
			r.Fatalf("within the linger time:\n%s", lines(got))
		}
		r.pass(2 * time.Minute)
		got := r.cp.Events()[events:]
		if len(got) != 1 || got[0].Kind != xdstest.Subscribe {
			r.Fatalf("after the linger time:\n%s", lines(got))
		}
	})
}
