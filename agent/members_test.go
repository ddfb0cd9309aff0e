package agent

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// job is a client that makes up an id for itself.
func job(i int) *corev3.Node {
	n := node(fmt.Sprintf("job-%d", i))
	n.UserAgentName = "gRPC Go"
	return n
}

// Finding P12: clients with ids of their own come and go; there are --max-groups kinds at most,
// also where no upstream answers and so nobody's time runs out.
func TestKindsOfClientsAreBounded(t *testing.T) {
	for _, upstream := range []string{"there", "away"} {
		t.Run("upstream "+upstream, func(t *testing.T) {
			inBothForms(t, func(r *rig) {
				r.cfg.MaxGroups, r.cfg.Node = 5, node("web-1")
				if upstream == "away" {
					r.cp.Stop()
				}
				r.start()
				stays := r.client(xdstest.ClientConfig{Node: job(1000)})
				stays.Subscribe(xds.ClusterType, "c1")
				for i := range 30 {
					c := r.client(xdstest.ClientConfig{Node: job(i)})
					c.Subscribe(xds.ClusterType, "c1")
					r.pass(100 * time.Millisecond)
					if err := c.Err(); err != nil {
						r.Fatalf("client %d: %v", i, err)
					}
					c.Close()
				}
				r.quiet()
				if n := len(r.agent.groups.Members()); n != 5 {
					r.Errorf("%d groups, want 5", n)
				}
				for _, m := range r.agent.groups.Members() {
					switch id := m.Node().GetId(); id {
					case "web-1", "job-1000", "job-27", "job-28", "job-29":
					default:
						r.Errorf("the group of %s was kept", id)
					}
				}
				if upstream == "there" {
					r.streams(5, 32)
				}
				if err := stays.Err(); err != nil {
					r.Errorf("the client that stays: %v", err)
				}
			})
		})
	}
}

// Where all have clients, one more is refused, and served when there is room.
func TestOneKindOfClientsTooManyIsRefused(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.MaxGroups = 2
		r.start()
		a, b := r.client(xdstest.ClientConfig{Node: job(1)}), r.client(xdstest.ClientConfig{Node: job(2)})
		a.Subscribe(xds.ClusterType, "c1")
		b.Subscribe(xds.ClusterType, "c1")
		r.quiet()
		c := r.client(xdstest.ClientConfig{Node: job(3)})
		c.Subscribe(xds.ClusterType, "c1")
		r.quiet()
		if err := c.Err(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "--max-groups") {
			r.Errorf("the third: %v", err)
		}
		a.Close()
		r.quiet()
		c = r.client(xdstest.ClientConfig{Node: job(3)})
		c.Subscribe(xds.ClusterType, "c1")
		r.pass(time.Second)
		r.holds(c, xds.ClusterType, "c1")
		r.holds(b, xds.ClusterType, "c1")
	})
}

// lastNode returns the Node that the control plane heard last.
func (r *rig) lastNode() (last *corev3.Node) {
	for _, e := range r.cp.Events() {
		if e.Node != nil {
			last = e.Node
		}
	}
	return last
}

func version(n *corev3.Node) string {
	return n.GetMetadata().GetFields()["VERSION"].GetStringValue()
}

// Finding P8: an Envoy that is restarted with another Node of the same id is seen as that, by a
// new stream upstream that takes over when it is answered. Nothing is sent to the client again.
func TestAnEnvoyThatComesBackWithAnotherNodeIsSeen(t *testing.T) {
	for _, prefetched := range []bool{false, true} {
		inBothForms(t, func(r *rig) {
			before, after := node("web-1", "VERSION", "1"), node("web-1", "VERSION", "2")
			after.Locality = &corev3.Locality{Region: "moved"}
			if prefetched {
				r.cfg.Node = before
			}
			r.start()
			c := r.client(xdstest.ClientConfig{Node: before})
			c.Subscribe(xds.ClusterType)
			r.pass(time.Minute)
			c.Close()
			r.pass(time.Minute)
			r.streams(1, 1)
			c = r.client(xdstest.ClientConfig{Node: after})
			c.Subscribe(xds.ClusterType)
			r.pass(2 * time.Second)
			if got := r.lastNode(); version(got) != "2" || got.GetLocality().GetRegion() != "moved" {
				r.Errorf("prefetched %t: the control plane sees %v", prefetched, got)
			}
			r.streams(1, 2)
			r.holds(c, xds.ClusterType, "c1")
			if n := len(c.Of(xds.ClusterType)); n != 1 {
				r.Errorf("%d answers", n)
			}
			// The same again is no news.
			c.Close()
			c = r.client(xdstest.ClientConfig{Node: after})
			c.Subscribe(xds.ClusterType)
			r.pass(2 * time.Second)
			r.streams(1, 2)
		})
	}
}

// While one Envoy replaces another both are there: the control plane sees the first until it has
// gone, and then the second.
func TestTheNodeOfTheEnvoyThatStaysIsSeen(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.start()
		before, after := node("web-1", "VERSION", "1"), node("web-1", "VERSION", "2")
		old := r.client(xdstest.ClientConfig{Node: before})
		old.Subscribe(xds.ClusterType)
		r.pass(time.Second)
		c := r.client(xdstest.ClientConfig{Node: after})
		c.Subscribe(xds.ClusterType)
		r.pass(time.Minute)
		if got := version(r.lastNode()); got != "1" {
			r.Errorf("while both are there the control plane sees %s", got)
		}
		r.streams(1, 1)
		old.Close()
		r.pass(2 * time.Second)
		if got := version(r.lastNode()); got != "2" {
			r.Errorf("the control plane sees %s", got)
		}
		r.streams(1, 2)
		r.holds(c, xds.ClusterType, "c1")
	})
}

// istio#40322. An Envoy that is restarted twice in a row is seen each time at once. Two Envoys of one id that differ are a problem when
// that lasts, and no more when one of them has gone.
func TestNodesOfOneIDThatDifferAreSaid(t *testing.T) {
	inBothForms(t, func(r *rig) {
		log := &recorded{}
		r.cfg.Log = slog.New(slog.NewTextHandler(log, nil))
		r.start()
		var last *xdstest.Client
		for _, v := range []string{"1", "2", "3"} {
			if last != nil {
				last.Close()
			}
			last = r.client(xdstest.ClientConfig{Node: node("web-1", "VERSION", v)})
			last.Subscribe(xds.ClusterType)
			r.pass(2 * time.Second)
			if got := version(r.lastNode()); got != v {
				r.Errorf("the control plane sees %s, want %s", got, v)
			}
		}
		said := func() int {
			n, status := 0, r.agent.Status()
			status.Now = time.Now() // as the admin interface does
			for _, p := range status.Problems() {
				if strings.Contains(p.Text, "beside one with the same node id") {
					n++
				}
			}
			return n
		}
		r.pass(time.Minute)
		twin := r.client(xdstest.ClientConfig{Node: node("web-1", "VERSION", "3")})
		twin.Subscribe(xds.ClusterType)
		r.pass(2 * time.Minute)
		if n := said(); n != 0 || strings.Contains(log.String(), "beside one with the same node id") {
			r.Errorf("said %d times of two that are the same:\n%s", n, log.String())
		}
		other := r.client(xdstest.ClientConfig{Node: node("web-1", "VERSION", "4")})
		other.Subscribe(xds.ClusterType)
		r.pass(30 * time.Second)
		if n := said(); n != 0 || strings.Contains(log.String(), "beside one with the same node id") {
			r.Error("it is a problem, or logged, while one may replace the other")
		}
		r.pass(time.Minute)
		if n := said(); n != 1 || strings.Count(log.String(), "beside one with the same node id") != 1 {
			r.Errorf("a problem %d times, logged:\n%s", n, log.String())
		}
		other.Close()
		r.pass(2 * time.Second)
		if n := said(); n != 0 {
			r.Error("it stays a problem")
		}
	})
}

// A stream that is opened for another reason presents what the client's Node has that the
// configured one could not: its version and extensions.
func TestTheNextStreamPresentsTheNodeOfTheClient(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("web-1")
		r.start()
		full := node("web-1")
		full.Extensions = []*corev3.Extension{{Name: "x"}}
		c := r.client(xdstest.ClientConfig{Node: full})
		c.Subscribe(xds.ClusterType)
		r.pass(time.Second)
		r.streams(1, 1)
		r.cp.Cut(nil)
		r.pass(2 * time.Second)
		if got := r.lastNode(); len(got.GetExtensions()) != 1 {
			r.Errorf("the control plane sees %v", got)
		}
	})
}

// Finding P18: a client without a node id is who --node-id says.
func TestAClientWithoutAnIDIsTheConfiguredOne(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("web-1")
		r.start()
		c := r.client(xdstest.ClientConfig{Node: &corev3.Node{UserAgentName: "envoy"}})
		c.Subscribe(xds.ClusterType)
		r.quiet()
		r.holds(c, xds.ClusterType, "c1")
		if n := len(r.agent.groups.Members()); n != 1 {
			r.Errorf("%d groups, want that of the configured node alone", n)
		}
	})
	inBothForms(t, func(r *rig) {
		r.start()
		c := r.client(xdstest.ClientConfig{Node: &corev3.Node{UserAgentName: "envoy"}})
		c.Subscribe(xds.ClusterType)
		r.quiet()
		if err := c.Err(); status.Code(err) != codes.InvalidArgument {
			r.Errorf("nobody says who it is: %v", err)
		}
	})
}

// Finding F7: an agent beside proxyless gRPC alone is ready when what that asked for is there.
func TestAnAgentBesideGRPCAloneIsReady(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cp.Hold(xds.RouteType)
		r.start()
		c := r.client(xdstest.ClientConfig{Node: job(1)})
		r.quiet()
		c.Subscribe(xds.ListenerType, "l1", "later")
		r.quiet()
		c.Subscribe(xds.ClusterType, "c1")
		r.quiet()
		c.Subscribe(xds.RouteType, "r1")
		r.quiet()
		r.ready(map[string]string{"socket": "", "configuration": "no RDS r1 received yet for node job-1"})
		r.cp.Release(xds.RouteType)
		r.pass(20 * time.Second) // "later" counts as not there by then
		r.ready(map[string]string{"socket": "", "configuration": ""})
	})
}

// Finding P11: all stored groups come back, not the eight that were there last.
func TestManyNodesAreServedAfterARestart(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.keepIn(t.TempDir())
		r.start()
		const nodes = 20
		named := func(i int) *corev3.Node { return node(fmt.Sprintf("web-%c", 'a'+i)) }
		for i := range nodes {
			c := r.whole(named(i))
			r.pass(time.Second)
			r.holdsMesh(c)
			c.Close()
		}
		r.stop()
		r.cp.Stop()
		r.start()
		r.pass(10 * time.Second)
		for i := range nodes {
			c := r.whole(named(i))
			r.pass(10 * time.Second)
			r.holdsMesh(c)
			c.Close()
		}
	})
}

// Clients that change their Node in a loop cost a stream to the control plane each ten seconds, and
// the last one is seen.
func TestNodesThatChangeInALoopAreLoggedNowAndThen(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.start()
		for i := range 100 {
			c := r.client(xdstest.ClientConfig{Node: node("web-1", "VERSION", fmt.Sprint(i))})
			c.Subscribe(xds.ClusterType)
			r.pass(100 * time.Millisecond)
			c.Close()
		}
		c := r.client(xdstest.ClientConfig{Node: node("web-1", "VERSION", "last")})
		c.Subscribe(xds.ClusterType)
		r.pass(20 * time.Second)
		if got := version(r.lastNode()); got != "last" {
			r.Errorf("the control plane sees %s", got)
		}
		if _, ever := r.cp.Streams(); ever > 5 {
			r.Errorf("%d streams upstream", ever)
		}
		r.holds(c, xds.ClusterType, "c1")
	})
}

// The agent's own Envoy has its place, whoever else is there.
func TestTheConfiguredNodeAlwaysHasItsPlace(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.MaxGroups, r.cfg.Node, r.cfg.Group.Cache.Linger = 2, node("web-1"), time.Minute
		r.start()
		own := r.client(xdstest.ClientConfig{Node: node("web-1")})
		own.Subscribe(xds.ClusterType)
		r.pass(time.Second)
		own.Close()
		r.pass(10 * time.Minute) // its group has been closed
		for i := range 2 {
			r.client(xdstest.ClientConfig{Node: job(i)}).Subscribe(xds.ClusterType, "c1")
		}
		r.pass(time.Second)
		own = r.client(xdstest.ClientConfig{Node: node("web-1")})
		own.Subscribe(xds.ClusterType)
		r.pass(time.Second)
		r.holds(own, xds.ClusterType, "c1")
	})
}
