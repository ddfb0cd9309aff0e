// Package probation decides when a content is stable: after a client ACKed it and has used it for
// StableAfter. The absence of a resource becomes stable in the same way. A configuration that
// crashes Envoy mostly does so at once.
//
// It promises that a content becomes stable only after one client has used it for StableAfter
// without any other content of that name in between, and that the stable content of a removed
// resource is kept until clients have done without it for StableAfter.
//
// It does not know which content is ACKed or held back: its owner says that. Nothing in it has a
// lock; its owner serializes all calls.
package probation

import (
	"iter"
	"maps"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// StableAfter is how long a client must use a content, or do without a removed resource, before
// that counts as stable.
const StableAfter = time.Minute

// Queue holds the contents of one type that one client ACKed and that are not stable yet. The zero
// value is empty.
type Queue struct {
	list  []acked          // oldest first, also those that were interrupted
	inUse map[string]acked // by name, those that were not
}

// acked is a content and when the client ACKed it, as a duration since the owner was created: that
// takes a third of the memory of a time.
type acked struct {
	resource *xds.Resource
	at       time.Duration
}

// Begin records that the client ACKed a content. It reports whether the queue was empty.
func (c *Queue) Begin(r *xds.Resource, at time.Duration) (first bool) {
	if last, ok := c.inUse[r.Name]; ok && last.resource.Version == r.Version {
		return false // the client has used it since then
	}
	if c.inUse == nil {
		c.inUse = make(map[string]acked)
	}
	p := acked{r, at}
	c.inUse[r.Name] = p
	c.list = append(c.list, p)
	return len(c.list) == 1
}

// Interrupt records that the client does not use the content of a name any more. If the content
// comes back, its time starts again.
func (c *Queue) Interrupt(name string) { delete(c.inUse, name) }

// InterruptWhere interrupts each content for which unused returns true.
func (c *Queue) InterruptWhere(unused func(*xds.Resource) bool) {
	maps.DeleteFunc(c.inUse, func(_ string, p acked) bool { return unused(p.resource) })
}

// All yields every content in the queue, also those that were interrupted.
func (c *Queue) All() iter.Seq[*xds.Resource] {
	return func(yield func(*xds.Resource) bool) {
		for _, p := range c.list {
			if !yield(p.resource) {
				return
			}
		}
	}
}

// Promote removes the contents that were ACKed until a time, and calls stable for those that the
// client has used since. It returns when the oldest of the others was ACKed; ok is false if there
// is none.
func (c *Queue) Promote(until time.Duration, stable func(*xds.Resource)) (oldest time.Duration, ok bool) {
	passed := 0
	for passed < len(c.list) && c.list[passed].at <= until {
		if p := c.list[passed]; c.inUse[p.resource.Name] == p {
			delete(c.inUse, p.resource.Name)
			stable(p.resource)
		}
		passed++
	}
	if c.list = c.list[passed:]; len(c.list) == 0 {
		c.list, c.inUse = nil, nil
		return 0, false
	}
	return c.list[0].at, true
}

// Removed has the stable contents of resources of one type that were removed, by name, until their
// absence is stable too. Make one with make.
type Removed map[string]Removal

// Removal is the stable content of a removed resource, and when the resource was removed.
type Removal struct {
	Resource *xds.Resource
	At       time.Time
}

// Stable returns the stable content of a removed resource; nil for none.
func (f Removed) Stable(name string) *xds.Resource { return f[name].Resource }

// Expire deletes the contents that a client has done without for long enough, unless heldBack says
// that the removal is held back. watched is when the first client came. It calls deleted for each,
// and returns when the next one is due; the zero time for none.
func (f Removed) Expire(now, watched time.Time, heldBack func(name string) bool, deleted func(name string)) (next time.Time) {
	for name, r := range f {
		since := r.At
		if watched.After(since) {
			since = watched
		}
		switch at := since.Add(StableAfter); {
		case heldBack(name):
		case !at.After(now):
			delete(f, name)
			deleted(name)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return next
}
