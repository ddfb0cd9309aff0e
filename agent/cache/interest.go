package cache

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// wants reports whether a name, or xds.Wildcard, is subscribed to or leased.
func (c *Cache) wants(t *table, name string) bool {
	if t.refs[name] > 0 || t.followed[name] > 0 {
		return true
	}
	_, leased := c.leases[key{t.url, name}]
	return leased
}

// requested reports whether a source is asked for a name: it is wanted, or the source
// has not been told yet that it is not, and may be wanted again before it is.
func (c *Cache) requested(t *table, name string) bool {
	if c.wants(t, name) {
		return true
	}
	for in := range c.subscriptions {
		if _, ok := in.reported[t.url][name]; ok {
			return true
		}
	}
	return false
}

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

// reference adds a subscription.
func (c *Cache) reference(t *table, name string) {
	wanted := c.wants(t, name)
	t.refs[name]++
	delete(c.leases, key{t.url, name})
	if !wanted {
		c.wantChanged(t, name)
	}
}

// unreference takes a subscription away; what nobody wants any more enters the LRU.
func (c *Cache) unreference(t *table, name string) {
	if t.refs[name]--; t.refs[name] <= 0 {
		delete(t.refs, name)
	}
	if !c.wants(t, name) {
		c.wantChanged(t, name)
	}
}

// lease keeps a subscription alive for the linger time.
func (c *Cache) lease(t *table, name string) {
	wanted := c.wants(t, name)
	c.leases[key{t.url, name}] = time.Now().Add(c.cfg.Linger)
	if !wanted {
		c.wantChanged(t, name)
	}
}

// Prefetch leases subscriptions before any client has them. The leases begin to
// run with the first watch: what no client wants by then is released.
func (c *Cache) Prefetch(typeURL string, names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.table(typeURL)
	var until time.Time
	if len(c.watches) > 0 {
		until = time.Now().Add(c.cfg.Linger)
		c.wakeRun()
	}
	for _, name := range names {
		if !c.wants(t, name) {
			c.leases[key{typeURL, name}] = until
			c.wantChanged(t, name)
		}
	}
}

// startLeases lets the leases of Prefetch run.
func (c *Cache) startLeases() {
	for _, of := range []map[key]time.Time{c.leases, c.maybeHeld} {
		for k, until := range of {
			if until.IsZero() {
				of[k] = time.Now().Add(c.cfg.Linger)
			}
		}
	}
}

// Idle reports whether nobody watches and nothing is leased.
func (c *Cache) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.watches) == 0 && len(c.leases) == 0
}

// Lacking reports whether something is wanted of which nothing is known.
func (c *Cache) Lacking() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tables {
		for name := range t.refs {
			if c.lacks(t, name) {
				return true
			}
		}
	}
	for k := range c.leases {
		if c.lacks(c.table(k.typeURL), k.name) {
			return true
		}
	}
	return false
}

// Missing returns what is wanted and not known to be there or not, nor was asked for in vain;
// none says that nothing is wanted at all.
func (c *Cache) Missing() (typeURL string, names []string, none bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	none = len(c.leases) == 0
	missing := make(map[string][]string)
	look := func(t *table, name string) {
		if c.lacks(t, name) && t.errors[name] == nil {
			missing[t.url] = append(missing[t.url], name)
		}
	}
	for _, t := range c.tables {
		none = none && len(t.refs) == 0
		for name := range t.refs {
			look(t, name)
		}
	}
	for k := range c.leases {
		look(c.table(k.typeURL), k.name)
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
	for in := range c.subscriptions {
		in.noteChanged(t.url, name)
	}
	c.logFact(Wanted, t.url, name)
	if c.accident != nil {
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
	if c.accident != nil {
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
	t := c.table(xds.EndpointType)
	if before != "" {
		if t.followed[before]--; t.followed[before] == 0 {
			delete(t.followed, before)
		}
		if !c.wants(t, before) {
			c.wantChanged(t, before)
		}
	}
	if endpoints != "" {
		wanted := c.wants(t, endpoints)
		t.followed[endpoints]++
		if !wanted {
			c.wantChanged(t, endpoints)
		}
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

// Subscriptions is a source's view of what is wanted.
type Subscriptions struct {
	c        *Cache
	of       func(typeURL, name string) bool // what it is about
	changed  chan struct{}
	dirty    map[key]struct{}               // under c.mu
	reported map[string]map[string]struct{} // by type, under c.mu
}

// Subscriptions opens a view of what the watches and leases want of upstreams.
func (c *Cache) Subscriptions() *Subscriptions {
	return c.newSubscriptions(func(typeURL, name string) bool { return !c.local(typeURL, name) })
}

func (c *Cache) newSubscriptions(of func(typeURL, name string) bool) *Subscriptions {
	in := &Subscriptions{
		c:        c,
		of:       of,
		changed:  make(chan struct{}, 1),
		dirty:    make(map[key]struct{}),
		reported: make(map[string]map[string]struct{}),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for url, t := range c.tables {
		in.noteChanged(url, xds.Wildcard)
		for name := range t.refs {
			in.noteChanged(url, name)
		}
		for name := range t.followed {
			in.noteChanged(url, name)
		}
	}
	for k := range c.leases {
		in.noteChanged(k.typeURL, k.name)
	}
	c.subscriptions[in] = struct{}{}
	return in
}

func (in *Subscriptions) noteChanged(typeURL, name string) {
	if !in.of(typeURL, name) {
		return
	}
	in.dirty[key{typeURL, name}] = struct{}{}
	signal(in.changed)
}

// Changed holds a value whenever Take has something new to say.
func (in *Subscriptions) Changed() <-chan struct{} { return in.changed }

// Changes returns what changed since the last Take, in push order; the first
// returns everything that is wanted.
func (in *Subscriptions) Changes() []xds.SubscriptionChange {
	in.c.mu.Lock()
	defer in.c.mu.Unlock()
	wants := make(map[string]*xds.SubscriptionChange)
	for k := range in.dirty {
		told := in.reported[k.typeURL]
		if told == nil {
			told = make(map[string]struct{})
			in.reported[k.typeURL] = told
		}
		_, was := told[k.name]
		is := in.c.wants(in.c.table(k.typeURL), k.name)
		if t := in.c.table(k.typeURL); k.name == xds.Wildcard && !is && t.knowledge == xds.Complete && !in.c.allKeptUnsubscribed(t) {
			t.knowledge = xds.Partial // nobody tells us any more what goes
		}
		if was == is {
			continue
		}
		w := wants[k.typeURL]
		if w == nil {
			w = &xds.SubscriptionChange{Type: k.typeURL}
			wants[k.typeURL] = w
		}
		switch {
		case k.name == xds.Wildcard:
		case is:
			w.Subscribe = append(w.Subscribe, k.name)
		default:
			w.Unsubscribe = append(w.Unsubscribe, k.name)
		}
		if is {
			told[k.name] = struct{}{}
		} else {
			delete(told, k.name)
			in.c.forgetNotFound(k)
		}
	}
	clear(in.dirty)
	out := make([]xds.SubscriptionChange, 0, len(wants))
	for _, url := range slices.SortedFunc(maps.Keys(wants), xds.CompareTypes) {
		w := wants[url]
		_, w.Wildcard = in.reported[url][xds.Wildcard]
		w.Complete = in.c.table(url).knowledge == xds.Complete
		slices.Sort(w.Subscribe)
		slices.Sort(w.Unsubscribe)
		out = append(out, *w)
	}
	return out
}

// forgetNotFound forgets that a name, or what a glob collection names, does not exist:
// no source is asked any more, and none says when it does again.
func (c *Cache) forgetNotFound(k key) {
	t := c.table(k.typeURL)
	if c.requested(t, k.name) {
		return
	}
	delete(t.notFound, k.name)
	if xds.IsCollection(k.name) {
		maps.DeleteFunc(t.notFound, func(name string, _ struct{}) bool { return xds.CollectionOf(name) == k.name })
	}
}

// Close ends the view.
func (in *Subscriptions) Close() {
	in.c.mu.Lock()
	defer in.c.mu.Unlock()
	delete(in.c.subscriptions, in)
	for url, told := range in.reported {
		for name := range told {
			in.c.forgetNotFound(key{url, name})
		}
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
	if c.connected.IsZero() || c.accident != nil {
		return time.Time{}
	}
	for k, until := range c.leases {
		if until.IsZero() {
			continue // not running yet
		}
		if until.After(now) {
			if next.IsZero() || until.Before(next) {
				next = until
			}
			continue
		}
		delete(c.leases, k)
		if t := c.table(k.typeURL); !c.wants(t, k.name) {
			c.wantChanged(t, k.name)
		}
	}
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
