// Package subscriptions is the union of the subscriptions of a group's clients, which is what
// sources are asked for.
//
// A name is subscribed to while a client subscribes to it, while a cluster that is subscribed to
// uses it as the name of its endpoints, and while it is leased: for some time after its last client
// has disconnected, so that the next one finds what it needs (design.md I11), or before the first
// client connects.
//
// The package promises that its owner learns when a name becomes subscribed to or is not any more,
// and that each View returns the difference between what it returned before and the present state.
// It does not know which resources are cached.
//
// A Union has no lock: its owner serializes all calls to it and to its Views.
package subscriptions

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Union has the subscriptions of all types. Make one with New.
type Union struct {
	types   map[string]*Names
	views   map[*View]struct{}
	left    []string // the processes of the clients that went last
	open    map[*Client]struct{}
	linger  time.Duration
	changed func(xds.Key)
}

// Names are the names of one type that are subscribed to; xds.Wildcard may be one.
type Names struct {
	url   string
	union *Union
	// clients and clusters count the clients and the clusters that need a name.
	clients, clusters map[string]int
	// leases has the ends of the leases; the zero time before Start.
	leases map[string]time.Time
	// gone has the names of endpoints that clients subscribe to, and whose clusters all went.
	gone map[string]struct{}
}

// New returns an empty union, whose leases last for linger. changed is called when a name becomes
// subscribed to, or is not any more, after each View has recorded that.
func New(linger time.Duration, changed func(xds.Key)) *Union {
	return &Union{types: make(map[string]*Names), views: make(map[*View]struct{}), open: make(map[*Client]struct{}), linger: linger, changed: changed}
}

// Of returns the Names of a type, always the same one.
func (u *Union) Of(typeURL string) *Names {
	n := u.types[typeURL]
	if n == nil {
		n = &Names{url: typeURL, union: u, clients: make(map[string]int), clusters: make(map[string]int), leases: make(map[string]time.Time), gone: make(map[string]struct{})}
		u.types[typeURL] = n
	}
	return n
}

// Forget forgets a type, unless something of it is subscribed to or a View has returned it as subscribed to, and reports whether it
// did. Its Names must not be used any more then.
func (u *Union) Forget(typeURL string) bool {
	if n := u.types[typeURL]; n == nil || len(n.clients)+len(n.clusters)+len(n.leases) > 0 {
		return false
	}
	for v := range u.views {
		for k := range v.reported {
			if k.Type == typeURL {
				return false
			}
		}
	}
	delete(u.types, typeURL)
	return true
}

// Has reports whether a name is subscribed to.
func (n *Names) Has(name string) bool {
	_, leased := n.leases[name]
	return leased || n.InUse(name)
}

// Requested reports whether a source is asked for a name: it is subscribed to, or a View has not
// returned yet that it is not any more, and it may be subscribed to again before.
func (n *Names) Requested(name string) bool {
	if n.Has(name) {
		return true
	}
	for v := range n.union.views {
		if v.Reported(xds.Key{Type: n.url, Name: name}) {
			return true
		}
	}
	return false
}

// notify reports that a name has become subscribed to, or is not any more.
func (n *Names) notify(name string) {
	k := xds.Key{Type: n.url, Name: name}
	for v := range n.union.views {
		v.notify(k)
	}
	n.union.changed(k)
}

// Subscribe adds a client's subscription to a name, and ends a lease of the name.
func (n *Names) Subscribe(name string) {
	n.increment(n.clients, name)
	delete(n.leases, name)
}

// Unsubscribe removes a client's subscription.
func (n *Names) Unsubscribe(name string) {
	if n.decrement(n.clients, name); n.clients[name] == 0 {
		delete(n.gone, name)
	}
}

// AddCluster adds a cluster whose endpoints have a name, and RemoveCluster removes one.
func (n *Names) AddCluster(name string) {
	n.increment(n.clusters, name)
	if _, gone := n.gone[name]; gone {
		delete(n.gone, name)
		n.notify(name)
	}
}

func (n *Names) RemoveCluster(name string) {
	if n.decrement(n.clusters, name); n.clusters[name] == 0 && n.clients[name] > 0 {
		n.gone[name] = struct{}{}
	}
}

// Gone yields the names of endpoints that clients subscribe to, and whose clusters all went: the clients are about to drop them, too. Unused
// yields the names that are only leased. In no order.
func (n *Names) Gone() iter.Seq[string] { return maps.Keys(n.gone) }
func (n *Names) Unused() iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range n.leases {
			if name != xds.Wildcard && !n.InUse(name) && !yield(name) {
				return
			}
		}
	}
}

func (n *Names) increment(counts map[string]int, name string) {
	had := n.Has(name)
	counts[name]++
	if !had {
		n.notify(name)
	}
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

// Prefetch leases a name, if it is not subscribed to, before the first client connects: the time of
// the lease starts with Start.
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

// Start starts the time of the leases that Prefetch made.
func (u *Union) Start() {
	for _, n := range u.types {
		for name, until := range n.leases {
			if until.IsZero() {
				n.leases[name] = time.Now().Add(u.linger)
			}
		}
	}
}

// ReturnedFor is how long a client must have subscribed to a type for it to be clear what it needs: leases of the type that are older than its
// subscription end then. Clients of one group have one configuration, and what none of those that are back asks for is not in it: it is asked
// for no longer, because a server in state of the world may answer only when it knows every name (java-control-plane).
const ReturnedFor = 15 * time.Second

// Expire ends the leases whose time has passed, or whose clients are back, and returns when the next one is due; the zero time for none.
func (u *Union) Expire(now time.Time) (next time.Time) {
	for url, n := range u.types {
		if len(n.leases) == 0 {
			continue
		}
		back, at := u.back(url, now)
		for name, until := range n.leases {
			began := until.Add(-u.linger)
			switch {
			case until.IsZero():
			case !until.After(now) || !began.After(back):
				delete(n.leases, name)
				if !n.Has(name) {
					n.notify(name)
				}
			default:
				next = wake.Earliest(next, until, at)
			}
		}
	}
	return next
}

// back returns when the client subscribed to a type that came last of those that are back: what was leased before is not needed by them; the
// zero time for none. next is when there is another one.
func (u *Union) back(typeURL string, now time.Time) (since, next time.Time) {
	for c := range u.open {
		switch s := c.types[typeURL]; {
		case s == nil:
		case now.Sub(s.since) < ReturnedFor:
			next = wake.Earliest(next, s.since.Add(ReturnedFor))
		case s.since.After(since):
			since = s.since
		}
	}
	return since, next
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

// Clients yields the names that clients subscribe to, Leases those that are leased, and Clusters
// the names of the endpoints of clusters; in no order.
func (n *Names) Clients() iter.Seq[string]  { return maps.Keys(n.clients) }
func (n *Names) Leases() iter.Seq[string]   { return maps.Keys(n.leases) }
func (n *Names) Clusters() iter.Seq[string] { return maps.Keys(n.clusters) }

// Count returns how many names clients subscribe to, and how many are leased, without the wildcard.
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

// InUse reports whether a client or a cluster needs a name, so that it is not only leased.
func (n *Names) InUse(name string) bool { return n.clients[name] > 0 || n.clusters[name] > 0 }

// Covers reports whether a resource is subscribed to by its name, by an alias or as a member of a glob collection. r is the resource,
// nil for none.
func (n *Names) Covers(name string, r *xds.Resource) bool {
	if n.Has(name) {
		return true
	}
	if glob := xds.CollectionOf(name); glob != "" && n.Has(glob) {
		return true
	}
	return r != nil && slices.ContainsFunc(r.Aliases(), n.Has)
}

// SubscribedOrLeased reports whether a client subscribes to a name, or a lease stands for one that
// did.
func (n *Names) SubscribedOrLeased(name string) bool {
	_, leased := n.leases[name]
	return leased || n.clients[name] > 0
}

// View is one source's view of the union.
type View struct {
	union *Union
	// of reports whether the view covers a name.
	of func(xds.Key) bool
	// changed holds a value when Changes has something to return.
	changed  chan struct{}
	dirty    map[xds.Key]struct{}
	reported map[xds.Key]struct{}
}

// View opens a view of the names for which of returns true. Its first Changes yields all of them.
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
	wake.Signal(v.changed)
}

// Wake puts a value into Changed of all views although no subscription has changed.
func (u *Union) Wake() {
	for v := range u.views {
		wake.Signal(v.changed)
	}
}

// Changed holds a value when Changes has something to return.
func (v *View) Changed() <-chan struct{} { return v.changed }

// Changes calls yield for each name that may have changed since the last call, and for each
// wildcard at the first call, with whether it is subscribed to and whether it was at its last
// yield.
func (v *View) Changes(yield func(k xds.Key, is, was bool)) {
	for k := range v.dirty {
		was := v.Reported(k)
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

// Reported reports whether Changes has yielded a name as subscribed to, and not otherwise since.
func (v *View) Reported(k xds.Key) bool {
	_, reported := v.reported[k]
	return reported
}

// Close closes the view, and calls ended for each name that its source was asked for.
func (v *View) Close(ended func(xds.Key)) {
	delete(v.union.views, v)
	for k := range v.reported {
		ended(k)
	}
}
