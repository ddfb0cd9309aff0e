package cache

import (
	"iter"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/agent/cache/uncertain"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Watch is the view of one stream. Its methods are called by that stream's goroutines only;
// Changed, Begin with End, Ack, Nack and Progress may be called concurrently.
type Watch struct {
	c      *Cache
	client string
	// changed holds a value when Begin has something new; it is never closed.
	changed   chan struct{}
	types     map[string]*watched // under c.mu
	uncertain *uncertain.Client   // under c.mu
	closed    bool                // under c.mu
	opened    time.Time
	// tooStale: the cache was too old to be served when the watch was opened, and still is.
	tooStale bool // under c.mu
}

// watched has the subscriptions of a watch to one type.
type watched struct {
	wildcard bool
	names    map[string]struct{}
	// collections counts the glob collections among names.
	collections int
	dirty       map[string]struct{}
	all         bool
	probation   probation.Queue
}

// Watch opens a view for a stream. client names the client in the reasons of its NACKs: a node id.
func (c *Cache) Watch(client string) *Watch {
	w := &Watch{c: c, client: client, changed: make(chan struct{}, 1), types: make(map[string]*watched), opened: time.Now()}
	w.tooStale = c.cfg.Stale != nil && c.cfg.Stale()
	c.mu.Lock()
	c.watches[w] = struct{}{}
	w.uncertain = c.uncertain.Open()
	c.uncertain.Start()
	c.union.Start()
	c.mu.Unlock()
	c.wakeRun()
	return w
}

// Changed holds a value whenever Begin has something new to return.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Subscribe changes the watch's subscriptions to one type.
func (w *Watch) Subscribe(typeURL string, wildcard bool, add, drop []string) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.closed {
		return
	}
	t := w.c.table(typeURL)
	wt := w.types[typeURL]
	if wt == nil {
		wt = &watched{names: make(map[string]struct{}), dirty: make(map[string]struct{})}
		w.types[typeURL] = wt
		w.c.updateStableBy(w.opened.Add(probation.StableAfter))
	}
	stopped := wt.wildcard && !wildcard
	switch {
	case wildcard && !wt.wildcard:
		t.hadWildcard = true
		t.names.Subscribe(xds.Wildcard)
	case stopped:
		t.names.Unsubscribe(xds.Wildcard)
	}
	wt.wildcard = wildcard
	for _, name := range add {
		if _, ok := wt.names[name]; !ok {
			wt.names[name] = struct{}{}
			if xds.IsCollection(name) {
				wt.collections++
			}
			t.names.Subscribe(name)
		}
	}
	for _, name := range drop {
		if _, ok := wt.names[name]; ok {
			delete(wt.names, name)
			if xds.IsCollection(name) {
				wt.collections--
			}
			t.names.Unsubscribe(name)
		}
	}
	if stopped || len(drop) > 0 {
		// The client does not use any longer what it unsubscribed from.
		wt.probation.InterruptWhere(func(r *xds.Resource) bool { return !wt.covers(r) })
	}
}

// Begin returns a snapshot of the cache, and what changed for this watch since the last Begin. It
// holds the cache's lock until the same goroutine calls End: until then only the snapshot may be
// used of the cache, and afterwards the snapshot must not be used.
func (w *Watch) Begin() (s Snapshot, changed []xds.Change) {
	w.c.mu.Lock()
	w.c.dropExpired(time.Now())
	for url, wt := range w.types {
		if len(wt.dirty) == 0 && !wt.all {
			continue
		}
		ch := xds.Change{Type: url, All: wt.all, Names: make([]string, 0, len(wt.dirty))}
		for name := range wt.dirty {
			ch.Names = append(ch.Names, name)
		}
		xds.ResetNames(&wt.dirty)
		wt.all = false
		changed = append(changed, ch)
	}
	return Snapshot{w.c, w.tooStale}, changed
}

// End releases the lock that Begin took.
func (w *Watch) End() { w.c.mu.Unlock() }

// Close closes the watch. Its subscriptions stay leased (I11). unanswered lists names, by type,
// that the client may hold although it has not answered. They stay uncertain as long as the leases
// last, even if other clients ACK them: of several disconnected clients nobody knows which one
// reconnects, and the removal of a resource that a client never had does no harm (protocol.md 3.6).
func (w *Watch) Close(unanswered map[string][]string) {
	w.c.mu.Lock()
	if w.closed {
		w.c.mu.Unlock()
		return
	}
	w.closed = true
	delete(w.c.watches, w)
	if w.c.cfg.FallbackEnabled {
		w.c.fallback.Departed(w.unstable(unanswered))
	}
	for url, wt := range w.types {
		t := w.c.table(url)
		if wt.wildcard {
			t.names.Lease(xds.Wildcard)
			t.names.Unsubscribe(xds.Wildcard)
		}
		for name := range wt.names {
			t.names.Lease(name)
			t.names.Unsubscribe(name)
		}
	}
	for url, names := range unanswered {
		for _, name := range names {
			w.mayHold(w.c.table(url), name)
		}
	}
	w.uncertain.Close()
	due := w.c.forgetWatch(w)
	w.c.mu.Unlock()
	run(due)
	w.c.wakeRun()
}

// notify adds the changed names to the watches that subscribe to them, and returns those watches.
func (c *Cache) notify(ch *changes) []*Watch {
	ch.retrySuspects()
	if len(ch.names) == 0 && !ch.all {
		return nil
	}
	var concerned []*Watch
	for w := range c.watches {
		wt := w.types[ch.table.URL]
		if wt == nil {
			continue
		}
		if wt.noteChanged(ch) {
			concerned = append(concerned, w)
		} else if !wt.all {
			continue
		}
		wake.Signal(w.changed)
	}
	return concerned
}

// noteChanged adds the changed names that are subscribed to, and reports whether there are any.
func (wt *watched) noteChanged(ch *changes) bool {
	if wt.wildcard {
		wt.all = wt.all || ch.all
		if ch.all && len(wt.names) == 0 && !xds.Info(ch.table.URL).OnDemand {
			return len(ch.names) > 0 // the view reads all resources, so it needs no names
		}
		for name := range ch.each {
			wt.dirty[name] = struct{}{}
		}
		return len(ch.names) > 0
	}
	hit := false
	found := func(name, resource string) {
		wt.dirty[name] = struct{}{}
		// A resource that is subscribed to by an alias is cached under its own name.
		wt.dirty[resource] = struct{}{}
		hit = true
	}
	if len(wt.names) < len(ch.names) {
		for name := range wt.names {
			if resource, ok := ch.lookup(name); ok {
				found(name, resource)
			}
		}
	} else {
		for name, resource := range ch.each {
			if _, ok := wt.names[name]; ok {
				found(name, resource)
			}
		}
	}
	if wt.collections > 0 {
		for name := range ch.each {
			if _, ok := wt.names[xds.CollectionOf(name)]; ok {
				wt.dirty[name] = struct{}{}
				hit = true
			}
		}
	}
	return hit
}

// Snapshot is the state of the cache between Begin and End.
type Snapshot struct {
	c        *Cache
	tooStale bool // nothing is served
}

// table returns the table that a type is served from; nil for none.
func (s Snapshot) table(typeURL string) *table {
	if s.tooStale {
		return nil
	}
	return s.c.tables[typeURL]
}

// Revision counts the changes of the cache.
func (s Snapshot) Revision() uint64 { return s.c.revision }

// Wildcard returns how much is known of the wildcard of a type.
func (s Snapshot) Wildcard(typeURL string) xds.Knowledge {
	if t := s.table(typeURL); t != nil {
		return t.Knowledge()
	}
	return xds.Unknown
}

// Lookup returns the resource of a name or an alias.
func (s Snapshot) Lookup(typeURL, name string) xds.Item {
	t := s.table(typeURL)
	if t == nil {
		return s.lookupLocal(typeURL, name)
	}
	if e := t.Find(name); e != nil {
		return s.c.served(t, e)
	}
	if item := s.c.servedRemoved(t, name); item.Current != nil {
		return item
	}
	return xds.Item{NotFound: t.NotFound(name)}
}

// lookupLocal returns a resource that the agent itself makes, which is never too old.
func (s Snapshot) lookupLocal(typeURL, name string) xds.Item {
	if t := s.c.tables[typeURL]; t != nil {
		if e := t.Entry(name); e != nil && e.IsLocal() {
			return e.Item()
		}
	}
	return xds.Item{}
}

// All yields all resources of a type, in no order.
func (s Snapshot) All(typeURL string) iter.Seq[xds.Item] {
	return func(yield func(xds.Item) bool) {
		t := s.table(typeURL)
		if t == nil {
			return
		}
		for _, e := range t.All() {
			if item := s.c.served(t, e); item.Current != nil && !yield(item) {
				return
			}
		}
		if !s.c.fallback.Active() {
			return
		}
		for name := range t.removed {
			if item := s.c.servedRemoved(t, name); item.Current != nil && !yield(item) {
				return
			}
		}
	}
}

// Count returns the maximum number of resources that All yields.
func (s Snapshot) Count(typeURL string) int {
	t := s.table(typeURL)
	if t == nil {
		return 0
	}
	return t.Len() + len(t.removed)
}

// Collection yields the members of a glob collection, in no order.
func (s Snapshot) Collection(typeURL, glob string) iter.Seq[xds.Item] {
	return func(yield func(xds.Item) bool) {
		t := s.table(typeURL)
		if t == nil {
			return
		}
		for _, e := range t.Collection(glob) {
			if item := s.c.served(t, e); item.Current != nil && !yield(item) {
				return
			}
		}
	}
}

// MaybeHeld lists the names that a client of this group may hold although it has not ACKed them, in
// alphabetical order.
func (s Snapshot) MaybeHeld(typeURL string) []string {
	if s.tooStale {
		return nil
	}
	return s.c.uncertain.Of(typeURL)
}

// Connected returns since when an upstream answers; the zero time if none does.
func (s Snapshot) Connected() time.Time { return s.c.connected }

// HadTTL reports whether a resource of a type ever had a TTL.
func (s Snapshot) HadTTL(typeURL string) bool {
	t := s.c.tables[typeURL]
	return t != nil && t.hadTTL
}

// Nacks counts the cached contents of a type that clients NACKed alone.
func (s Snapshot) Nacks(typeURL string) uint64 {
	if t := s.c.tables[typeURL]; t != nil {
		return t.nacks
	}
	return 0
}

// HadWildcard reports whether a client of this group ever subscribed to the wildcard of a type, or
// is expected to (protocol.md V9).
func (c *Cache) HadWildcard(typeURL string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tables[typeURL]
	return t != nil && (t.hadWildcard || t.names.Has(xds.Wildcard))
}
