// Package subscriptions is the union of what the clients of a group subscribe to, which is what
// sources are asked for.
//
// A name is subscribed to while a client subscribes to it, while a cluster that is subscribed to
// takes its endpoints under it, and while it is leased: for a time after a client that subscribed
// to it has gone, so that the next one finds what it needs (design.md I11), or before the first
// client has come.
//
// The package promises that its owner hears of each change of whether a name is subscribed to, and
// that each View is told the difference between what it was told last and what holds when it asks.
// It does not know what is held.
//
// A Union has no lock: its owner calls it, and its Views, under one of its own.
package subscriptions

import (
	"iter"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Union is all that is subscribed to. Make one with New.
type Union struct {
	types   map[string]*Names
	views   map[*View]struct{}
	linger  time.Duration
	changed func(xds.Key)
}

// Names are the names of one type that are subscribed to. xds.Wildcard is one.
type Names struct {
	url   string
	union *Union
	// clients and clusters count those because of which a name is subscribed to.
	clients, clusters map[string]int
	// leases tells until when; the zero time for a lease that does not run yet.
	leases map[string]time.Time
}

// New returns an empty union. Leases last for linger. changed is called when a name is subscribed
// to that was not, or the other way round, after each View was told.
func New(linger time.Duration, changed func(xds.Key)) *Union {
	return &Union{types: make(map[string]*Names), views: make(map[*View]struct{}), linger: linger, changed: changed}
}

// Of returns the names of a type; always the same for one type.
func (u *Union) Of(typeURL string) *Names {
	n := u.types[typeURL]
	if n == nil {
		n = &Names{url: typeURL, union: u, clients: make(map[string]int), clusters: make(map[string]int), leases: make(map[string]time.Time)}
		u.types[typeURL] = n
	}
	return n
}

// Has reports whether a name is subscribed to.
func (n *Names) Has(name string) bool {
	if n.clients[name] > 0 || n.clusters[name] > 0 {
		return true
	}
	_, leased := n.leases[name]
	return leased
}

// Requested reports whether a source is asked for a name: it is subscribed to, or a View has not
// been told yet that it is not, and it may be subscribed to again before that.
func (n *Names) Requested(name string) bool {
	if n.Has(name) {
		return true
	}
	for v := range n.union.views {
		if _, told := v.reported[xds.Key{Type: n.url, Name: name}]; told {
			return true
		}
	}
	return false
}

// notify tells of a change.
func (n *Names) notify(name string) {
	k := xds.Key{Type: n.url, Name: name}
	for v := range n.union.views {
		v.notify(k)
	}
	n.union.changed(k)
}

// Subscribe takes in that one more client subscribes to a name. A lease of it ends.
func (n *Names) Subscribe(name string) {
	had := n.Has(name)
	n.clients[name]++
	delete(n.leases, name)
	if !had {
		n.notify(name)
	}
}

// Unsubscribe takes in that a client does no more.
func (n *Names) Unsubscribe(name string) {
	n.decrement(n.clients, name)
}

// AddCluster takes in that one more cluster takes its endpoints under a name.
func (n *Names) AddCluster(name string) {
	had := n.Has(name)
	n.clusters[name]++
	if !had {
		n.notify(name)
	}
}

// RemoveCluster takes in that a cluster does no more.
func (n *Names) RemoveCluster(name string) {
	n.decrement(n.clusters, name)
}

func (n *Names) decrement(counts map[string]int, name string) {
	if counts[name]--; counts[name] <= 0 {
		delete(counts, name)
	}
	if !n.Has(name) {
		n.notify(name)
	}
}

// Lease leases a name from now on.
func (n *Names) Lease(name string) { n.lease(name, time.Now().Add(n.union.linger)) }

// Prefetch leases a name that is not subscribed to, before the first client comes: the lease begins
// to run with Start.
func (n *Names) Prefetch(name string) {
	if !n.Has(name) {
		n.lease(name, time.Time{})
	}
}

func (n *Names) lease(name string, until time.Time) {
	had := n.Has(name)
	n.leases[name] = until
	if !had {
		n.notify(name)
	}
}

// Start lets the leases of Prefetch run.
func (u *Union) Start() {
	for _, n := range u.types {
		for name, until := range n.leases {
			if until.IsZero() {
				n.leases[name] = time.Now().Add(u.linger)
			}
		}
	}
}

// Expire ends the leases that have run out, and returns when the next one does; the zero time for
// none.
func (u *Union) Expire(now time.Time) (next time.Time) {
	for _, n := range u.types {
		for name, until := range n.leases {
			switch {
			case until.IsZero():
			case !until.After(now):
				delete(n.leases, name)
				if !n.Has(name) {
					n.notify(name)
				}
			case next.IsZero() || until.Before(next):
				next = until
			}
		}
	}
	return next
}

// Leased reports whether anything is leased.
func (u *Union) Leased() bool {
	for _, n := range u.types {
		if len(n.leases) > 0 {
			return true
		}
	}
	return false
}

// Clients yields the names that clients subscribe to, Leases those that are leased, Clusters those
// under which clusters take their endpoints; in no order.
func (n *Names) Clients() iter.Seq[string]  { return keys(n.clients) }
func (n *Names) Leases() iter.Seq[string]   { return keys(n.leases) }
func (n *Names) Clusters() iter.Seq[string] { return keys(n.clusters) }

// Count returns how many names clients subscribe to, and how many are leased, without a wildcard.
func (n *Names) Count() (clients, leased int) {
	clients, leased = len(n.clients), len(n.leases)
	if n.clients[xds.Wildcard] > 0 {
		clients--
	}
	if _, ok := n.leases[xds.Wildcard]; ok {
		leased--
	}
	return clients, leased
}

// InUse reports whether a client subscribes to a name, or a cluster needs it: it is not only leased.
func (n *Names) InUse(name string) bool { return n.clients[name] > 0 || n.clusters[name] > 0 }

// SubscribedOrLeased reports whether a client subscribes to a name, or did until lately: it is leased.
func (n *Names) SubscribedOrLeased(name string) bool {
	_, leased := n.leases[name]
	return leased || n.clients[name] > 0
}

func keys[V any](m map[string]V) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// View is what one source is told of the union.
type View struct {
	union *Union
	// of reports whether the source is asked for a name at all.
	of func(xds.Key) bool
	// changed holds a value when Changes has something to tell.
	changed  chan struct{}
	dirty    map[xds.Key]struct{}
	reported map[xds.Key]struct{}
}

// View opens a view, to which everything that is subscribed to is new.
func (u *Union) View(of func(xds.Key) bool) *View {
	v := &View{union: u, of: of, changed: make(chan struct{}, 1), dirty: make(map[xds.Key]struct{}), reported: make(map[xds.Key]struct{})}
	for url, n := range u.types {
		v.notify(xds.Key{Type: url, Name: xds.Wildcard})
		for _, names := range []iter.Seq[string]{n.Clients(), n.Clusters(), n.Leases()} {
			for name := range names {
				v.notify(xds.Key{Type: url, Name: name})
			}
		}
	}
	u.views[v] = struct{}{}
	return v
}

func (v *View) notify(k xds.Key) {
	if !v.of(k) {
		return
	}
	v.dirty[k] = struct{}{}
	v.Wake()
}

// Wake makes the source look at something, though nothing may have changed.
func (v *View) Wake() {
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

// Wake wakes the sources of all views.
func (u *Union) Wake() {
	for v := range u.views {
		v.Wake()
	}
}

// Changed holds a value when Changes has something to tell.
func (v *View) Changed() <-chan struct{} { return v.changed }

// Changes calls yield for each name that changed since the last call, and for each wildcard at the
// first, with whether it is subscribed to, and whether the source was told so before.
func (v *View) Changes(yield func(k xds.Key, is, was bool)) {
	for k := range v.dirty {
		_, was := v.reported[k]
		is := v.union.Of(k.Type).Has(k.Name)
		if is {
			v.reported[k] = struct{}{}
		} else {
			delete(v.reported, k)
		}
		yield(k, is, was)
	}
	clear(v.dirty)
}

// Reported reports whether the source was told that a name is subscribed to.
func (v *View) Reported(k xds.Key) bool {
	_, told := v.reported[k]
	return told
}

// Close ends the view, and calls gone for each name that its source was asked for.
func (v *View) Close(gone func(xds.Key)) {
	delete(v.union.views, v)
	for k := range v.reported {
		gone(k)
	}
}
