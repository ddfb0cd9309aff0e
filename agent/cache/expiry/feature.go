package expiry

import (
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// A TTL is a deadline, fixed when the upstream last sent or refreshed the resource
// (design.md I8). The cache enforces it: an expired resource is never read.

// Feature knows the deadlines of the resources of a cache. Make one with NewFeature.
type Feature struct {
	s         *state.State
	deadlines *Deadlines[xds.Key]
	hold      map[string]bool
	counts    map[string]*counts // by type URL
}

// counts are of one type: how many TTLs ended, and whether a resource once had one.
type counts struct {
	expired uint64
	had     bool
}

// NewFeature returns a Feature without deadlines. hold has the types, by URL, whose TTLs are not enforced. current returns what
// the deadline of a name is that of: the newest content or, without one, what is pinned; nil for none.
func NewFeature(s *state.State, hold map[string]bool, current func(xds.Key) *xds.Resource) *Feature {
	return &Feature{s: s, hold: hold, counts: make(map[string]*counts), deadlines: New(func(k xds.Key) time.Time {
		if r := current(k); r != nil {
			return r.Deadline()
		}
		return time.Time{}
	})}
}

func (f *Feature) of(typeURL string) *counts {
	c := f.counts[typeURL]
	if c == nil {
		c = &counts{}
		f.counts[typeURL] = c
	}
	return c
}

// Track adds the deadline of a resource that was just put, refreshed, restored or pinned.
func (f *Feature) Track(r *xds.Resource) {
	if r.Deadline().IsZero() {
		return
	}
	f.of(r.Type).had = true
	if f.deadlines.Add(xds.Key{Type: r.Type, Name: r.Name}, r.Deadline(), f.s.Contents.Resources) {
		f.s.Wake()
	}
}

// After tracks the deadline of what was put.
func (f *Feature) After(x *state.Change) {
	if x.Kind == state.Put && x.Done.Change != history.Unchanged {
		f.Track(x.Entry.Current())
	}
}

// Pop returns a name whose TTL has ended. If there is none, ok is false, and next is when the next one ends; the zero time for never.
func (f *Feature) Pop(now time.Time) (k xds.Key, next time.Time, ok bool) {
	if k, next, ok = f.deadlines.Pop(now); ok {
		f.of(k.Type).expired++
	}
	return k, next, ok
}

// Expired is the number of resources of a type whose TTL has ended; Had reports whether one ever had a TTL.
func (f *Feature) Expired(typeURL string) uint64 {
	if c := f.counts[typeURL]; c != nil {
		return c.expired
	}
	return 0
}
func (f *Feature) Had(typeURL string) bool {
	c := f.counts[typeURL]
	return c != nil && c.had
}

// Holds reports whether the TTLs of a type are not enforced.
func (f *Feature) Holds(typeURL string) bool { return f.hold[typeURL] }

// Policy returns the resource, without its TTL if the policy of its type is "hold".
func (f *Feature) Policy(r *xds.Resource) *xds.Resource {
	if r.TTL() == 0 || !f.hold[r.Type] {
		return r
	}
	return r.WithLifetime(0, time.Time{})
}
