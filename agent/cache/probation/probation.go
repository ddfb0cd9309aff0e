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
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// StableAfter is how long a client must use a content, or do without a removed resource, before
// that counts as stable.
const StableAfter = time.Minute

// Queue holds the contents of one type that one client ACKed and that are not stable yet. The zero
// value is empty.
type Queue struct {
	list   []acked          // oldest first, also those that were replaced or interrupted
	newest map[string]acked // by name, the last one in list; its time is inverted if it was interrupted, here only
	// compactAt is the length of list from which on replaced contents are deleted from it: a name
	// that changes all the time would keep each of its contents for StableAfter.
	compactAt int
}

// minCompact is the least length of the list of a Queue that is compacted.
const minCompact = 1024

// acked is a content and when the client ACKed it, as a duration since the owner was created: that
// takes a third of the memory of a time. The duration of one that was interrupted is inverted, bit by bit.
type acked struct {
	resource *xds.Resource
	at       time.Duration
}

func (a acked) isInterrupted() bool { return a.at < 0 }

func (a acked) interrupted() acked {
	if !a.isInterrupted() {
		a.at = ^a.at
	}
	return a
}

// Begin records that the client ACKed a content. It reports whether the queue was empty.
func (q *Queue) Begin(r *xds.Resource, at time.Duration) (first bool) {
	if last, ok := q.newest[r.Name]; ok && !last.isInterrupted() && last.resource.Version == r.Version {
		return false // the client has used it since then
	}
	if q.newest == nil {
		q.newest = make(map[string]acked)
	}
	a := acked{r, at}
	q.newest[r.Name] = a
	q.list = append(q.list, a)
	if len(q.list) > max(q.compactAt, minCompact) {
		q.list = slices.Clone(slices.DeleteFunc(q.list, q.replaced))
		q.compactAt = 2 * len(q.list)
	}
	return len(q.list) == 1
}

// replaced reports whether the client has ACKed another content in its place since.
func (q *Queue) replaced(a acked) bool {
	return q.newest[a.resource.Name].interrupted() != a.interrupted()
}

// Interrupt records that the client does not use the content of a name any more. If the content
// comes back, its time starts again.
func (q *Queue) Interrupt(name string) {
	if last, ok := q.newest[name]; ok {
		q.newest[name] = last.interrupted()
	}
}

// InterruptWhere interrupts each content for which unused returns true.
func (q *Queue) InterruptWhere(unused func(*xds.Resource) bool) {
	for name, last := range q.newest {
		if unused(last.resource) {
			q.newest[name] = last.interrupted()
		}
	}
}

// All yields every content in the queue, also those that were interrupted. It may lack contents in
// whose place the client has ACKed another one since.
func (q *Queue) All() iter.Seq[*xds.Resource] {
	return func(yield func(*xds.Resource) bool) {
		for _, a := range q.list {
			if !yield(a.resource) {
				return
			}
		}
	}
}

// Promote removes the contents that were ACKed until a time, and calls stable for those that the
// client has used since. It returns when the oldest of the others was ACKed; ok is false if there
// is none.
func (q *Queue) Promote(until time.Duration, stable func(*xds.Resource)) (oldest time.Duration, ok bool) {
	passed := 0
	for passed < len(q.list) && q.list[passed].at <= until {
		a := q.list[passed]
		passed++
		if q.replaced(a) {
			continue
		}
		last := q.newest[a.resource.Name]
		delete(q.newest, a.resource.Name)
		if !last.isInterrupted() {
			stable(a.resource)
		}
	}
	if q.list = q.list[passed:]; len(q.list) == 0 {
		q.list, q.newest = nil, nil
		return 0, false
	}
	return q.list[0].at, true
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
