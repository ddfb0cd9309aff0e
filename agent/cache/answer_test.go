package cache

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

func cds(nameVersion string) *xds.Resource { return res(xds.ClusterType, nameVersion) }

// revision returns the cache's revision.
func revision(c *Cache) (n uint64) {
	look(c, func(s Snapshot) { n = s.Revision() })
	return n
}

// design.md I6: ACK at once when no stream is interested.
func TestAnUpdateThatConcernsNobodyIsAckedAtOnce(t *testing.T) {
	c := New(Config{})
	put(c, xds.ClusterType, "a@1").want(t, "ack")
	watch(c, "a", xds.ClusterType, "*")
	put(c, xds.ClusterType, "a@1").want(t, "ack") // nothing new
	put(c, xds.EndpointType, "a@1").want(t, "ack")
	put(c, xds.ClusterType, "a@2").want(t)
	c.Apply(xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{cds("a@3")}}, nil)
}

// design.md I6: ACK when every interested stream has ACKed a state at least that new.
func TestAnUpdateIsAckedWhenEveryWatchThatItConcernsHasPassedIt(t *testing.T) {
	c := New(Config{})
	a, b := watch(c, "a", xds.ClusterType, "*"), watch(c, "b", xds.ClusterType, "x")
	other := watch(c, "c", xds.ClusterType, "y")
	first := put(c, xds.ClusterType, "x@1")
	one := revision(c)
	second := put(c, xds.ClusterType, "x@2")
	two := revision(c)
	a.Progress(xds.ClusterType, one)
	other.Progress(xds.ClusterType, two)
	b.Progress(xds.EndpointType, two)
	first.want(t)
	b.Progress(xds.ClusterType, two)
	first.want(t, "ack")
	second.want(t)
	a.Progress(xds.ClusterType, two)
	a.Progress(xds.ClusterType, two)
	first.want(t, "ack")
	second.want(t, "ack")
}

func TestAWatchThatClosesIsNotWaitedFor(t *testing.T) {
	c := New(Config{})
	a, b := watch(c, "a", xds.ClusterType, "*"), watch(c, "b", xds.ClusterType, "*")
	v := put(c, xds.ClusterType, "x@1")
	a.Close(nil)
	v.want(t)
	b.Close(nil)
	v.want(t, "ack")
}

// design.md I6: NACK, with Envoy's words, when one has NACKed it.
func TestOneNackIsTheAnswer(t *testing.T) {
	c := New(Config{})
	a, b := watch(c, "envoy-1", xds.ClusterType, "*"), watch(c, "envoy-2", xds.ClusterType, "*")
	v := put(c, xds.ClusterType, "x@1")
	a.Nack(xds.ClusterType, revision(c), "malformed", cds("x@1"), nil)
	v.want(t, "nack: envoy-1: malformed")
	b.Nack(xds.ClusterType, revision(c), "malformed too", cds("x@1"), nil)
	b.Progress(xds.ClusterType, revision(c))
	v.want(t, "nack: envoy-1: malformed")
}

// design.md I6: of several coalesced responses, the newest unanswered nonce gets it.
func TestTheNewestOfSeveralUpdatesGetsTheNack(t *testing.T) {
	c := New(Config{})
	a := watch(c, "a", xds.ClusterType, "*")
	first, second := put(c, xds.ClusterType, "x@1"), put(c, xds.ClusterType, "y@1")
	seen := revision(c)
	third := put(c, xds.ClusterType, "z@1")
	a.Nack(xds.ClusterType, seen, "no", nil, []*xds.Resource{cds("x@1"), cds("y@1")})
	first.want(t, "ack")
	second.want(t, "nack: a: no")
	third.want(t)
}

// The answer to a suspect that was sent alone is not the answer to an update.
func TestTheAnswerToARetryIsNotThatToAnUpdate(t *testing.T) {
	c := New(Config{})
	a := watch(c, "a", xds.ClusterType, "*")
	v := put(c, xds.ClusterType, "x@1")
	a.Nack(xds.ClusterType, 0, "no", cds("x@1"), nil)
	v.want(t)
	wantStatus(t, c, xds.ClusterType, "x", xds.Nacked, "")
}

// design.md I7.
func TestWhatWasNackedIsNackedWhenItIsRepeated(t *testing.T) {
	c := New(Config{})
	a := watch(c, "a", xds.ClusterType, "*")
	put(c, xds.ClusterType, "x@1")
	a.Ack(xds.ClusterType, []*xds.Resource{cds("x@1")}, nil)
	wantStatus(t, c, xds.ClusterType, "x", xds.Acked, "1")
	put(c, xds.ClusterType, "x@2")
	wantStatus(t, c, xds.ClusterType, "x", xds.Pending, "1")
	a.Nack(xds.ClusterType, revision(c), "no", cds("x@2"), nil)
	wantStatus(t, c, xds.ClusterType, "x", xds.Nacked, "1")
	put(c, xds.ClusterType, "x@2").want(t, "nack: a: no")
	put(c, xds.ClusterType, "x@3").want(t)
	wantStatus(t, c, xds.ClusterType, "x", xds.Pending, "1")
	put(c, xds.ClusterType, "x@2").want(t, "nack: a: no")
	wantStatus(t, c, xds.ClusterType, "x", xds.Nacked, "1")
	if got := c.Resources(xds.ClusterType)[0].Reason; got != "a: no" {
		t.Errorf("reason %q", got)
	}
	// The control plane reverts to the ACKed content.
	put(c, xds.ClusterType, "x@1")
	wantStatus(t, c, xds.ClusterType, "x", xds.Acked, "1")
}

// design.md I7: what any client ACKed counts as ACKed.
func TestWhatOneClientAcceptsIsAccepted(t *testing.T) {
	t.Run("after another refused it", func(t *testing.T) {
		c := New(Config{})
		a, b := watch(c, "a", xds.ClusterType, "*"), watch(c, "b", xds.ClusterType, "*")
		put(c, xds.ClusterType, "x@1")
		a.Nack(xds.ClusterType, revision(c), "no", cds("x@1"), nil)
		changed(a)
		b.Ack(xds.ClusterType, []*xds.Resource{cds("x@1")}, nil)
		wantStatus(t, c, xds.ClusterType, "x", xds.Acked, "1")
		wantChanged(t, a, "CDS x") // it was given something else
		put(c, xds.ClusterType, "x@1").want(t, "ack")
	})
	t.Run("before another refuses it", func(t *testing.T) {
		c := New(Config{})
		a, b := watch(c, "a", xds.ClusterType, "*"), watch(c, "b", xds.ClusterType, "*")
		put(c, xds.ClusterType, "x@1")
		b.Ack(xds.ClusterType, []*xds.Resource{cds("x@1")}, nil)
		a.Nack(xds.ClusterType, revision(c), "no", cds("x@1"), nil)
		wantStatus(t, c, xds.ClusterType, "x", xds.Acked, "1")
	})
	t.Run("though a third ACKs an older one later", func(t *testing.T) {
		c := New(Config{})
		a, b := watch(c, "a", xds.ClusterType, "*"), watch(c, "b", xds.ClusterType, "*")
		put(c, xds.ClusterType, "x@1")
		put(c, xds.ClusterType, "x@2")
		a.Ack(xds.ClusterType, []*xds.Resource{cds("x@2")}, nil)
		b.Ack(xds.ClusterType, []*xds.Resource{cds("x@1")}, nil)
		wantStatus(t, c, xds.ClusterType, "x", xds.Acked, "2")
		b.Nack(xds.ClusterType, revision(c), "no", cds("x@2"), nil)
		wantStatus(t, c, xds.ClusterType, "x", xds.Acked, "2")
	})
}

// An ACK of a content that was replaced meanwhile still counts.
func TestAnOvertakenVersionThatWasAcceptedIsTheBestKnown(t *testing.T) {
	c := New(Config{})
	a := watch(c, "a", xds.ClusterType, "*")
	put(c, xds.ClusterType, "x@1")
	put(c, xds.ClusterType, "x@2")
	a.Ack(xds.ClusterType, []*xds.Resource{cds("x@1")}, nil)
	wantStatus(t, c, xds.ClusterType, "x", xds.Pending, "1")
	a.Ack(xds.ClusterType, []*xds.Resource{cds("gone@1")}, nil) // it is not held any more
	holds(t, c, xds.ClusterType, "x@2")
}

// design.md I7: several new resources of a NACKed response are suspects only.
func TestSuspectsAreNotRejected(t *testing.T) {
	c := New(Config{})
	a := watch(c, "a", xds.ClusterType, "*")
	put(c, xds.ClusterType, "x@1", "y@1", "z@1")
	a.Ack(xds.ClusterType, []*xds.Resource{cds("z@1")}, nil)
	put(c, xds.ClusterType, "y@2")
	a.Nack(xds.ClusterType, revision(c), "no", nil, []*xds.Resource{cds("x@1"), cds("y@1"), cds("z@1")})
	wantStatus(t, c, xds.ClusterType, "x", xds.Suspect, "")
	wantStatus(t, c, xds.ClusterType, "y", xds.Pending, "") // newer than what was refused
	wantStatus(t, c, xds.ClusterType, "z", xds.Acked, "1")
	put(c, xds.ClusterType, "x@1").want(t, "nack: a: no") // unchanged, and nobody has accepted it
	a.Ack(xds.ClusterType, []*xds.Resource{cds("x@1")}, nil)
	put(c, xds.ClusterType, "x@1").want(t, "ack")
}

// design.md I7: when the cause of a NACK is known or removed, the other resources that were NACKed
// with it are sent once more. In a complete set none can be sent alone, so they would stay
// suspects.
func TestSuspectsAreRetriedWhenTheCauseIsKnownOrRemoved(t *testing.T) {
	for name, ends := range map[string]func(c *Cache, w *Watch){
		"known":   func(c *Cache, w *Watch) { w.Nack(xds.ListenerType, 0, "bad", res(xds.ListenerType, "bad@1"), nil) },
		"changed": func(c *Cache, _ *Watch) { put(c, xds.ListenerType, "bad@2") },
		"removed": func(c *Cache, _ *Watch) { apply(c, xds.Update{Type: xds.ListenerType, Removed: []string{"bad"}}) },
	} {
		t.Run(name, func(t *testing.T) {
			c := New(Config{})
			w := watch(c, "x", xds.ListenerType, "*")
			complete(c, xds.ListenerType, "good@1")
			accept(w, xds.ListenerType, "good@1")
			complete(c, xds.ListenerType, "good@2", "bad@1")
			w.Nack(xds.ListenerType, c.revision, "bad", nil, []*xds.Resource{res(xds.ListenerType, "good@2"), res(xds.ListenerType, "bad@1")})
			wantStatus(t, c, xds.ListenerType, "good", xds.Suspect, "1")
			changed(w)
			ends(c, w)
			wantStatus(t, c, xds.ListenerType, "good", xds.Pending, "1")
			if got := changed(w); !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "good") }) {
				t.Errorf("clients are told of %q", got)
			}
		})
	}
}

// A Delta server does not send an update again that went beyond the limits. It is asked again, and
// until then the error stays.
func TestASourceIsAskedAgainForAnUpdateThatDidNotFit(t *testing.T) {
	c := New(Config{MaxResources: 2})
	watch(c, "x", xds.ClusterType, "*")
	put(c, xds.ClusterType, "a@1", "b@1")
	apply(c, xds.Update{Source: "one", Type: xds.ClusterType, Resources: resources(xds.ClusterType, []string{"c@1", "d@1"}), Removed: []string{"a"}})
	put(c, xds.ClusterType, "b@2")
	if got := c.Nacked("one", xds.ClusterType); !slices.Equal(got, []string{xds.Wildcard}) {
		t.Errorf("to be asked for again: %q", got)
	}
	if got := c.Nacked("two", xds.ClusterType); len(got) > 0 {
		t.Errorf("another source is to be asked for %q", got)
	}
	problem := func() error { return c.state.Existing(xds.ClusterType).Errors.Of("") }
	if problem() == nil {
		t.Error("nothing is said of it any more")
	}
	held(t, c, "one", xds.ClusterType, map[string]string{"a": "u1", "b": "u2"})
	if got := c.Nacked("one", xds.ClusterType); len(got) > 0 || problem() != nil {
		t.Errorf("after it was told what is held: %q, %v", got, problem())
	}
}
