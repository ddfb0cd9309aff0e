package group_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// design.md I6: the control plane gets Envoy's own words, and the node that sent them.
func TestANackReachesTheControlPlane(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{Reject: rejectBad})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Set(xdstest.BadListener("bad"), xdstest.Listener("l2", 2, "r1"))
		r.quiet()
		var nack *xdstest.Event
		for _, e := range r.cp.Requests(xds.ListenerType) {
			if e.Kind == xdstest.Nack {
				if nack != nil {
					r.Errorf("a second NACK: %s", e)
				}
				nack = &e
			}
		}
		if nack == nil || nack.Error.GetMessage() != "xdstest: bad: malformed IP address" {
			r.Fatalf("want one NACK in the client's words:\n%s", lines(r.cp.Events()))
		}
		r.holds(c, xds.ListenerType, "l1", "l2")
		if n := r.count(xdstest.Nack, xds.ClusterType); n > 0 {
			r.Errorf("a NACK of listeners was told of clusters (protocol.md 1.9)")
		}
	})
}

// design.md I7, protocol.md 1.3, 3.9.
func TestWhatWasRejectedIsNotSentAgainUntilItChanges(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		reject := true
		c := r.client(xdstest.ClientConfig{Reject: func(typeURL string, w *discoveryv3.Resource) error {
			if reject {
				return rejectBad(typeURL, w)
			}
			return nil
		}})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Set(xdstest.BadListener("bad"))
		r.pass(time.Minute)
		before := len(c.Of(xds.ListenerType))
		r.cp.Resend(xds.ListenerType)
		r.pass(time.Minute)
		if got := c.Of(xds.ListenerType)[before:]; len(got) > 0 {
			r.Fatalf("sent again:\n%s", lines(got))
		}
		// It is requested again after 5 s and then after growing pauses, in case the control plane
		// has reverted it.
		sent := 0
		for _, a := range r.cp.Answers() {
			if a.Type == xds.ListenerType && slices.Contains(a.Names, "bad") {
				sent++
			}
		}
		if n := r.count(xdstest.Nack, xds.ListenerType); n != sent || n < 2 || n > 7 {
			r.Errorf("%d NACKs, want one for each of the %d times that it was sent", n, sent)
		}
		reject = false
		r.cp.Set(xdstest.Listener("bad", 3, "r1"))
		r.pass(time.Second)
		r.holds(c, xds.ListenerType, "bad", "l1")
	})
}

// design.md I7: a new client gets what another client ACKed.
func TestANewClientGetsTheLastAcceptedVersion(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		var refuse string
		reject := func(_ string, w *discoveryv3.Resource) error {
			if refuse != "" && strings.Contains(string(w.GetResource().GetValue()), refuse) {
				return rejectBad("", &discoveryv3.Resource{Name: "bad"})
			}
			return nil
		}
		a := r.client(xdstest.ClientConfig{Reject: reject})
		r.envoy(a)
		r.pass(time.Second)
		good := a.Held(xds.RouteType)["r1"].GetResource().GetValue()
		refuse = "poison"
		r.cp.Set(xdstest.Route("r1", "poison"), xdstest.Listener("l1", 1, "poison"))
		r.pass(time.Second)
		b := r.client(xdstest.ClientConfig{Reject: reject})
		r.envoy(b)
		r.holds(b, xds.RouteType, "r1")
		r.holds(b, xds.ListenerType, "l1")
		if got := b.Held(xds.RouteType)["r1"].GetResource().GetValue(); string(got) != string(good) {
			r.Errorf("the new client got something else than what was accepted")
		}
		for _, got := range b.Responses() {
			if got.Err != nil {
				r.Errorf("the new client was sent what was rejected: %s", got)
			}
		}
	})
}

// protocol.md 3.10: of several new resources in a NACKed Delta response each is
// sent once more, alone; so too of SotW types that allow partial responses.
func TestTheBadOneOfSeveralIsFound(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		c := r.client(xdstest.ClientConfig{Reject: rejectBad})
		c.Subscribe(xds.EndpointType, "a", "b", "bad")
		r.quiet()
		r.cp.Hold(xds.EndpointType)
		r.cp.Set(xdstest.CLA("a", "127.0.0.1:1"), xdstest.CLA("b", "127.0.0.1:1"), xdstest.CLA("bad", "127.0.0.1:1"))
		r.cp.Release(xds.EndpointType)
		r.pass(time.Second)
		standing := map[string]xds.Status{}
		for _, res := range r.group.Cache().Resources(xds.EndpointType) {
			standing[res.Current.Name] = res.Status
		}
		if standing["a"] != xds.Acked || standing["b"] != xds.Acked || standing["bad"] != xds.Nacked {
			r.Fatalf("standing: %v\n%s", standing, lines(c.Responses()))
		}
		n := len(c.Responses())
		r.pass(time.Minute)
		if len(c.Responses()) != n {
			r.Errorf("and then more was sent:\n%s", lines(c.Responses()[n:]))
		}
	})
}

// design.md I6: the upstream ACK waits for clients no longer than the time limit.
func TestAnAckIsNotWithheldForASlowClient(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{Manual: true})
		c.Subscribe(xds.ClusterType)
		r.pass(900 * time.Millisecond)
		if n := r.count(xdstest.Ack, xds.ClusterType); n != 0 {
			r.Fatalf("ACKed before the client did")
		}
		r.pass(200 * time.Millisecond)
		if n := r.count(xdstest.Ack, xds.ClusterType); n != 1 {
			r.Fatalf("%d ACKs after the time limit, want 1", n)
		}
		c.Nack(c.Of(xds.ClusterType)[0], "too late", "c1")
		r.pass(time.Second)
		want := 0
		if r.above == xdstest.Delta {
			want = 1 // told late, where the protocol has room for it
		}
		if n := r.count(xdstest.Nack, xds.ClusterType); n != want {
			r.Errorf("%d NACKs of the late refusal, want %d", n, want)
		}
	})
}

// design.md I6: without a subscription there is no client to wait for.
func TestAResponseWithoutASubscriptionIsAckedAtOnce(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		c.Close()
		r.quiet()
		acks := r.count(xdstest.Ack, xds.RouteType)
		r.cp.Set(xdstest.Route("r1", "c2"))
		r.quiet()
		if n := r.count(xdstest.Ack, xds.RouteType) - acks; n != 1 {
			r.Errorf("%d ACKs at once, want 1", n)
		}
	})
}
