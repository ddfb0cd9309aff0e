package cache

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// design.md I1: unknown, and then partial with the first Delta response.
func TestAWildcardIsUnknownUntilSomethingCame(t *testing.T) {
	c := New(Config{})
	knows(t, c, xds.ClusterType, xds.Unknown)
	w := watch(c, "a", xds.ClusterType, "*")
	knows(t, c, xds.ClusterType, xds.Unknown)
	put(c, xds.ClusterType)
	knows(t, c, xds.ClusterType, xds.Partial)
	wantChanged(t, w, "CDS *")
	c.Synced("one", xds.ClusterType, time.Time{})
	knows(t, c, xds.ClusterType, xds.Complete)
	wantChanged(t, w, "CDS *")
	c.Synced("one", xds.ClusterType, time.Time{})
	wantChanged(t, w)
	knows(t, c, xds.ListenerType, xds.Unknown)
}

// design.md I2: an open stream means connected, never synced.
func TestSyncingATypeWithoutAnAnswerMakesNothingKnown(t *testing.T) {
	c := New(Config{})
	watch(c, "a", xds.ClusterType, "*")
	c.Synced("one", xds.ClusterType, time.Time{})
	knows(t, c, xds.ClusterType, xds.Unknown)
}

func TestAnAnswerToNamesMakesNothingKnownOfTheWildcard(t *testing.T) {
	c := New(Config{})
	watch(c, "a", xds.ClusterType, "odc")
	put(c, xds.ClusterType, "odc@1")
	knows(t, c, xds.ClusterType, xds.Unknown)
	apply(c, xds.Update{Type: xds.ClusterType, Resources: resources(xds.ClusterType, []string{"a@1"}), KeepUnsubscribed: true})
	knows(t, c, xds.ClusterType, xds.Partial)
}

func TestACompleteAnswerCompletes(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.ClusterType, "*")
	complete(c, xds.ClusterType)
	knows(t, c, xds.ClusterType, xds.Complete)
	wantChanged(t, w, "CDS *")
	complete(c, xds.ClusterType, "a@1")
	put(c, xds.ClusterType, "b@1")
	knows(t, c, xds.ClusterType, xds.Complete)
	wantChanged(t, w, "CDS a b")
}

// No source reports removals any more.
func TestAWildcardWithoutASubscriptionIsPartialAgain(t *testing.T) {
	for _, test := range []struct {
		name    string
		unasked bool
		want    xds.Knowledge
	}{
		{"of a control plane", false, xds.Partial},
		{"but not of a source that tells all it has", true, xds.Complete},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := New(Config{})
			w, in := watch(c, "a", xds.ClusterType, "*"), c.Subscriptions()
			in.Changes()
			apply(c, xds.Update{Type: xds.ClusterType, Resources: resources(xds.ClusterType, []string{"a@1"}), Complete: true, KeepUnsubscribed: test.unasked})
			w.Subscribe(xds.ClusterType, false, nil, nil)
			subscribe(w, xds.ClusterType, "*")
			in.Changes() // the source is told nothing, and so tells what goes
			knows(t, c, xds.ClusterType, xds.Complete)
			w.Subscribe(xds.ClusterType, false, nil, nil)
			in.Changes()
			knows(t, c, xds.ClusterType, test.want)
			holds(t, c, xds.ClusterType, "a@1")
		})
	}
}

// An answer for other names, and an answer that a name does not exist, say nothing about the
// wildcard.
func TestOnlyItsAnswerMakesAWildcardKnown(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.ClusterType, "*")
	c.Apply(xds.Update{Type: xds.ClusterType, Timeout: true, Errors: []xds.ResourceError{{Name: "a", Err: xds.ErrNoAnswer}}}, nil)
	knows(t, c, xds.ClusterType, xds.Unknown)
	if err := problem(c, xds.ClusterType, "a"); err == nil {
		t.Error("the silence is not told")
	}
	c.Apply(xds.Update{Source: "one", Type: xds.ClusterType, Resources: resources(xds.ClusterType, []string{"a@1"})}, nil)
	knows(t, c, xds.ClusterType, xds.Unknown)
	wantChanged(t, w, "CDS a")
	c.Synced("one", xds.ClusterType, time.Time{})
	knows(t, c, xds.ClusterType, xds.Complete)
}

// A lease keeps the subscription, so a restarting Envoy finds complete knowledge.
func TestALeasedWildcardStaysComplete(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.ClusterType, "*")
	complete(c, xds.ClusterType, "a@1")
	w.Close(nil)
	knows(t, c, xds.ClusterType, xds.Complete)
}

// design.md I2: a source is told its own versions.
func TestASourceGetsTheVersionsThatItIssued(t *testing.T) {
	c := New(Config{})
	held(t, c, "one", xds.EndpointType, nil)
	w := watch(c, "a", xds.EndpointType, "x", "y", "host")
	put(c, xds.EndpointType, "x@1", "other@1")
	apply(c, xds.Update{Source: "two", Type: xds.EndpointType, Resources: []*xds.Resource{res(xds.EndpointType, "y@1"), res(xds.EndpointType, "v@1", "host")}})
	held(t, c, "one", xds.EndpointType, map[string]string{"x": "u1", "y": "", "v": ""})
	held(t, c, "two", xds.EndpointType, map[string]string{"x": "", "y": "u1", "v": "u1"})
	w.Close(nil) // leased
	held(t, c, "one", xds.EndpointType, map[string]string{"x": "u1", "y": "", "v": ""})
	subscribe(c.Watch("b"), xds.EndpointType, "*")
	held(t, c, "one", xds.EndpointType, map[string]string{"x": "u1", "y": "", "v": "", "other": "u1"})
}

func TestWhatWasUnsubscribedIsNotSaidToBeHeld(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.EndpointType, "x")
	put(c, xds.EndpointType, "x@1")
	w.Subscribe(xds.EndpointType, false, nil, []string{"x"})
	holds(t, c, xds.EndpointType, "x@1")
	held(t, c, "one", xds.EndpointType, nil)
}

// design.md section 1: one copy of each resource, and a resend that changes
// nothing changes nothing.
func TestTheSameContentOfAnotherSourceKeepsTheBody(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.EndpointType, "x")
	put(c, xds.EndpointType, "x@1")
	body := item(c, xds.EndpointType, "x").Current.Body
	w.Ack(xds.EndpointType, []*xds.Resource{res(xds.EndpointType, "x@1")}, nil)
	wantChanged(t, w, "EDS x")
	same := res(xds.EndpointType, "x@1")
	same.UpstreamVersion = "of two"
	apply(c, xds.Update{Source: "two", Type: xds.EndpointType, Resources: []*xds.Resource{same}})
	wantChanged(t, w)
	held(t, c, "one", xds.EndpointType, map[string]string{"x": ""})
	held(t, c, "two", xds.EndpointType, map[string]string{"x": "of two"})
	it := item(c, xds.EndpointType, "x")
	if it.Current.Body != body || it.Acked != it.Current {
		t.Errorf("the body was replaced, or what is good is another copy")
	}
}
