// Package expiry finds the resources whose TTL has ended.
//
// It promises that Pop returns each deadline once and not before its time, that a deadline which a
// heartbeat moved is not returned, and that superseded deadlines do not use more memory than a
// small multiple of the others. It does not hold resources: its owner says which deadline each one
// has now.
//
// A Deadlines has no lock: its owner serializes all calls.
package expiry

import (
	"container/heap"
	"slices"
	"time"
)

// minCompacted is the number of deadlines up to which superseded ones are not searched for.
const minCompacted = 64

// Deadlines holds the deadlines of resources, which are identified by a K. Make one with New.
type Deadlines[K any] struct {
	// current returns the deadline that a resource has now; the zero time for none.
	current func(K) time.Time
	// began is the time from which the deadlines in the heap count: a duration takes half the
	// memory of a time.
	began time.Time
	heap  deadlines[K]
}

// New returns an empty Deadlines. current returns the deadline that a resource has now; the zero
// time if it has none, or is not cached.
func New[K any](current func(K) time.Time) *Deadlines[K] {
	return &Deadlines[K]{current: current, began: time.Now()}
}

// Add adds a deadline; held is the number of cached resources. It reports whether no other deadline
// is earlier.
func (d *Deadlines[K]) Add(k K, at time.Time, held int) (earliest bool) {
	if len(d.heap) > minCompacted+4*held {
		d.heap = slices.DeleteFunc(d.heap, func(x deadline[K]) bool { return !d.isCurrent(x) })
		heap.Init(&d.heap)
	}
	after := at.Sub(d.began)
	heap.Push(&d.heap, deadline[K]{after, k})
	return d.heap[0].after == after
}

// Pop removes and returns a resource whose deadline has passed. If there is none, ok is false, and
// next is the earliest deadline, the zero time for none.
func (d *Deadlines[K]) Pop(now time.Time) (k K, next time.Time, ok bool) {
	for len(d.heap) > 0 {
		if at := d.began.Add(d.heap[0].after); at.After(now) {
			return k, at, false
		}
		if x := heap.Pop(&d.heap).(deadline[K]); d.isCurrent(x) {
			return x.key, time.Time{}, true
		}
	}
	return k, time.Time{}, false
}

// isCurrent reports whether a deadline is the one that its resource has now.
func (d *Deadlines[K]) isCurrent(x deadline[K]) bool {
	at := d.current(x.key)
	return !at.IsZero() && at.Sub(d.began) == x.after
}

type deadline[K any] struct {
	after time.Duration
	key   K
}

// deadlines is a heap.Interface with the earliest deadline first.
type deadlines[K any] []deadline[K]

func (x deadlines[K]) Len() int           { return len(x) }
func (x deadlines[K]) Less(i, j int) bool { return x[i].after < x[j].after }
func (x deadlines[K]) Swap(i, j int)      { x[i], x[j] = x[j], x[i] }
func (x *deadlines[K]) Push(e any)        { *x = append(*x, e.(deadline[K])) }
func (x *deadlines[K]) Pop() any {
	last := len(*x) - 1
	e := (*x)[last]
	(*x)[last] = deadline[K]{}
	*x = (*x)[:last]
	return e
}
