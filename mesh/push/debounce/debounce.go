// Package debounce decides when changes are pushed (mesh.md, a change on its way, 2). It is a state
// machine: its inputs are the time, requests, and the end of a push; its outputs are the merged
// request to push and when to wake the machine.
//
// It promises that:
//   - changes are pushed once none has come for After, and at most Max after the first of them,
//     unless the push before is still under way;
//   - at most one push is under way at a time. What comes meanwhile is merged, and waits for Done;
//   - with Endpoints false, a request that is not full is pushed at once: past the changes that
//     wait, and even while a push is under way;
//   - no request is lost.
//
// It does not push and does not know proxies. It has no clock, no lock and does no I/O. A Machine is
// not safe for concurrent use.
package debounce

import (
	"time"

	"github.com/holdfast-xds/holdfast/mesh/push"
)

// The durations that Istio has by default.
const (
	DefaultAfter = 100 * time.Millisecond
	DefaultMax   = 10 * time.Second
)

// Options configure a Machine.
type Options struct {
	// After is how long no change must have come before those that wait are pushed. With 0 they
	// wait only for the end of the push that is under way.
	After time.Duration
	// Max is how long the first of them waits at most for After. It must not be below After.
	Max time.Duration
	// Endpoints says that requests that are not full wait too.
	Endpoints bool
}

// Output is what an input caused.
type Output struct {
	// Push is the request to push now; nil for none. Unless AtOnce is set, Done must be called when
	// the push is over.
	Push *push.Request
	// AtOnce is set if the request has not waited and is pushed beside others.
	AtOnce bool
	// Waited is how long the first of the requests in Push waited, and Merged their number.
	Waited time.Duration
	Merged int
	// Next is when Wake must be called; the zero time: after another input. It replaces the Next of
	// all outputs before.
	Next time.Time
}

// Machine collects requests. Create one with New.
type Machine struct {
	options Options
	waiting push.Merger
	merged  int // the number of requests in waiting
	// first and last are when the first and the last of them came.
	first, last time.Time
	underWay    bool
}

// New returns a machine without requests.
func New(options Options) *Machine { return &Machine{options: options} }

// Add takes in a request, which must not be nil.
func (m *Machine) Add(now time.Time, r *push.Request) Output {
	if !m.options.Endpoints && !r.Full {
		return Output{Push: r, AtOnce: true, Merged: 1, Next: m.next()}
	}
	if m.merged == 0 {
		m.first = now
	}
	m.last = now
	m.merged++
	m.waiting.Add(r)
	return m.Wake(now)
}

// Done processes the end of the push that was under way.
func (m *Machine) Done(now time.Time) Output {
	m.underWay = false
	return m.Wake(now)
}

// Wake processes the time. A call before Next does no harm.
func (m *Machine) Wake(now time.Time) Output {
	next := m.next()
	if next.IsZero() || next.After(now) {
		return Output{Next: next}
	}
	out := Output{Push: m.waiting.Take(), Waited: now.Sub(m.first), Merged: m.merged}
	m.merged, m.underWay = 0, true
	return out
}

// next returns when the requests that wait are pushed, the zero time if that is not known.
func (m *Machine) next() time.Time {
	if m.merged == 0 || m.underWay {
		return time.Time{}
	}
	quiet, latest := m.last.Add(m.options.After), m.first.Add(m.options.Max)
	if latest.Before(quiet) {
		return latest
	}
	return quiet
}

// Waiting returns the number of requests that wait, and whether a push is under way.
func (m *Machine) Waiting() (requests int, underWay bool) { return m.merged, m.underWay }
