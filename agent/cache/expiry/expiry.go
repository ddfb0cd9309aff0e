// Package expiry tells when resources with a TTL have outlived it.
//
// It promises that a deadline passes once, and not before its time; that one which was put off by
// a heartbeat does not pass; and that what was put off is forgotten as soon as there is more of
// it than of the rest. It does not know what is held: its owner says of each deadline whether it
// is still that of the resource.
//
// A Deadlines has no lock: its owner calls it under one of its own.
package expiry

import (
	"container/heap"
	"slices"
	"time"
)

// minCompacted is how many deadlines there must be at least for those that were put off to be
// looked for.
const minCompacted = 64

// Deadlines are the deadlines of resources, K of which stands for one. Make one with New.
type Deadlines[K any] struct {
	// current returns the deadline that a resource has now; the zero time for none.
	current func(K) time.Time
	// began is when the times of the heap count from, which so take half the memory.
	began time.Time
	heap  deadlines[K]
}

// New returns no deadlines. current returns the deadline that a resource has now, the zero time
// if it has none or is not held.
func New[K any](current func(K) time.Time) *Deadlines[K] {
	return &Deadlines[K]{current: current, began: time.Now()}
}

// Add notes the deadline of a resource, held being how many resources there are. It reports
// whether none is earlier.
func (d *Deadlines[K]) Add(k K, at time.Time, held int) (earliest bool) {
	if len(d.heap) > minCompacted+4*held {
		d.heap = slices.DeleteFunc(d.heap, func(x deadline[K]) bool { return !d.isCurrent(x) })
		heap.Init(&d.heap)
	}
	after := at.Sub(d.began)
	heap.Push(&d.heap, deadline[K]{after, k})
	return d.heap[0].after == after
}

// Pop returns a resource whose deadline has passed; ok is false if there is none, and next is
// then when there may be one, the zero time for never. Each is returned once.
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

// isCurrent reports whether a deadline is still that of the resource.
func (d *Deadlines[K]) isCurrent(x deadline[K]) bool {
	at := d.current(x.key)
	return !at.IsZero() && at.Sub(d.began) == x.after
}

type deadline[K any] struct {
	after time.Duration
	key   K
}

// deadlines is a heap, the earliest first.
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
