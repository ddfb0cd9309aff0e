// Package queue decides which proxy is served next (mesh.md, a change on its way, 4). It is a state
// machine: its inputs are requests for proxies and the ends of their service; Next returns the proxy
// to serve.
//
// It promises that:
//   - proxies are served in the order in which they were put in, and at most the throttle at once;
//   - a proxy is in the queue once. A request that meets another for the same proxy merges with it,
//     so that a slow proxy costs one request (mesh.md M2);
//   - a proxy is not served twice at once. A request that comes while it is served goes in when it
//     is done;
//   - no request is lost, except those of a proxy that is removed.
//
// It does not serve. It has no clock, no lock and does no I/O. A Queue is not safe for concurrent use.
package queue

import (
	"container/list"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/push"
)

// DefaultThrottle is how many proxies Istio serves at once by default.
const DefaultThrottle = 100

// Entry is a proxy to be served. P identifies a proxy.
type Entry[P comparable] struct {
	Proxy P
	// Request has all that was enqueued for the proxy since it was served before.
	Request *push.Request
	// Since is the time of the first Enqueue that is part of Request.
	Since time.Time
}

// Queue has the proxies that wait and those that are served. Create one with New.
type Queue[P comparable] struct {
	throttle int
	order    list.List // of *Entry[P], the next one first
	waiting  map[P]*list.Element
	// serving has the proxies that are served, each with what came since; nil for nothing.
	serving map[P]*Entry[P]
	last    merge
}

// merge is the last merge of two requests. Many proxies wait with the same request and get the same
// one next, and share the result.
type merge struct{ a, b, result *push.Request }

// New returns an empty queue that serves at most throttle proxies at once, at least 1.
func New[P comparable](throttle int) *Queue[P] {
	return &Queue[P]{throttle: max(throttle, 1), waiting: map[P]*list.Element{}, serving: map[P]*Entry[P]{}}
}

// Enqueue puts a proxy into the queue, at its end, or merges the request with the one that waits.
func (q *Queue[P]) Enqueue(now time.Time, proxy P, r *push.Request) {
	if later, ok := q.serving[proxy]; ok {
		if later == nil {
			q.serving[proxy] = &Entry[P]{proxy, r, now}
		} else {
			later.Request = q.merge(later.Request, r)
		}
		return
	}
	if element := q.waiting[proxy]; element != nil {
		e := element.Value.(*Entry[P])
		e.Request = q.merge(e.Request, r)
		return
	}
	q.append(&Entry[P]{proxy, r, now})
}

func (q *Queue[P]) append(e *Entry[P]) { q.waiting[e.Proxy] = q.order.PushBack(e) }

func (q *Queue[P]) merge(a, b *push.Request) *push.Request {
	if q.last.a != a || q.last.b != b {
		q.last = merge{a, b, a.Merge(b)}
	}
	return q.last.result
}

// Next takes the next proxy out of the queue. It returns false if none waits or too many are being
// served. Whoever serves the proxy must call MarkDone when that is over, also if it was removed.
func (q *Queue[P]) Next() (Entry[P], bool) {
	front := q.order.Front()
	if front == nil || len(q.serving) >= q.throttle {
		return Entry[P]{}, false
	}
	e := q.order.Remove(front).(*Entry[P])
	delete(q.waiting, e.Proxy)
	q.serving[e.Proxy] = nil
	if len(q.waiting) == 0 {
		q.last = merge{} // must not keep requests alive
	}
	return *e, true
}

// MarkDone records that a proxy is not being served any more. What came for it since goes to the end
// of the queue. It has no effect if the proxy is not being served.
func (q *Queue[P]) MarkDone(proxy P) {
	later := q.serving[proxy]
	delete(q.serving, proxy)
	if later != nil {
		q.append(later)
	}
}

// Remove forgets what waits for a proxy that disconnected. If it is being served, it continues to
// count for the throttle until MarkDone, and a proxy of the same id that connects before that waits
// for it.
func (q *Queue[P]) Remove(proxy P) {
	if element := q.waiting[proxy]; element != nil {
		q.order.Remove(element)
		delete(q.waiting, proxy)
	}
	if _, ok := q.serving[proxy]; ok {
		q.serving[proxy] = nil
	}
}

// Pending returns the number of proxies that wait and are not being served.
func (q *Queue[P]) Pending() int { return len(q.waiting) }

// Serving returns the number of proxies that are being served.
func (q *Queue[P]) Serving() int { return len(q.serving) }
