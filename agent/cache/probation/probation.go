// Package probation decides what is stable: a content that a client ACKed and has lived with for
// long enough, and the absence of one that was stable. What crashes an Envoy mostly does so at once.
//
// It promises that a content is stable only after one and the same client has had it, without
// anything else under its name, for After; and that a former content is kept until clients have
// been without it for as long.
//
// It does not know what is ACKed or held back: its owner says that. Nothing in it has a lock; its
// owner calls it under one of its own.
package probation

import (
	"iter"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// StableAfter is how long a client must live with a content, or with the absence of one, for that to
// count as stable.
const StableAfter = time.Minute

// Queue are those of one type that one client ACKed and that are not stable yet. The zero value
// is empty.
type Queue struct {
	list  []acked // oldest first
	since map[string]acked
}

// acked is what a client ACKed at a time, which counts from when its owner began: that takes a
// third of the memory.
type acked struct {
	resource *xds.Resource
	at       time.Duration
}

// Begin takes in that the client ACKed a content. It reports whether it is the only one.
func (c *Queue) Begin(r *xds.Resource, at time.Duration) (only bool) {
	if last, ok := c.since[r.Name]; ok && last.resource.Version == r.Version {
		return false // the client has had it since then
	}
	if c.since == nil {
		c.since = make(map[string]acked)
	}
	p := acked{r, at}
	c.since[r.Name] = p
	c.list = append(c.list, p)
	return len(c.list) == 1
}

// Interrupt takes in that the client does not live any longer with what it had under a name. Should
// that come back, its time begins again.
func (c *Queue) Interrupt(name string) { delete(c.since, name) }

// InterruptWhere interrupts each content for which gone is true.
func (c *Queue) InterruptWhere(gone func(*xds.Resource) bool) {
	for name, p := range c.since {
		if gone(p.resource) {
			delete(c.since, name)
		}
	}
}

// All yields every content that the client ACKed and whose time is not over, those that were
// interrupted too.
func (c *Queue) All() iter.Seq[*xds.Resource] {
	return func(yield func(*xds.Resource) bool) {
		for _, p := range c.list {
			if !yield(p.resource) {
				return
			}
		}
	}
}

// Promote calls stable for each content with which the client has lived since a time or longer, and
// returns when the oldest of the others was ACKed; ok is false if there is none.
func (c *Queue) Promote(until time.Duration, stable func(*xds.Resource)) (oldest time.Duration, ok bool) {
	passed := 0
	for passed < len(c.list) && c.list[passed].at <= until {
		if p := c.list[passed]; c.since[p.resource.Name] == p {
			delete(c.since, p.resource.Name)
			stable(p.resource)
		}
		passed++
	}
	if c.list = c.list[passed:]; len(c.list) == 0 {
		c.list, c.since = nil, nil
		return 0, false
	}
	return c.list[0].at, true
}

// Removed are the stable contents of the names of one type that do not exist any more, until their
// absence is stable too. Make one with make.
type Removed map[string]Removal

// Removal is the stable content of a name, and when the name was removed.
type Removal struct {
	Resource *xds.Resource
	At       time.Time
}

// Stable returns the former content of a name; nil for none.
func (f Removed) Stable(name string) *xds.Resource { return f[name].Resource }

// Expire forgets the contents that a client has lived without for long enough, of which the first
// came at a time, unless held says that their absence is held back. It calls forgot for each, and
// returns when there is more to forget; the zero time for never.
func (f Removed) Expire(now, watched time.Time, held func(name string) bool, forgot func(name string)) (next time.Time) {
	for name, r := range f {
		since := r.At
		if watched.After(since) {
			since = watched
		}
		switch at := since.Add(StableAfter); {
		case held(name):
		case !at.After(now):
			delete(f, name)
			forgot(name)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return next
}
