package group_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
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

// design.md I7: what was rejected is offered again, however often the control plane repeats it, as often as a page can say: about twelve
// times in the first hour, and then once an hour.
func TestWhatWasRejectedIsOfferedAgainUnderAGrowingPause(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		var repaired atomic.Bool
		c := r.client(xdstest.ClientConfig{Reject: func(typeURL string, w *discoveryv3.Resource) error {
			if repaired.Load() {
				return nil
			}
			return rejectBad(typeURL, w)
		}})
		r.envoy(c)
		r.pass(time.Second)
		offered := func(d time.Duration) int {
			before := len(c.Of(xds.ListenerType))
			r.pass(d)
			return len(c.Of(xds.ListenerType)) - before
		}
		r.cp.Set(xdstest.BadListener("bad"))
		if n := offered(time.Minute); n < 3 || n > 7 {
			r.Errorf("sent %d times in the first minute", n)
		}
		r.cp.Resend(xds.ListenerType)
		r.pass(time.Hour)
		for hour := range 3 {
			for range 10 {
				r.cp.Resend(xds.ListenerType)
				r.pass(time.Minute)
			}
			if n := offered(time.Hour - 10*time.Minute); n > 2 {
				r.Errorf("sent %d times in hour %d", n, hour)
			}
		}
		// Each time that the control plane has sent it, it has been told.
		sent := 0
		for _, a := range r.cp.Answers() {
			if a.Type == xds.ListenerType && slices.Contains(a.Names, "bad") {
				sent++
			}
		}
		if n := r.count(xdstest.Nack, xds.ListenerType); n != sent {
			r.Errorf("%d NACKs, want one for each of the %d times that it was sent", n, sent)
		}
		repaired.Store(true)
		r.cp.Set(xdstest.Listener("bad", 3, "r1"))
		r.pass(time.Second)
		r.holds(c, xds.ListenerType, "bad", "l1")
	})
}

// design.md I6, I7: a route is rejected for a cluster that is not there, as Envoy does it with validate_clusters. It is offered again when
// the client has the cluster, and the control plane is told that it is accepted now.
func TestWhatWasRejectedIsOfferedAgainWhenItsCauseComes(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		var hasCluster atomic.Bool
		c := r.client(xdstest.ClientConfig{Reject: func(typeURL string, w *discoveryv3.Resource) error {
			switch {
			case typeURL == xds.ClusterType && w.GetName() == "late":
				hasCluster.Store(true)
			case typeURL == xds.RouteType && strings.Contains(string(w.GetResource().GetValue()), "late") && !hasCluster.Load():
				return errors.New("route: unknown cluster 'late'")
			}
			return nil
		}})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Set(xdstest.Route("r1", "late"))
		r.pass(10 * time.Minute)
		if n := r.count(xdstest.Nack, xds.RouteType); n == 0 {
			r.Fatal("it is not rejected")
		}
		tries := len(c.Of(xds.RouteType))
		r.cp.Set(xdstest.Cluster("late", ""), xdstest.CLA("late", "127.0.0.1:1"))
		r.pass(time.Second)
		if got := string(c.Held(xds.RouteType)["r1"].GetResource().GetValue()); !strings.Contains(got, "late") {
			r.Fatalf("the client has %q", got)
		}
		if n := len(c.Of(xds.RouteType)) - tries; n > 2 {
			r.Errorf("it was sent %d times", n)
		}
		requests := r.cp.Requests(xds.RouteType)
		nack, last := requests[len(requests)-2], requests[len(requests)-1]
		answers := r.cp.Answers()
		i := slices.IndexFunc(answers, func(a xdstest.Answer) bool { return a.Type == xds.RouteType && a.Nonce == last.Nonce })
		if nack.Kind != xdstest.Nack || last.Nonce != nack.Nonce || last.Error != nil || i < 0 || last.Version != "" && last.Version != answers[i].Version {
			r.Errorf("the control plane is not told that what it sent is accepted:\n%s", lines(requests))
		}
		r.pass(time.Hour)
		if n := len(c.Of(xds.RouteType)) - tries; n > 2 {
			r.Errorf("it was sent %d times after it was accepted", n)
		}
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
		r.pass(time.Second)
		for _, typeURL := range []string{xds.ListenerType, xds.RouteType} {
			// Then it is offered what was rejected: it is another process, and takes it or does not (design.md I7).
			if got := b.Of(typeURL); got[0].Err != nil || len(got) != 2 || got[1].Err == nil {
				r.Errorf("the new client was sent:\n%s", lines(got))
			}
		}
		r.holds(b, xds.ListenerType, "l1")
		if got := b.Held(xds.RouteType)["r1"].GetResource().GetValue(); string(got) != string(good) {
			r.Errorf("the new client does not keep what was accepted")
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
		for _, again := range c.Responses()[n:] {
			if len(again.Resources) != 1 || again.Resources[0].GetName() != "bad" {
				r.Errorf("and then more was sent than what was rejected:\n%s", lines(c.Responses()[n:]))
			}
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
