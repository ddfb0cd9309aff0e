package cache

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// isSubscribed reports whether a resource is wanted by its name, by an alias or
// as a member of a glob collection.
func (c *Cache) isSubscribed(t *table, name string, r *xds.Resource) bool {
	if t.names.Has(name) {
		return true
	}
	if glob := xds.CollectionOf(name); glob != "" && t.names.Has(glob) {
		return true
	}
	return r != nil && slices.ContainsFunc(r.Aliases(), t.names.Has)
}

// Prefetch leases subscriptions before any client has them. The leases begin to
// run with the first watch: what no client wants by then is released.
func (c *Cache) Prefetch(typeURL string, names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.table(typeURL)
	running := len(c.watches) > 0
	for _, name := range names {
		switch {
		case !running:
			t.names.Prefetch(name)
		case !t.names.Has(name):
			t.names.Lease(name)
		}
	}
	if running {
		c.wakeRun()
	}
}

// Idle reports whether nobody watches and nothing is leased.
func (c *Cache) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.watches) == 0 && !c.union.Leased()
}

// AnyMissing reports whether something is wanted of which nothing is known.
func (c *Cache) AnyMissing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, name := range c.subscribed {
		if c.isMissing(t, name) {
			return true
		}
	}
	return false
}

// subscribed yields what clients subscribe to and what is leased.
func (c *Cache) subscribed(yield func(t *table, name string) bool) {
	for _, t := range c.tables {
		for _, names := range []iter.Seq[string]{t.names.Clients(), t.names.Leases()} {
			for name := range names {
				if !yield(t, name) {
					return
				}
			}
		}
	}
}

// Missing returns what is wanted and not known to be there or not, nor was asked for in vain;
// none says that nothing is wanted at all.
func (c *Cache) Missing() (typeURL string, names []string, none bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	none = true
	missing := make(map[string][]string)
	for t, name := range c.subscribed {
		none = false
		if c.isMissing(t, name) && t.errors[name] == nil {
			missing[t.url] = append(missing[t.url], name)
		}
	}
	if len(missing) == 0 {
		return "", nil, none
	}
	typeURL = slices.SortedFunc(maps.Keys(missing), xds.CompareTypes)[0]
	slices.Sort(missing[typeURL])
	return typeURL, missing[typeURL], none
}

// Holding reports whether anything is held that is wanted and that a source gave.
func (c *Cache) Holding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tables {
		all := t.names.Has(xds.Wildcard)
		for name, e := range t.All() {
			if !e.IsLocal() && (all || c.isSubscribed(t, name, e.Current())) {
				return true
			}
		}
	}
	return false
}

func (c *Cache) isMissing(t *table, name string) bool {
	if c.local(t.key(name)) {
		return false // no upstream is asked for it
	}
	if name == xds.Wildcard {
		return !t.KnownOrRestored()
	}
	return !t.IsKnown(name)
}

// subscriptionChanged follows a change of what is wanted: the sources hear of it, and
// what it covered enters or leaves the LRU.
func (c *Cache) subscriptionChanged(t *table, name string) {
	c.persistFact(SubscribedFact, t.key(name))
	if !c.guard.Since().IsZero() {
		c.wakeRun() // of what nobody wants nobody is asked
	}
	wanted := t.names.Has(name)
	if name == xds.Wildcard {
		for n, e := range t.All() {
			c.updateLRU(t, n, e)
		}
		if !wanted {
			maps.DeleteFunc(t.errors, func(n string, _ error) bool { return n != "" && t.Entry(n) == nil && !t.names.Has(n) })
		}
		return
	}
	if !wanted && t.Entry(name) == nil && !t.names.Has(xds.Wildcard) {
		delete(t.errors, name) // a problem of nobody's
	}
	c.forgetNotFound(t.key(name))
	for n, e := range t.Collection(name) {
		c.updateLRU(t, n, e)
	}
	if name = t.Canonical(name); t.Entry(name) != nil {
		c.updateLRU(t, name, t.Entry(name))
	}
}

// updateLRU puts an entry into the LRU if nobody wants it, but not while removals are held back,
// and takes it out otherwise.
func (c *Cache) updateLRU(t *table, name string, e *entry) {
	k := t.key(name)
	if c.isReferenced(t, e) {
		if c.unreferenced.Len() > 0 {
			c.unreferenced.Remove(k)
		}
		c.subscribeEndpoints(e, e.Current())
		return
	}
	c.subscribeEndpoints(e, nil)
	if !c.guard.Since().IsZero() {
		return // nothing is evicted that goes with what is held back; endAccident adds it
	}
	c.unreferenced.Add(k, struct{}{})
}

// subscribeEndpoints makes the endpoints of a cluster wanted as long as the cluster is: the
// client is about to ask for them, and a control plane that goes away in between
// would leave it with a cluster that cannot warm. r is nil for no cluster any more.
func (c *Cache) subscribeEndpoints(e *entry, r *xds.Resource) {
	if r != nil && r.EDSName == "" {
		r = nil
	}
	before, endpoints := edsName(e.EndpointsOf), edsName(r)
	e.EndpointsOf = r
	if before == endpoints {
		return
	}
	names := c.table(xds.EndpointType).names
	if before != "" {
		names.RemoveCluster(before)
	}
	if endpoints != "" {
		names.AddCluster(endpoints)
	}
}

// edsName returns the name of a cluster's endpoints, "" for none and of no cluster.
func edsName(r *xds.Resource) string {
	if r == nil {
		return ""
	}
	return r.EDSName
}

// isReferenced reports whether an entry is kept: somebody wants it, or its source reports what nobody wants
// too.
func (c *Cache) isReferenced(t *table, e *entry) bool {
	return e.KeepUnsubscribed() || t.names.Has(xds.Wildcard) || c.isSubscribed(t, e.Current().Name, e.Current())
}

// evicted is called by the LRU under mu, for what it pushes out and for what is
// removed from it. Only the first is deleted: that is what nobody wants.
func (c *Cache) evicted(k xds.Key) {
	t := c.tables[k.Type]
	if e := t.Entry(k.Name); e == nil || c.isReferenced(t, e) {
		return
	}
	c.drop(t, k.Name)
	t.SetIncomplete() // no source said that it is gone
}

// Subscriptions is a source's view of what is subscribed to.
type Subscriptions struct {
	c    *Cache
	view *subscriptions.View // under c.mu
}

// Subscriptions opens a view of what upstreams are asked for. Close it.
func (c *Cache) Subscriptions() *Subscriptions {
	return c.newSubscriptions(func(k xds.Key) bool { return !c.local(k) })
}

func (c *Cache) newSubscriptions(of func(xds.Key) bool) *Subscriptions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &Subscriptions{c, c.union.View(of)}
}

// Changed holds a value whenever Changes has something new to return.
func (s *Subscriptions) Changed() <-chan struct{} { return s.view.Changed() }

// Changes returns what changed since the last call, in push order; the first returns everything
// that is subscribed to.
func (s *Subscriptions) Changes() []xds.SubscriptionChange {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	changes := make(map[string]*xds.SubscriptionChange)
	s.view.Changes(func(k xds.Key, is, was bool) {
		if k.Name == xds.Wildcard && !is {
			s.c.table(k.Type).SetIncomplete() // no source reports any more what is removed
		}
		if was == is {
			return
		}
		change := changes[k.Type]
		if change == nil {
			change = &xds.SubscriptionChange{Type: k.Type}
			changes[k.Type] = change
		}
		switch {
		case k.Name == xds.Wildcard:
		case is:
			change.Subscribe = append(change.Subscribe, k.Name)
		default:
			change.Unsubscribe = append(change.Unsubscribe, k.Name)
		}
		if !is {
			s.c.forgetNotFound(k)
		}
	})
	out := make([]xds.SubscriptionChange, 0, len(changes))
	for _, url := range slices.SortedFunc(maps.Keys(changes), xds.CompareTypes) {
		change := changes[url]
		change.Wildcard = s.view.Reported(xds.Key{Type: url, Name: xds.Wildcard})
		change.Complete = s.c.table(url).Knowledge() == xds.Complete
		slices.Sort(change.Subscribe)
		slices.Sort(change.Unsubscribe)
		out = append(out, *change)
	}
	return out
}

// Close ends the view.
func (s *Subscriptions) Close() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.view.Close(s.c.forgetNotFound)
}

// forgetNotFound forgets that a name, or what a glob collection names, does not exist:
// no source is asked any more, and none says when it does again.
func (c *Cache) forgetNotFound(k xds.Key) {
	if t := c.table(k.Type); !t.names.Requested(k.Name) {
		t.ForgetNotFound(k.Name)
	}
}

// wakeRun makes Run look at its deadlines again.
func (c *Cache) wakeRun() {
	signal(c.wake)
}

// earliest returns the earliest of times; a zero one is never.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// Run ends leases and drops what has outlived its TTL when their time has come,
// until ctx ends.
func (c *Cache) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-c.wake:
		}
		next := c.expireLeases(time.Now())
		c.mu.Lock()
		next = earliest(next, c.dropExpired(time.Now()), c.updateStable(time.Now()), c.runGuard(time.Now()), c.expireFallback(time.Now()))
		c.mu.Unlock()
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		if c.cfg.OnIdle != nil && c.Idle() {
			c.cfg.OnIdle()
		}
	}
}

// expireLeases ends the leases, and the doubts about clients that went, that have run
// out and returns when the next one does; the zero time for none. Without an upstream
// none ends (I11), nor while removals are held back, which would take what the held
// listeners and clusters refer to away from an Envoy that restarts.
func (c *Cache) expireLeases(now time.Time) (next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connected.IsZero() || !c.guard.Since().IsZero() {
		return time.Time{}
	}
	return earliest(c.union.Expire(now), c.uncertain.Expire(now))
}
