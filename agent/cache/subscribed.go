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

// wants reports whether a name, or xds.Wildcard, is subscribed to.
func (c *Cache) wants(t *table, name string) bool { return t.names.Has(name) }

// requested reports whether a source is asked for a name.
func (c *Cache) requested(t *table, name string) bool { return t.names.Requested(name) }

// wantsResource reports whether a resource is wanted by its name, by an alias or
// as a member of a glob collection.
func (c *Cache) wantsResource(t *table, name string, r *xds.Resource) bool {
	if c.wants(t, name) {
		return true
	}
	if glob := xds.CollectionOf(name); glob != "" && c.wants(t, glob) {
		return true
	}
	if r != nil {
		return slices.ContainsFunc(r.Aliases(), func(alias string) bool { return c.wants(t, alias) })
	}
	return false
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
		case !c.wants(t, name):
			t.names.Lease(name)
		}
	}
	if running {
		c.wakeRun()
	}
}

// startLeases lets the leases of Prefetch run.
func (c *Cache) startLeases() {
	c.union.Start()
	for k, until := range c.maybeHeld {
		if until.IsZero() {
			c.maybeHeld[k] = time.Now().Add(c.cfg.Linger)
		}
	}
}

// Idle reports whether nobody watches and nothing is leased.
func (c *Cache) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.watches) == 0 && !c.union.Leased()
}

// Lacking reports whether something is wanted of which nothing is known.
func (c *Cache) Lacking() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, name := range c.subscribed {
		if c.lacks(t, name) {
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
		if c.lacks(t, name) && t.errors[name] == nil {
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
		all := c.wants(t, xds.Wildcard)
		for name, e := range t.entries {
			if !e.local() && (all || c.wantsResource(t, name, e.Current())) {
				return true
			}
		}
	}
	return false
}

func (c *Cache) lacks(t *table, name string) bool {
	if c.local(t.url, name) {
		return false // no upstream is asked for it
	}
	if name == xds.Wildcard {
		return t.knowledge == xds.Unknown && !t.restoredKnown
	}
	if t.entries[name] != nil || len(t.collections[name]) > 0 {
		return false
	}
	if _, gone := t.notFound[name]; gone {
		return false
	}
	_, alias := t.aliases[name]
	return !alias
}

// wantChanged follows a change of what is wanted: the sources hear of it, and
// what it covered enters or leaves the LRU.
func (c *Cache) wantChanged(t *table, name string) {
	c.logFact(Wanted, t.url, name)
	if !c.guard.Since().IsZero() {
		c.wakeRun() // of what nobody wants nobody is asked
	}
	wanted := c.wants(t, name)
	if name == xds.Wildcard {
		for n, e := range t.entries {
			c.file(t, n, e)
		}
		if !wanted {
			maps.DeleteFunc(t.errors, func(n string, _ error) bool { return n != "" && t.entries[n] == nil && !c.wants(t, n) })
		}
		return
	}
	if !wanted && t.entries[name] == nil && !c.wants(t, xds.Wildcard) {
		delete(t.errors, name) // a problem of nobody's
	}
	if !c.requested(t, name) {
		delete(t.notFound, name)
	}
	if xds.IsCollection(name) {
		c.collectionChanged(t, name, wanted)
		return
	}
	if actual, ok := t.aliases[name]; ok {
		name = actual
	}
	if e := t.entries[name]; e != nil {
		c.file(t, name, e)
	}
}

// collectionChanged follows a change of whether a glob collection is wanted.
func (c *Cache) collectionChanged(t *table, glob string, wanted bool) {
	for name := range t.collections[glob] {
		c.file(t, name, t.entries[name])
	}
	if !c.requested(t, glob) {
		maps.DeleteFunc(t.notFound, func(name string, _ struct{}) bool { return xds.CollectionOf(name) == glob })
	}
}

// allKeptUnsubscribed reports whether everything of a table comes from sources that tell
// whatever they have.
func (c *Cache) allKeptUnsubscribed(t *table) bool {
	some := false
	for _, e := range t.entries {
		if !e.keepUnsubscribed {
			return false
		}
		some = some || !e.local()
	}
	return some
}

// file puts an entry into the LRU if nobody wants it, but not while removals are held back,
// and takes it out otherwise.
func (c *Cache) file(t *table, name string, e *entry) {
	k := key{t.url, name}
	if e.keepUnsubscribed || c.wants(t, xds.Wildcard) || c.wantsResource(t, name, e.Current()) {
		if c.unreferenced.Len() > 0 {
			c.unreferenced.Remove(k)
		}
		c.follow(e, e.Current())
		return
	}
	c.follow(e, nil)
	if !c.guard.Since().IsZero() {
		return // nothing is evicted that goes with what is held back; endAccident files it
	}
	c.unreferenced.Add(k, struct{}{})
}

// follow makes the endpoints of a cluster wanted as long as the cluster is: the
// client is about to ask for them, and a control plane that goes away in between
// would leave it with a cluster that cannot warm. r is nil for no cluster any more.
func (c *Cache) follow(e *entry, r *xds.Resource) {
	if r != nil && r.EDSName == "" {
		r = nil
	}
	before, endpoints := edsName(e.follows), edsName(r)
	e.follows = r
	if before == endpoints {
		return
	}
	names := c.table(xds.EndpointType).names
	if before != "" {
		names.NeedNot(before)
	}
	if endpoints != "" {
		names.Need(endpoints)
	}
}

// edsName returns the name of a cluster's endpoints, "" for none and of no cluster.
func edsName(r *xds.Resource) string {
	if r == nil {
		return ""
	}
	return r.EDSName
}

// evicted is called by the LRU under mu, for what it pushes out and for what is
// removed from it. Only the first is deleted: that is what nobody wants.
func (c *Cache) evicted(k key) {
	t := c.tables[k.typeURL]
	e := t.entries[k.name]
	if e == nil || e.keepUnsubscribed || c.wants(t, xds.Wildcard) || c.wantsResource(t, k.name, e.Current()) {
		return
	}
	c.drop(t, k.name)
	if t.knowledge == xds.Complete && !c.allKeptUnsubscribed(t) {
		t.knowledge = xds.Partial // no source said that it is gone
	}
}

// Subscriptions is a source's view of what is subscribed to.
type Subscriptions struct {
	c    *Cache
	view *subscriptions.View // under c.mu
}

// Subscriptions opens a view of what upstreams are asked for. Close it.
func (c *Cache) Subscriptions() *Subscriptions {
	return c.newSubscriptions(func(typeURL, name string) bool { return !c.local(typeURL, name) })
}

func (c *Cache) newSubscriptions(of func(typeURL, name string) bool) *Subscriptions {
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
	s.view.Changes(func(typeURL, name string, is, was bool) {
		t := s.c.table(typeURL)
		if name == xds.Wildcard && !is && t.knowledge == xds.Complete && !s.c.allKeptUnsubscribed(t) {
			t.knowledge = xds.Partial // no source reports any more what is removed
		}
		if was == is {
			return
		}
		change := changes[typeURL]
		if change == nil {
			change = &xds.SubscriptionChange{Type: typeURL}
			changes[typeURL] = change
		}
		switch {
		case name == xds.Wildcard:
		case is:
			change.Subscribe = append(change.Subscribe, name)
		default:
			change.Unsubscribe = append(change.Unsubscribe, name)
		}
		if !is {
			s.c.forgetNotFound(typeURL, name)
		}
	})
	out := make([]xds.SubscriptionChange, 0, len(changes))
	for _, url := range slices.SortedFunc(maps.Keys(changes), xds.CompareTypes) {
		change := changes[url]
		change.Wildcard = s.view.Told(url, xds.Wildcard)
		change.Complete = s.c.table(url).knowledge == xds.Complete
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
func (c *Cache) forgetNotFound(typeURL, name string) {
	t := c.table(typeURL)
	if c.requested(t, name) {
		return
	}
	delete(t.notFound, name)
	if xds.IsCollection(name) {
		maps.DeleteFunc(t.notFound, func(of string, _ struct{}) bool { return xds.CollectionOf(of) == name })
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
		next = earliest(next, c.expire(time.Now()), c.updateStable(time.Now()), c.runGuard(time.Now()), c.expireFallback(time.Now()))
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
	next = c.union.Expire(now)
	for k, until := range c.maybeHeld {
		switch {
		case until.IsZero():
		case until.After(now):
			next = earliest(next, until)
		default:
			delete(c.maybeHeld, k)
			c.forgetMaybeHeld(c.table(k.typeURL), k.name)
		}
	}
	return next
}
