package cache

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Prefetch leases names before a client subscribes to them. The time of the leases starts with the
// first watch.
func (c *Cache) Prefetch(typeURL string, names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.table(typeURL)
	for _, name := range names {
		t.names.Prefetch(name)
	}
	if len(c.watches) > 0 {
		c.union.Start()
		c.wakeRun()
	}
}

// Idle reports whether no watch is open and nothing is leased.
func (c *Cache) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.watches) == 0 && !c.union.Leased()
}

// TakeLocks takes and releases the lock, for a watchdog.
func (c *Cache) TakeLocks() {
	c.mu.Lock()
	defer c.mu.Unlock()
}

// AnyMissing reports whether something is subscribed to of which nothing is known.
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

// subscribed yields the names that clients subscribe to and those that are leased.
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

// Missing returns the names, of the first type in push order that has some, that are subscribed to,
// of which nothing is known, and for which no source has reported an error. none says that there
// are no subscriptions.
func (c *Cache) Missing() (typeURL string, names []string, none bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	none = true
	missing := make(map[string][]string)
	for t, name := range c.subscribed {
		none = false
		if c.isMissing(t, name) && t.errors[name] == nil {
			missing[t.URL] = append(missing[t.URL], name)
		}
	}
	if len(missing) == 0 {
		return "", nil, none
	}
	typeURL = slices.SortedFunc(maps.Keys(missing), xds.CompareTypes)[0]
	slices.Sort(missing[typeURL])
	return typeURL, missing[typeURL], none
}

// Holding reports whether a resource of a source is cached that is subscribed to.
func (c *Cache) Holding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tables {
		all := t.names.Has(xds.Wildcard)
		for name, e := range t.All() {
			if !e.IsLocal() && (all || t.names.Covers(name, e.Current())) {
				return true
			}
		}
	}
	return false
}

// isMissing reports whether nothing is known of a name that a source is asked for.
func (c *Cache) isMissing(t *table, name string) bool {
	if c.local(t.key(name)) {
		return false
	}
	if name == xds.Wildcard {
		return !t.KnownOrRestored()
	}
	return !t.IsKnown(name)
}

// subscriptionChanged is called when a name becomes subscribed to or is not any more. It moves the
// resources of the name into the LRU or out of it.
func (c *Cache) subscriptionChanged(t *table, name string) {
	c.persistFact(SubscribedFact, t.key(name))
	if c.guard.Holding() {
		c.wakeRun() // the removal of a name without a subscription cannot be confirmed
	}
	subscribed := t.names.Has(name)
	if name == xds.Wildcard {
		for n, e := range t.All() {
			c.updateLRU(t, n, e)
		}
		if !subscribed {
			maps.DeleteFunc(t.errors, func(n string, _ error) bool { return n != "" && t.Entry(n) == nil && !t.names.Has(n) })
		}
		return
	}
	if !subscribed && t.Entry(name) == nil && !t.names.Has(xds.Wildcard) {
		delete(t.errors, name) // it concerns no client any more
	}
	c.forgetNotFound(t.key(name))
	for n, e := range t.Collection(name) {
		c.updateLRU(t, n, e)
	}
	if name = t.Canonical(name); t.Entry(name) != nil {
		c.updateLRU(t, name, t.Entry(name))
	}
}

// updateLRU puts an entry into the LRU if it is not referenced, but not while removals are held
// back, and takes it out otherwise.
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
	if c.guard.Holding() || c.frozen != nil {
		return // a resource that is held back or frozen may refer to it; endAccident or Unfreeze adds it
	}
	c.unreferenced.Add(k, struct{}{})
}

// subscribeEndpoints subscribes to the endpoints of a cluster on behalf of its entry: the client is
// about to ask for them, and if the control plane disconnected before, the client would have a
// cluster that cannot warm. r is nil if the entry is not referenced any more.
func (c *Cache) subscribeEndpoints(e *entry, r *xds.Resource) {
	if r != nil && r.EDSName == "" {
		r = nil
	}
	before := e.EndpointsOf
	if before == r {
		return
	}
	e.EndpointsOf = r
	names := c.table(xds.EndpointType).names
	if r != nil {
		names.AddCluster(r.EDSName) // before the other is removed, because the names may be the same
	}
	if before != nil {
		names.RemoveCluster(before.EDSName)
	}
}

// isReferenced reports whether an entry is subscribed to, or comes from a source that reports
// resources without a subscription.
func (c *Cache) isReferenced(t *table, e *entry) bool {
	return e.KeepUnsubscribed || t.names.Has(xds.Wildcard) || t.names.Covers(e.Current().Name, e.Current())
}

// evicted is called by the LRU for each entry that it pushes out or that is removed from it. Only
// an entry that was pushed out is still unreferenced.
func (c *Cache) evicted(k xds.Key) {
	t := c.tables[k.Type]
	if e := t.Entry(k.Name); e == nil || c.isReferenced(t, e) {
		return
	}
	c.drop(t, k.Name)
	t.SetIncomplete() // no source removed it
}

// Subscriptions is a source's view of what is subscribed to.
type Subscriptions struct {
	c    *Cache
	view *subscriptions.View // under c.mu
}

// Subscriptions opens a view of what sources are asked for. The caller must close it.
func (c *Cache) Subscriptions() *Subscriptions {
	return c.newSubscriptions(func(k xds.Key) bool { return !c.local(k) })
}

// newSubscriptions opens a view of the names for which of returns true. It takes the cache's lock.
func (c *Cache) newSubscriptions(of func(xds.Key) bool) *Subscriptions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &Subscriptions{c, c.union.View(of)}
}

// Changed holds a value whenever Changes has something new to return.
func (s *Subscriptions) Changed() <-chan struct{} { return s.view.Changed() }

// Changes returns what changed since the last call, in push order; the first call returns
// everything that is subscribed to.
func (s *Subscriptions) Changes() []xds.SubscriptionChange {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	changes := make(map[string]*xds.SubscriptionChange)
	known := xds.Types()
	s.view.Changes(func(k xds.Key, is, was bool) {
		if k.Name == xds.Wildcard && !is {
			s.c.table(k.Type).SetIncomplete() // from now on sources do not report removals
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
			if !slices.Contains(known, k.Type) {
				s.c.wakeRun() // the type may be forgotten
			}
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

// Close closes the view.
func (s *Subscriptions) Close() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.view.Close(s.c.forgetNotFound)
}

// forgetNotFound forgets that a name, or the members of a glob collection, do not exist, if no
// source is asked for them any more and none would report that they exist again.
func (c *Cache) forgetNotFound(k xds.Key) {
	if t := c.table(k.Type); !t.names.Requested(k.Name) {
		t.ForgetNotFound(k.Name)
	}
}

// wakeRun makes Run look at its deadlines again.
func (c *Cache) wakeRun() {
	wake.Signal(c.wake)
}

// Run ends leases, TTLs, deferrals and fallbacks when they are due, until ctx ends.
func (c *Cache) Run(ctx context.Context) error {
	wake.Loop(ctx, c.wake, func() time.Time {
		c.mu.Lock()
		now := time.Now()
		next := wake.Earliest(c.expireLeases(now), c.dropExpired(now), c.updateStable(now), c.runGuard(now), c.expireFallback(now))
		c.mu.Unlock()
		if c.cfg.OnIdle != nil && c.Idle() {
			c.cfg.OnIdle()
		}
		return next
	})
	return nil
}

// expireLeases ends the leases, and the uncertainty about disconnected clients, that are due, and
// returns when the next is; the zero time for none. Without an upstream none ends (I11). Nor does
// one end while removals are held back or something is frozen: an Envoy that restarts needs what the
// resources that are held back refer to.
func (c *Cache) expireLeases(now time.Time) (next time.Time) {
	if c.connected.IsZero() || c.guard.Holding() || c.frozen != nil {
		return time.Time{}
	}
	next = wake.Earliest(c.union.Expire(now), c.uncertain.Expire(now))
	c.forgetTypes()
	return next
}

// forgetTypes forgets the types that this build does not know, of which nothing is cached and that nobody subscribes to any more:
// clients may name any number of them.
func (c *Cache) forgetTypes() {
	known := xds.Types()
	for url, t := range c.tables {
		if slices.Contains(known, url) || t.Len() > 0 || t.pending.Newest() != nil || c.pins.Count(url) > 0 || c.uncertain.Count(url) > 0 {
			continue
		}
		if !c.watchedSince(t).IsZero() || !c.union.Forget(url) {
			continue
		}
		delete(c.tables, url)
		c.persistFact(KnownFact, xds.Key{Type: url})
	}
}
