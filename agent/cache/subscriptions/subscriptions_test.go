package subscriptions

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const url = xds.EndpointType

// rig is a union, and the calls of its owner's function.
type rig struct {
	*testing.T
	u     *Union
	names *Names
	heard []string
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t}
	r.u = New(time.Minute, func(k xds.Key) {
		word := "-"
		if r.u.Of(k.Type).Has(k.Name) {
			word = "+"
		}
		r.heard = append(r.heard, word+k.Name)
	})
	r.names = r.u.Of(url)
	return r
}

// hears fails unless the owner's function was called with just this since the last call of hears.
func (r *rig) hears(want ...string) {
	r.Helper()
	if !slices.Equal(r.heard, want) {
		r.Errorf("heard %q, want %q", r.heard, want)
	}
	r.heard = nil
}

// tells fails unless the changes of a view are just this.
func (r *rig) tells(v *View, want ...string) {
	r.Helper()
	var got []string
	v.Changes(func(k xds.Key, is, was bool) {
		name := k.Name
		switch {
		case name == xds.Wildcard && !is && !was: // each is looked at first
		case is == was:
			got = append(got, "="+name)
		case is:
			got = append(got, "+"+name)
		default:
			got = append(got, "-"+name)
		}
	})
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.Errorf("told %q, want %q", got, want)
	}
}

func TestANameIsSubscribedToWhileAnythingNeedsIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.names.Subscribe("a")
		r.names.Subscribe("a")
		r.names.AddCluster("a")
		r.hears("+a")
		r.names.Unsubscribe("a")
		r.names.Lease("a")
		r.names.Unsubscribe("a")
		r.names.RemoveCluster("a")
		r.hears()
		if r.names.InUse("a") || !r.names.SubscribedOrLeased("a") || !r.u.Leased() {
			t.Error("it is leased only, and does not say so")
		}
		time.Sleep(time.Minute - 1)
		if next := r.u.Expire(time.Now()); !next.Equal(time.Now().Add(1)) || !r.names.Has("a") {
			t.Errorf("the lease ends at %v", next)
		}
		time.Sleep(time.Nanosecond)
		if next := r.u.Expire(time.Now()); !next.IsZero() {
			t.Errorf("another lease ends at %v", next)
		}
		r.hears("-a")
	})
}

// design.md I11: the time of leases that were there before the first client starts with it.
func TestAPrefetchedNameIsLeasedFromTheFirstClientOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.names.Prefetch("a")
		r.names.Prefetch("b")
		r.hears("+a", "+b")
		time.Sleep(time.Hour)
		if next := r.u.Expire(time.Now()); !next.IsZero() {
			t.Errorf("a lease runs without a client, until %v", next)
		}
		r.names.Subscribe("b")
		r.names.Prefetch("b") // it has a client, and needs no lease
		r.u.Start()
		if clients, leased := r.names.Count(); clients != 1 || leased != 1 {
			t.Errorf("%d by clients, %d leased", clients, leased)
		}
		time.Sleep(time.Minute)
		r.u.Expire(time.Now())
		r.hears("-a")
	})
}

func TestAViewReturnsTheDifferenceToWhatItReturned(t *testing.T) {
	r := newRig(t)
	r.names.Subscribe("a")
	r.names.AddCluster("b")
	r.names.Prefetch("c")
	all := r.u.View(func(xds.Key) bool { return true })
	some := r.u.View(func(k xds.Key) bool { return strings.Compare(k.Name, "b") >= 0 })
	r.tells(all, "+a", "+b", "+c")
	r.tells(some, "+b", "+c")
	select {
	case <-all.Changed():
	default:
		t.Error("it was not woken")
	}
	r.names.Unsubscribe("a")
	r.names.Subscribe("d")
	r.names.Unsubscribe("d")
	r.names.RemoveCluster("b")
	r.names.AddCluster("b")
	if !r.names.Requested("a") || r.names.Requested("d") {
		t.Error("it is not known what sources were told")
	}
	r.tells(all, "-a", "=b", "=d")
	r.tells(some, "=b", "=d")
	if r.names.Requested("a") {
		t.Error("a source is said to be asked for what it was told to give up")
	}
	r.u.Wake()
	<-some.Changed()
	var gone []string
	all.Close(func(k xds.Key) { gone = append(gone, k.Name) })
	slices.Sort(gone)
	if got := fmt.Sprint(gone); got != "[b c]" {
		t.Errorf("the source was asked for %s", got)
	}
	r.names.Subscribe("e")
	r.tells(some, "+e")
}

func TestWildcardsAreCountedApart(t *testing.T) {
	r := newRig(t)
	r.names.Subscribe(xds.Wildcard)
	r.names.Subscribe("a")
	r.names.Lease(xds.Wildcard)
	if clients, leased := r.names.Count(); clients != 1 || leased != 0 {
		t.Errorf("%d by clients, %d leased", clients, leased)
	}
}
