// Package eviction finds the resources that nobody subscribes to, and that are dropped when there are too many of them. It also
// subscribes to the endpoints of the clusters that somebody subscribes to.
//
// It promises that what is subscribed to is never dropped, and that nothing is while something is held back or frozen, which may refer
// to it. Nothing in it has a lock: its owner serializes all calls.
package eviction

import (
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Unreferenced orders the resources without a subscription by age. Make one with New.
type Unreferenced struct {
	s   *state.State
	lru *lru.Cache[xds.Key, struct{}]
	// keeping reports whether nothing may be dropped.
	keeping func() bool
	evict   func(xds.Key)
}

// New returns an Unreferenced of at most n resources, which is positive. While keeping returns true none is added; UpdateAll adds
// them later. evict is called for each name that is dropped.
func New(s *state.State, n int, keeping func() bool, evict func(xds.Key)) *Unreferenced {
	u := &Unreferenced{s: s, keeping: keeping, evict: evict}
	u.lru, _ = lru.NewWithEvict(n, func(k xds.Key, _ struct{}) { u.evicted(k) }) // there is no error, because n is positive
	return u
}

// evicted is called by the LRU for each entry that it pushes out or that is removed from it. Only
// an entry that was pushed out is still unreferenced.
func (u *Unreferenced) evicted(k xds.Key) {
	t := u.s.Existing(k.Type)
	if e := t.Entry(k.Name); e == nil || t.IsReferenced(e) {
		return
	}
	u.evict(k)
	t.SetIncomplete() // no source removed it
}

// Len is the number of resources without a subscription.
func (u *Unreferenced) Len() int { return u.lru.Len() }

// Drop drops a name if it is without a subscription.
func (u *Unreferenced) Drop(k xds.Key) { u.lru.Remove(k) }

// After updates the order for a name that has changed.
func (u *Unreferenced) After(x *state.Change) {
	if x.Kind == state.Put {
		u.Update(x.Table, x.Name, x.Entry)
		return
	}
	u.subscribeEndpoints(x.Entry, nil)
	u.lru.Remove(x.Key())
}

// Repeated makes an entry that was put again recent.
func (u *Unreferenced) Repeated(t *state.Table, e *contents.Entry) { u.Update(t, e.Current().Name, e) }

// Update puts an entry into the order if it is not referenced, but not while something is held
// back, and takes it out otherwise.
func (u *Unreferenced) Update(t *state.Table, name string, e *contents.Entry) {
	if t.IsReferenced(e) {
		if u.lru.Len() > 0 {
			u.lru.Remove(t.Key(name))
		}
		u.subscribeEndpoints(e, e.Current())
		return
	}
	u.subscribeEndpoints(e, nil)
	if !u.keeping() { // otherwise what is held back or frozen may refer to it
		u.lru.Add(t.Key(name), struct{}{})
	}
}

// UpdateAll updates the order for everything, or for what was restored only.
func (u *Unreferenced) UpdateAll(restoredOnly bool) {
	for _, t := range u.s.Tables() {
		for name, e := range t.All() {
			if !restoredOnly || e.Restored() {
				u.Update(t, name, e)
			}
		}
	}
}

// Subscribed updates the order for a name, an alias, a glob collection or the wildcard that became subscribed to, or is not any more.
func (u *Unreferenced) Subscribed(t *state.Table, name string) {
	if name == xds.Wildcard {
		for n, e := range t.All() {
			u.Update(t, n, e)
		}
		return
	}
	for n, e := range t.Collection(name) {
		u.Update(t, n, e)
	}
	if name = t.Canonical(name); t.Entry(name) != nil {
		u.Update(t, name, t.Entry(name))
	}
}

// subscribeEndpoints subscribes to the endpoints of a cluster on behalf of its entry: the client is
// about to ask for them, and if the control plane disconnected before, the client would have a
// cluster that cannot warm. r is nil if the entry is not referenced any more.
func (u *Unreferenced) subscribeEndpoints(e *contents.Entry, r *xds.Resource) {
	if r != nil && r.EDSName == "" {
		r = nil
	}
	before := e.EndpointsOf
	if before == r {
		return
	}
	e.EndpointsOf = r
	names := u.s.Table(xds.EndpointType).Names
	if r != nil {
		names.AddCluster(r.EDSName) // before the other is removed, because the names may be the same
	}
	if before != nil {
		names.RemoveCluster(before.EDSName)
	}
}
