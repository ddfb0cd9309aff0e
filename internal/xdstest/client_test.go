package xdstest_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// rejectBad rejects every resource whose name begins with "bad".
func rejectBad(_ string, r *discoveryv3.Resource) error {
	if strings.HasPrefix(r.GetName(), "bad") {
		return errors.New("malformed IP address")
	}
	return nil
}

func inBothRejecting(t *testing.T, test func(*conversation)) {
	t.Helper()
	for _, p := range xdstest.Protocols() {
		t.Run(string(p), func(t *testing.T) {
			converse(t, xdstest.Config{}, xdstest.ClientConfig{Protocol: p, Reject: rejectBad}, test)
		})
	}
}

func TestTheGoodPartOfANackedListenerAnswerIsAppliedWithoutItsVersion(t *testing.T) {
	inBothRejecting(t, func(c *conversation) {
		c.cp.Set(xdstest.Listener("l1", 1, "r"))
		c.client.Subscribe(xds.ListenerType)
		synctest.Wait()
		c.cp.Set(xdstest.Listener("l2", 2, "r"), xdstest.BadListener("bad"))
		c.holds(xds.ListenerType, "l1", "l2")
		events := c.cp.Events()
		nack := events[len(events)-1]
		if nack.Kind != xdstest.Nack || nack.Nonce != "n2" || nack.Error.GetCode() != 13 ||
			nack.Error.GetMessage() != "bad: malformed IP address" {
			c.Fatalf("got %v with code %d", nack, nack.Error.GetCode())
		}
		if c.protocol == xdstest.SotW {
			if nack.Version != "1" || c.client.Version(xds.ListenerType) != "1" {
				c.Fatalf("version advanced: %v", nack)
			}
		} else {
			c.versions(xds.ListenerType, map[string]string{"l1": "1"})
		}
	})
}

func TestARejectedUpdateLeavesTheFormerListener(t *testing.T) {
	for _, p := range xdstest.Protocols() {
		t.Run(string(p), func(t *testing.T) {
			former := xdstest.Pack(xdstest.Listener("l", 1, "r"))
			config := xdstest.ClientConfig{Protocol: p, Reject: func(_ string, r *discoveryv3.Resource) error {
				if !proto.Equal(r.GetResource(), former) {
					return errors.New("no such port")
				}
				return nil
			}}
			converse(t, xdstest.Config{}, config, func(c *conversation) {
				c.cp.Set(former)
				c.client.Subscribe(xds.ListenerType)
				synctest.Wait()
				c.cp.Set(xdstest.Listener("l", 2, "r"))
				c.holds(xds.ListenerType, "l")
				if got := c.client.Held(xds.ListenerType)["l"].GetResource(); !proto.Equal(got, former) {
					c.Fatalf("the former listener was replaced by %v", got)
				}
				if got := c.client.Responses()[1].Err; got == nil || got.Error() != "l: no such port" {
					c.Fatalf("got %v", got)
				}
			})
		})
	}
}

func TestEndpointsAfterTheFirstBadOneAreNotApplied(t *testing.T) {
	inBothRejecting(t, func(c *conversation) {
		c.cp.Set(xdstest.CLA("a"), xdstest.CLA("bad"), xdstest.CLA("z"))
		c.client.Subscribe(xds.EndpointType, "a", "bad", "z")
		c.holds(xds.EndpointType, "a")
	})
}

func TestReconnectSaysWhatIsHeld(t *testing.T) {
	want := map[xdstest.Protocol][]string{
		xdstest.SotW: {
			"2 sotw subscribe CDS version=1 node=xdstest",
			"2 sotw subscribe EDS version=1 names=[a]",
			"2 sotw ack CDS version=1 nonce=n3",
			"2 sotw ack EDS version=1 nonce=n4 names=[a]",
		},
		xdstest.Delta: {
			"2 delta subscribe CDS irv=[a:1] node=xdstest",
			"2 delta subscribe EDS sub=[a] irv=[a:1]",
			"2 delta ack CDS nonce=n3",
			"2 delta ack EDS nonce=n4",
		},
	}
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Cluster("a", ""), xdstest.CLA("a"))
		c.client.Subscribe(xds.ClusterType)
		synctest.Wait()
		c.client.Subscribe(xds.EndpointType, "a")
		synctest.Wait()
		from := len(c.cp.Events())
		c.reconnect()
		c.requests(from, want[c.protocol]...)
		if got := c.client.Err(); got != nil {
			c.Fatal(got)
		}
	})
}

func TestDeltaReconnectNamesTheWildcardBesideOtherNames(t *testing.T) {
	converse(t, xdstest.Config{}, xdstest.ClientConfig{Protocol: xdstest.Delta}, func(c *conversation) {
		c.client.Subscribe(xds.ClusterType)
		c.client.Subscribe(xds.ClusterType, "odc")
		synctest.Wait()
		from := len(c.cp.Events())
		c.cp.Hold()
		c.reconnect()
		c.requests(from, "2 delta subscribe CDS sub=[* odc] node=xdstest")
	})
}

func TestWhatWasRemovedWhileDisconnectedGoes(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Cluster("a", ""), xdstest.Cluster("b", ""))
		c.client.Subscribe(xds.ClusterType)
		synctest.Wait()
		c.client.Disconnect()
		c.cp.Remove(xds.ClusterType, "a")
		c.holds(xds.ClusterType, "a", "b")
		c.reconnect()
		c.holds(xds.ClusterType, "b")
	})
}

func TestNameThatGoesWhileDisconnectedShowsAsAnEmptyFirstRequest(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Route("r", "a"))
		c.client.Subscribe(xds.RouteType, "r")
		synctest.Wait()
		c.client.Disconnect()
		c.client.Unsubscribe(xds.RouteType, "r")
		c.holds(xds.RouteType)
		from := len(c.cp.Events())
		c.reconnect()
		c.requests(from, map[xdstest.Protocol]string{
			xdstest.SotW:  "2 sotw subscribe RDS version=1 node=xdstest",
			xdstest.Delta: "2 delta subscribe RDS node=xdstest",
		}[c.protocol])
	})
}

func TestUnsubscribedResourceIsForgottenOnBothSides(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Route("r", "a"), xdstest.Route("s", "a"))
		c.client.Subscribe(xds.RouteType, "r", "s")
		synctest.Wait()
		c.client.Unsubscribe(xds.RouteType, "s")
		c.holds(xds.RouteType, "r")
		c.cp.Set(xdstest.Route("s", "b"))
		c.answers(1)
		c.client.Subscribe(xds.RouteType, "s")
		c.holds(xds.RouteType, "r", "s")
	})
}

func TestWildcardEnds(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.StaticCluster("a"), xdstest.StaticCluster("b"))
		c.client.Subscribe(xds.ClusterType, "*", "a")
		c.holds(xds.ClusterType, "a", "b")
		c.client.Unsubscribe(xds.ClusterType, "*")
		c.holds(xds.ClusterType, "a")
		c.cp.Set(xdstest.StaticCluster("c"))
		c.holds(xds.ClusterType, "a")
	})
}

func TestRepeatedEndpointRequestIsAnswered(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.CLA("a"))
		c.client.Subscribe(xds.EndpointType, "a")
		synctest.Wait()
		c.client.Repeat(xds.EndpointType)
		if c.protocol == xdstest.SotW {
			c.answers(1, "1 EDS version=1 nonce=n2 [a]")
		} else {
			c.answers(1) // Envoy says nothing then: protocol.md V1
		}
	})
}

func TestManualAnswersWaitForTheScript(t *testing.T) {
	for _, p := range xdstest.Protocols() {
		t.Run(string(p), func(t *testing.T) {
			converse(t, xdstest.Config{}, xdstest.ClientConfig{Protocol: p, Manual: true}, func(c *conversation) {
				c.cp.Set(xdstest.Cluster("a", ""), xdstest.Cluster("b", ""))
				c.client.Subscribe(xds.ClusterType)
				c.holds(xds.ClusterType)
				first := c.client.Responses()[0]
				c.client.Nack(first, "b is bad", "b")
				c.holds(xds.ClusterType, "a")
				c.cp.Resend()
				synctest.Wait()
				c.client.Ack(c.client.Responses()[1])
				c.holds(xds.ClusterType, "a", "b")
				var kinds []xdstest.Kind
				for _, e := range c.cp.Requests(xds.ClusterType) {
					kinds = append(kinds, e.Kind)
				}
				if want := []xdstest.Kind{xdstest.Subscribe, xdstest.Nack, xdstest.Ack}; !slices.Equal(kinds, want) {
					c.Fatalf("got %v, want %v", kinds, want)
				}
			})
		})
	}
}

func TestMalformedDeltaAnswersAreRejectedAsAWhole(t *testing.T) {
	a, b := xdstest.Wrap(xdstest.Cluster("a", ""), "1"), xdstest.Wrap(xdstest.Cluster("b", ""), "1")
	for name, test := range map[string]struct {
		resources []*discoveryv3.Resource
		removed   []string
		want      string
	}{
		"a name twice":            {resources: []*discoveryv3.Resource{a, b, a}, want: "duplicate name a found among added/updated resources"},
		"put and removed":         {resources: []*discoveryv3.Resource{a}, removed: []string{"a"}, want: "duplicate name a found in the union"},
		"another type":            {resources: []*discoveryv3.Resource{a, xdstest.Wrap(xdstest.CLA("b"), "1")}, want: "does not match the message-wide type URL"},
		"a heartbeat for nothing": {resources: []*discoveryv3.Resource{a, {Name: "x", Version: "1"}}, want: "does not match the message-wide type URL"},
		"no name":                 {resources: []*discoveryv3.Resource{a, {Resource: b.Resource}}, want: "resource without a name"},
	} {
		t.Run(name, func(t *testing.T) {
			converse(t, xdstest.Config{}, xdstest.ClientConfig{Protocol: xdstest.Delta}, func(c *conversation) {
				c.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{
					TypeUrl: xds.ClusterType, Nonce: "raw", Resources: test.resources, RemovedResources: test.removed,
				})
				c.holds(xds.ClusterType)
				got := c.cp.Requests(xds.ClusterType)
				if len(got) != 1 || got[0].Kind != xdstest.Nack || !strings.Contains(got[0].Error.GetMessage(), test.want) {
					c.Fatalf("got %v, want a NACK with %q", got, test.want)
				}
			})
		})
	}
}

func TestHeartbeats(t *testing.T) {
	heartbeat := &discoveryv3.Resource{Name: "a", Version: "1", Ttl: durationpb.New(time.Minute)}
	t.Run("a Delta heartbeat changes nothing", func(t *testing.T) {
		converse(t, xdstest.Config{}, xdstest.ClientConfig{Protocol: xdstest.Delta}, func(c *conversation) {
			c.cp.Set(xdstest.StaticCluster("a"))
			c.client.Subscribe(xds.ClusterType)
			synctest.Wait()
			c.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.ClusterType, Nonce: "hb", Resources: []*discoveryv3.Resource{heartbeat}})
			c.holds(xds.ClusterType, "a")
			if c.client.Held(xds.ClusterType)["a"].GetResource() == nil {
				c.Fatal("the heartbeat replaced the cluster")
			}
		})
	})
	t.Run("a SotW heartbeat deletes the cluster, V4", func(t *testing.T) {
		converse(t, xdstest.Config{}, xdstest.ClientConfig{}, func(c *conversation) {
			c.cp.Set(xdstest.StaticCluster("a"), xdstest.StaticCluster("b"))
			c.client.Subscribe(xds.ClusterType)
			synctest.Wait()
			raw := &discoveryv3.DiscoveryResponse{TypeUrl: xds.ClusterType, Nonce: "hb", VersionInfo: "1"}
			raw.Resources = append(raw.Resources, xdstest.Pack(heartbeat), xdstest.Pack(xdstest.StaticCluster("b")))
			c.cp.SendRaw(0, raw)
			c.holds(xds.ClusterType, "b")
		})
	})
}

func TestConnectTwiceIsAnError(t *testing.T) {
	inBoth(t, func(c *conversation) {
		if err := c.client.Connect(c.Context()); err == nil {
			c.Fatal("no error")
		}
		c.client.Disconnect()
		if err := c.client.Err(); !errors.Is(err, xdstest.ErrDisconnected) {
			c.Fatalf("stream ended with %v", err)
		}
		c.client.Disconnect()
		if err := c.client.Connect(c.Context()); err != nil {
			c.Fatal(err)
		}
	})
}
