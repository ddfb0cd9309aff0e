package cache

import (
	"errors"
	"fmt"
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
		t.lease(wt.names)
		for name := range wt.names {
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

// maxUnknownLeases bounds the leased names of one type under which nothing is cached. Strangers choose names, and each poll over REST
// may have as many as a stream: all of them together would be asked for, and stored, for as long as the leases last.
const maxUnknownLeases = 10_000

// lease leases the names of a client that goes.
func (t *table) lease(names map[string]struct{}) {
	isUnknown := func(name string) bool { return t.Find(name) == nil && name != xds.Wildcard && !xds.IsCollection(name) }
	room := -1 // counted when it is needed
	for name := range names {
		if isUnknown(name) {
			if room < 0 {
				room = maxUnknownLeases
				for leased := range t.names.Leases() {
					if isUnknown(leased) {
						room--
					}
				}
				room = max(room, 0)
			}
			if room == 0 {
				continue
			}
			room--
		}
		t.names.Lease(name)
	}
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

// table returns the table that a type is served from.
func (s Snapshot) table(typeURL string) *table {
	if s.tooStale {
		return noTable
	}
	return s.c.existing(typeURL)
}

// Revision counts the changes of the cache.
func (s Snapshot) Revision() uint64 { return s.c.revision }

// Wildcard returns how much is known of the wildcard of a type.
func (s Snapshot) Wildcard(typeURL string) xds.Knowledge { return s.table(typeURL).Knowledge() }

// Lookup returns the resource of a name or an alias.
func (s Snapshot) Lookup(typeURL, name string) xds.Item {
	if s.tooStale {
		return s.lookupLocal(typeURL, name)
	}
	t := s.table(typeURL)
	if e := t.Find(name); e != nil {
		return s.c.served(t, e)
	}
	if item := s.c.servedRemoved(t, name); item.Current != nil || item.NotFound {
		return item
	}
	return xds.Item{NotFound: t.NotFound(name)}
}

// lookupLocal returns a resource that the agent itself makes, which is never too old.
func (s Snapshot) lookupLocal(typeURL, name string) xds.Item {
	if e := s.c.existing(typeURL).Entry(name); e != nil && e.IsLocal() {
		return e.Item()
	}
	return xds.Item{}
}

// All yields all resources of a type, in no order.
func (s Snapshot) All(typeURL string) iter.Seq[xds.Item] {
	return func(yield func(xds.Item) bool) {
		t := s.table(typeURL)
		for _, e := range t.All() {
			if item := s.c.served(t, e); item.Current != nil && !yield(item) {
				return
			}
		}
		if s.c.fallback.Active() {
			for name := range t.removed {
				if !s.c.fallback.HoldsBack(t.key(name)) {
					continue
				}
				if item := s.c.servedRemoved(t, name); item.Current != nil && !yield(item) {
					return
				}
			}
		}
		for item := range s.c.servedPins(t) {
			if !yield(item) {
				return
			}
		}
	}
}

// Count returns the maximum number of resources that All yields.
func (s Snapshot) Count(typeURL string) int {
	t := s.table(typeURL)
	return t.Len() + len(t.removed) + s.c.pins.Count(t.URL)
}

// Collection yields the members of a glob collection, in no order.
func (s Snapshot) Collection(typeURL, glob string) iter.Seq[xds.Item] {
	return func(yield func(xds.Item) bool) {
		t := s.table(typeURL)
		for _, e := range t.Collection(glob) {
			if item := s.c.served(t, e); item.Current != nil && !yield(item) {
				return
			}
		}
		for item := range s.c.servedPins(t) {
			if xds.CollectionOf(item.Current.Name) == glob && !yield(item) {
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
func (s Snapshot) HadTTL(typeURL string) bool { return s.c.existing(typeURL).hadTTL }

// Nacks counts the cached contents of a type that clients NACKed alone.
func (s Snapshot) Nacks(typeURL string) uint64 { return s.c.existing(typeURL).nacks }

// HadWildcard reports whether a client of this group ever subscribed to the wildcard of a type, or
// is expected to (protocol.md V9).
func (c *Cache) HadWildcard(typeURL string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.existing(typeURL)
	return t.hadWildcard || t.names.Has(xds.Wildcard)
}

// run calls the functions that were collected under the lock; it is called without it.
func run(calls []func()) {
	for _, call := range calls {
		call()
	}
}

// awaitAnswer makes the update that was just applied pending if answer is not nil, and returns the
// answers that are due at once: an ACK if no client was concerned, a NACK if clients have NACKed
// this content before (I6).
func (c *Cache) awaitAnswer(t *table, answer func(nack error), concerned []*Watch, nack error) []func() {
	if answer == nil {
		return nil
	}
	if nack != nil {
		return []func(){func() { answer(nack) }}
	}
	return t.pending.Add(c.revision, answer, concerned)
}

// Progress records that the client has answered, or was not concerned by, every update of a type up
// to a revision.
func (w *Watch) Progress(typeURL string, revision uint64) {
	w.c.mu.Lock()
	due := w.c.afterWrite(w.c.table(typeURL).pending.Seen(w, revision))
	w.c.mu.Unlock()
	run(due)
}

// forgetWatch removes a closed watch from the pending updates.
func (c *Cache) forgetWatch(w *Watch) []func() {
	var due []func()
	for _, t := range c.tables {
		due = append(due, t.pending.Seen(w, c.revision)...)
	}
	return c.afterWrite(due)
}

// Ack records an ACK: of contents that the client now has, and of the removal of names.
func (w *Watch) Ack(typeURL string, accepted []*xds.Resource, removed []string) {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.table(typeURL)
	ch := &changes{table: t}
	now := time.Now()
	for _, r := range accepted {
		w.confirmHeld(t, r.Name)
		if pin := c.pins.Of(t.key(r.Name)); pin != nil {
			w.ackPinned(t, pin, r, ch, now)
			continue
		}
		e := t.Entry(r.Name)
		var before *xds.Resource
		if e != nil {
			before = e.Acked()
		}
		switch {
		case e == nil:
			w.beginProbation(t, r, now)
			continue
		case c.fallback.HoldsBack(t.key(r.Name)) && e.Current().Version != r.Version:
			w.interruptProbation(t, r.Name)
			continue // an ACK of the stable version that was served instead
		case e.Ack(r):
			ch.add(r.Name, e.Current())
		}
		if !e.IsLocal() {
			c.accepted(t, r.Name, before, e.Acked(), now)
		}
		c.persist(t, r.Name)
		switch {
		case e.Acked().Version != r.Version:
			w.interruptProbation(t, r.Name) // the client has an older content
		case !c.fallback.HoldsBack(t.key(r.Name)):
			w.beginProbation(t, e.Acked(), now)
		}
	}
	for _, name := range removed {
		w.interruptProbation(t, name)
		if t.Entry(name) == nil && !xds.Info(t.URL).OnDemand {
			w.confirmHeld(t, name)
		}
	}
	c.notify(ch)
}

// confirmHeld records that the client has said what it holds under a name.
func (w *Watch) confirmHeld(t *table, name string) {
	if xds.Info(t.URL).OnDemand {
		w.c.uncertain.Forget(t.key(name))
	} else {
		w.uncertain.Confirm(t.key(name))
	}
}

// Nack records a NACK, with the client's reason, of the response built at a revision (0: of a
// suspect that was sent alone). The NACK answers the newest update that is pending for this client;
// older ones were superseded (I6).
func (w *Watch) Nack(typeURL string, revision uint64, reason string, rejected *xds.Resource, suspects []*xds.Resource) {
	c := w.c
	reason = fmt.Sprintf("%s: %s", w.client, reason)
	c.mu.Lock()
	t := c.table(typeURL)
	for _, r := range suspects {
		w.mayHold(t, r.Name)
		if h := c.history(t, r.Name); h != nil {
			h.Suspect(r.Version)
		}
	}
	if rejected != nil {
		w.mayHold(t, rejected.Name)
		ch := &changes{table: t}
		c.nack(t, rejected, reason, ch)
		c.notify(ch)
	}
	var due []func()
	if revision > 0 {
		due = append(t.pending.Nack(w, revision, errors.New(reason)), c.afterWrite(t.pending.Seen(w, revision))...)
	}
	c.mu.Unlock()
	run(due)
}

// mayHold records that the client may hold a full-state resource although it did not ACK it.
func (w *Watch) mayHold(t *table, name string) {
	if xds.FullState(t.URL) {
		w.uncertain.MayHold(t.key(name))
	}
}

// nack records the NACK of the only resource of a response.
func (c *Cache) nack(t *table, r *xds.Resource, reason string, ch *changes) {
	if h := c.history(t, r.Name); h != nil && h.Nack(r.Version, reason) {
		t.nacks++
		c.persist(t, r.Name)
		ch.retry = true
	}
}

// retrySuspects sends the suspects of a full-state type to clients once more, because one of the
// resources that were NACKed together turned out to be the cause, was replaced or was removed. In
// SotW a complete set cannot be sent without a suspect; without a retry the suspect would stay one
// for ever, and new clients would get its former content.
func (ch *changes) retrySuspects() {
	if !ch.retry || !xds.FullState(ch.table.URL) {
		return
	}
	for name, e := range ch.table.All() {
		if e.Retry() {
			ch.add(name, e.Current())
		}
	}
}
