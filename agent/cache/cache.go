// Package cache is the state in the middle of holdfast: one map from (type URL,
// name) to a resource for one group of clients. Sources write updates into it;
// streams watch it; the union of what the watches subscribe to is what the
// sources ask for.
//
// It promises:
//   - an update is applied atomically, and seen by a watch as a whole (I4);
//   - what is unknown is distinguishable from what does not exist (I1), and only
//     an upstream's word, or its complete answer, removes (I2, I3);
//   - a watch holds a set of changed names, so a slow one costs no more than its
//     names and sees the newest;
//   - each update gets an ACK or a NACK from the watches that it concerned (I6), and
//     what a client accepted is kept until something better is accepted (I7);
//   - what a closed watch subscribed to stays leased for a while (I11).
//
// The invariants are those of docs/architecture.md. It knows neither SotW nor
// Delta, does no I/O and never decodes a body. All exported methods may be
// called concurrently; none blocks for longer than it computes.
package cache

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/cache/expiry"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/pending"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// DefaultLinger is how long the subscriptions of a closed watch stay leased
// (design.md I11).
const DefaultLinger = 30 * time.Minute

// DefaultUnreferenced bounds how many resources are kept that nobody subscribes
// to any more.
const DefaultUnreferenced = 4096

// maxToldVirtualHosts bounds the removed virtual hosts that later clients are told of.
const maxToldVirtualHosts = 16

// maxNotFound bounds the names of one type that are remembered as not existing, should
// what was found under aliases come and go without end.
const maxNotFound = 100_000

// maxErrors bounds the names of one type whose errors are remembered.
const maxErrors = 1024

// Defaults of what a cache holds at most, of all types together. A mesh of 20,000
// clusters stays well below.
const (
	DefaultMaxResources = 1_000_000
	DefaultMaxBytes     = 1 << 30
)

// Config configures a Cache. Zero values take the defaults above.
type Config struct {
	Linger       time.Duration
	Unreferenced int
	// MaxResources and MaxBytes bound what is held: the number of resources, and
	// the sum of their bodies. An update that goes beyond is refused as a whole.
	MaxResources int
	MaxBytes     int64
	// HoldTTL holds the types, by URL, whose TTLs are not enforced nor passed on
	// (design.md I8, policy "hold").
	HoldTTL map[string]bool
	// Guard holds removals back; OnWithheld, if set, is told how many of how many are.
	// OnAskAgain, if set, is called when sources are asked again for these; OnWithheldEnd
	// when no listener or cluster is held back any more, with how many of them went. All
	// are called under the cache's lock.
	Guard         Guard
	OnWithheld    func(typeURL string, withheld, held int)
	OnAskAgain    func()
	OnWithheldEnd func(confirmed int)
	// Stale, if set, tells whether what is held is too old to be served: nobody has
	// confirmed it for too long. Who has it keeps it; who comes then gets nothing
	// until Fresh.
	Stale func() bool
	// OnContent, if set, is called under the cache's lock with each resource of an upstream
	// whose content is new since the start.
	OnContent func(*xds.Resource)
	// Local, if set, tells which resources the agent makes itself (Publish).
	Local func(typeURL, name string) bool
	// Crashes says that Crashed is called, so that it is remembered what clients had that
	// went. FallbackFor is how long suspects are held back then; 0 for
	// DefaultFallbackFor. OnFallbackEnd, if set, is told under the cache's lock why that
	// has ended.
	Crashes       bool
	FallbackFor   time.Duration
	OnFallbackEnd func(why string)
	// OnIdle, if set, is called by Run when nobody watches and the last lease
	// has ended; more than once if that stays so.
	OnIdle func()
}

// Cache is the state of one group of clients. Make one with New and run Run.
type Cache struct {
	cfg   Config
	wake  chan struct{} // to Run: a deadline may have come nearer
	began time.Time

	mu       sync.Mutex
	revision uint64
	tables   map[string]*table
	watches  map[*Watch]struct{}
	union    *subscriptions.Union
	sources  sources
	// maybeHeld are names that clients which went may hold without telling, until when
	// they may be back; the zero time for one that does not run yet.
	maybeHeld map[key]time.Time
	// connected is since when an upstream answers, so that leases run out; the zero time for
	// none.
	connected time.Time
	// resources and bytes count what the entries of all tables hold.
	resources int
	bytes     int64
	deadlines *expiry.Deadlines[key] // of resources with a TTL
	guard     *guard.Guard
	// updateStableAt is when something may be stable next; the zero time for never.
	updateStableAt time.Time
	// fallback is nil while nothing is held back. crashes are those of the last ten
	// minutes, departed what clients had that have gone; both oldest first.
	fallback       *fallback
	crashes        []crash
	departed       []crash
	journal        *Journal // nil for none
	restoredServed bool     // what is restored from now on is served at once
	// unreferenced orders what nobody subscribes to by age.
	unreferenced *lru.Cache[key, struct{}]
}

// key names a resource, or with name xds.Wildcard everything of a type.
type key struct{ typeURL, name string }

// table is everything of one type.
type table struct {
	url     string
	entries map[string]*entry
	aliases map[string]string // alias to resource name
	// collections are the names held of each glob collection.
	collections map[string]map[string]struct{}
	notFound    map[string]struct{} // names that an upstream said do not exist
	maybeHeld   map[string]struct{} // see session.View
	errors      map[string]error    // by name, the last error from above
	knowledge   xds.Knowledge
	names       *subscriptions.Names // that are subscribed to
	// hadWildcard: a client of this kind subscribed to everything once.
	hadWildcard bool
	pending     pending.Updates[*Watch]
	nacks       uint64 // of contents that were held
	updated     time.Time
	expired     uint64 // resources that outlived their TTL
	hadTTL      bool   // a resource ever had one
	former      map[string]former
	// completeFrom is the source that last told all it has, pruneAt when what it did not confirm
	// goes.
	completeFrom string
	pruneAt      time.Time
	// answered: a source said something of the type. sealed: what was restored is
	// not served yet; restoredKnown: nor that something was known of the wildcard.
	answered, sealed, restoredKnown bool
	// refused is the source of an update for which there was no room, until it is asked anew:
	// a Delta server says nothing of it again by itself. nowhere for none.
	refused sourceID
	// updates counts the updates that were applied, for entry.update.
	updates uint32
}

// entry is what is held under one name. There are as many as resources, so that its
// size counts: 64 bytes.
type entry struct {
	history.History
	// disk is what is on disk, nil for nothing.
	disk *onDisk
	// follows is the cluster because of which the endpoints that it names are wanted,
	// nil for none.
	follows          *xds.Resource
	keepUnsubscribed bool // see xds.Update
	// restored: it was on disk, and no source has spoken of it since.
	restored bool
	// late: a source had begun to answer the type when it was read from disk.
	late bool
	// update is the last update that had it, as table.updates counts them.
	update uint32
}

// local: the agent itself made it.
func (e *entry) local() bool { return e.Source() == localSource }

// origin is where a resource is from.
type origin struct {
	source           sourceID
	keepUnsubscribed bool // see xds.Update
}

func (c *Cache) origin(u xds.Update) origin {
	return origin{c.sources.id(u.Source), u.KeepUnsubscribed}
}

// New returns an empty cache, in which everything is unknown.
func New(cfg Config) *Cache {
	if cfg.Linger == 0 {
		cfg.Linger = DefaultLinger
	}
	if cfg.Unreferenced == 0 {
		cfg.Unreferenced = DefaultUnreferenced
	}
	if cfg.MaxResources == 0 {
		cfg.MaxResources = DefaultMaxResources
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.FallbackFor == 0 {
		cfg.FallbackFor = DefaultFallbackFor
	}
	c := &Cache{
		cfg:       cfg,
		wake:      make(chan struct{}, 1),
		began:     time.Now(),
		tables:    make(map[string]*table),
		watches:   make(map[*Watch]struct{}),
		sources:   newSources(),
		maybeHeld: make(map[key]time.Time),
	}
	c.deadlines = expiry.New(c.deadline)
	c.guard = guard.New(cfg.Guard, func(typeURL, name string) {
		if typeURL == "" {
			c.logFact(AccidentFact, "", "")
			return
		}
		c.logFact(WithheldFact, typeURL, name)
	})
	c.union = subscriptions.New(cfg.Linger, func(typeURL, name string) { c.wantChanged(c.table(typeURL), name) })
	// The size is positive, so there is no error.
	c.unreferenced, _ = lru.NewWithEvict(cfg.Unreferenced, func(k key, _ struct{}) { c.evicted(k) })
	return c
}

// clock returns how long there has been the cache.
func (c *Cache) clock() time.Duration { return time.Since(c.began) }

func (c *Cache) table(typeURL string) *table {
	t := c.tables[typeURL]
	if t == nil {
		t = &table{
			url:     typeURL,
			entries: make(map[string]*entry),
			aliases: make(map[string]string),

			collections: make(map[string]map[string]struct{}),
			notFound:    make(map[string]struct{}),
			maybeHeld:   make(map[string]struct{}),
			errors:      make(map[string]error),
			names:       c.union.Of(typeURL),
			former:      make(map[string]former),
		}
		c.tables[typeURL] = t
	}
	return t
}

// Apply takes in one update, atomically. answer, which may be nil, is called with the clients'
// answer: nil for an ACK, once every watch that the update concerned has come past it, or an error
// for a NACK, with the reason of the first client that sent one. It is called outside of the
// cache's lock, from Apply or from a method of a watch.
func (c *Cache) Apply(u xds.Update, answer func(nack error)) {
	c.mu.Lock()
	t := c.table(u.Type)
	u = c.foreign(t, u)
	if u.Timeout {
		c.complain(t, u, newChanges(t))
		c.mu.Unlock()
		if answer != nil {
			answer(nil)
		}
		return
	}
	t.updated = time.Now()
	if err := c.room(t, u); err != nil {
		t.errors[""], t.refused = err, c.sources.id(u.Source)
		c.mu.Unlock()
		if answer != nil {
			answer(err)
		}
		return
	}
	t.answered = true
	if t.refused == nowhere {
		delete(t.errors, "") // what was wrong with an answer before
	}
	c.serveRestored(t)
	c.revision++
	ch := newChanges(t)
	if len(t.entries) == 0 {
		t.grow(len(u.Resources))
		ch.names = make([]string, 0, len(u.Resources))
	}
	var refused error
	from := c.origin(u)
	held := len(t.entries)
	t.updates++
	for _, r := range u.Resources {
		if reason, ok := c.put(t, from, c.lifetime(r), ch); !ok && refused == nil {
			refused = reason
		}
	}
	removed := c.removals(t, u)
	if c.guard.Active() {
		replaced := c.replaced(t, removed, u.Resources)
		for name := range replaced {
			c.remove(t, name, ch)
			held--
		}
		removed = slices.DeleteFunc(removed, func(name string) bool { _, gone := replaced[name]; return gone })
		removed = c.filterRemovals(t, guard.Removal{Names: removed, Held: held, RequestedAt: u.RequestedAt, WithOthers: len(u.Resources) > 0})
	}
	for _, name := range removed {
		c.remove(t, name, ch)
	}
	if u.Complete {
		// From now on absence itself says that a name of the wildcard is gone.
		maps.DeleteFunc(t.notFound, func(name string, _ struct{}) bool { return !c.requested(t, name) })
		c.noteComplete(t, u.Source)
	}
	for _, h := range u.Heartbeats {
		if err := c.refresh(t, from, h, ch); err != nil && refused == nil {
			refused = err
		}
	}
	c.complain(t, u, ch)
	c.learn(t, u, ch)
	concerned := c.notify(ch)
	c.endAccident(time.Now())
	if len(concerned) == 0 {
		concerned = c.awaited(t, u)
	}
	var due []func()
	if answer != nil {
		due = c.open(t, answer, concerned, refused)
	}
	c.mu.Unlock()
	run(due)
}

// complain takes in the errors of an update.
func (c *Cache) complain(t *table, u xds.Update, ch *changes) {
	for _, e := range u.Errors {
		if e.Name != "" && t.entries[e.Name] == nil && !c.requested(t, e.Name) && !c.requested(t, xds.Wildcard) {
			continue // nobody subscribes to it any more
		}
		if errors.Is(e.Err, xds.ErrNotFound) && t.entries[e.Name] == nil {
			c.remove(t, e.Name, ch) // as good as a removal, of what is not held (protocol.md 3.14)
		}
		if errors.Is(e.Err, xds.ErrNoAnswer) && t.entries[e.Name] != nil {
			continue // unchanged, so that nothing need be said of it
		}
		if _, ok := t.errors[e.Name]; ok || len(t.errors) < maxErrors {
			t.errors[e.Name] = e.Err
		}
	}
}

// awaited returns the watches that have not answered the newest pending update, if this one
// repeats, unchanged, a resource that no client has answered yet: the repeat gets the same answer.
func (c *Cache) awaited(t *table, u xds.Update) []*Watch {
	newest := t.pending.Newest()
	if len(newest) == 0 {
		return nil
	}
	for _, r := range u.Resources {
		if e := t.entries[r.Name]; e != nil && e.Status() == xds.Pending {
			return newest
		}
	}
	return nil
}

// room returns nil if an update fits within the limits. So does one that makes what is held no
// more, where that is beyond the limits already: it was restored, or a limit was lowered.
func (c *Cache) room(t *table, u xds.Update) error {
	resources, bytes := c.resources+len(u.Resources), c.bytes
	for _, r := range u.Resources {
		bytes += size(r)
	}
	if resources <= c.cfg.MaxResources && bytes <= c.cfg.MaxBytes {
		return nil // though some of them replace others
	}
	leaves := func(e *entry) {
		resources--
		bytes -= size(e.Current())
	}
	all := u.Complete && !c.guard.Active() // what a guard holds back does not leave
	if all {
		for _, e := range t.entries {
			leaves(e)
		}
	}
	for _, r := range u.Resources {
		if e := t.entries[r.Name]; e != nil && !all {
			leaves(e)
		}
	}
	for _, name := range u.Removed {
		if e := t.entries[name]; e != nil && !all && !c.guard.Active() {
			leaves(e)
		}
	}
	switch {
	case resources <= c.resources && bytes <= c.bytes:
		return nil
	case resources > c.cfg.MaxResources:
		return fmt.Errorf("refused: it would make %d resources, and at most %d are held (--max-resources)", resources, c.cfg.MaxResources)
	case bytes > c.cfg.MaxBytes:
		return fmt.Errorf("refused: it would make %d bytes of resources, and at most %d are held (--max-resource-bytes)", bytes, c.cfg.MaxBytes)
	}
	return nil
}

// size returns what a resource counts against MaxBytes.
func size(r *xds.Resource) int64 { return int64(len(r.Body.GetValue())) }

// learn advances what is known of the wildcard. A Delta answer is served from the
// first on; that it is all is known only later, from Synced.
func (c *Cache) learn(t *table, u xds.Update, ch *changes) {
	was := t.knowledge
	switch {
	case u.Complete && was != xds.Complete && !u.KeepUnsubscribed && !c.requested(t, xds.Wildcard):
		t.knowledge = xds.Partial // what nobody wants is not kept for long, though a source tells it
	case u.Complete:
		t.knowledge = xds.Complete
	case was == xds.Unknown && (u.KeepUnsubscribed || u.Wildcard && c.requested(t, xds.Wildcard)):
		t.knowledge = xds.Partial
	}
	if t.knowledge != was {
		ch.all = true
		c.logFact(Known, t.url, "")
	}
}

// Synced takes in that a source has told all it has of a type's wildcard, or of
// one that it was not asked about. asked is as xds.Update.RequestedAt.
func (c *Cache) Synced(source, typeURL string, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.table(typeURL)
	if c.guard.ConfirmAbsent(t.url, asked) {
		c.wakeRun()
	}
	c.endAccident(time.Now())
	late := c.filterRemovals(t, guard.Removal{Names: c.late(t), Held: len(t.entries), RequestedAt: asked, WithOthers: true})
	c.confirmed(t, source)
	c.noteComplete(t, source)
	unheard := t.knowledge == xds.Unknown && !(t.answered && c.requested(t, xds.Wildcard))
	if unheard || t.knowledge == xds.Complete {
		return // an open stream on which nothing came knows nothing (I2)
	}
	t.knowledge = xds.Complete
	c.logFact(Known, t.url, "")
	c.revision++
	ch := newChanges(t)
	ch.all = true
	for _, name := range late {
		c.remove(t, name, ch)
	}
	c.notify(ch)
}

// SetConnected takes in whether an upstream answers. While none does, leases do
// not run out (I11).
func (c *Cache) SetConnected(connected bool) {
	c.mu.Lock()
	switch {
	case !connected:
		c.connected = time.Time{}
	case c.connected.IsZero():
		c.connected = time.Now()
		for w := range c.watches {
			signal(w.changed) // what an upstream does not have, it will have said soon
		}
	}
	c.mu.Unlock()
	c.wakeRun()
}

// changes are the names of one type that one update changed.
type changes struct {
	table *table
	// names are those of the resources that changed, perhaps more than once; aliases are
	// those by which they are also known, with the resource's name, nil for none.
	names   []string
	aliases map[string]string
	// index is what lookup looks into, once it was asked.
	index map[string]string
	// all: what is known of the wildcard changed.
	all bool
	// retry: what clients NACKed is known, or is not there any more as it was. See retrySuspects.
	retry bool
}

func newChanges(t *table) *changes {
	return &changes{table: t}
}

// add records a name, and the aliases under which the resource is also known.
func (ch *changes) add(name string, versions ...*xds.Resource) {
	ch.names = append(ch.names, name)
	for _, r := range versions {
		if r == nil {
			continue
		}
		for _, a := range r.Aliases() {
			if ch.aliases == nil {
				ch.aliases = make(map[string]string)
			}
			ch.aliases[a] = name
		}
	}
}

// each yields the names and aliases that changed, with the resource's name.
func (ch *changes) each(yield func(name, resource string) bool) {
	for _, name := range ch.names {
		if !yield(name, name) {
			return
		}
	}
	for alias, name := range ch.aliases {
		if !yield(alias, name) {
			return
		}
	}
}

// lookup returns the resource's name of a name or alias that changed. Nothing may be added
// afterwards.
func (ch *changes) lookup(name string) (resource string, ok bool) {
	if ch.index == nil {
		ch.index = maps.Collect(ch.each)
	}
	resource, ok = ch.index[name]
	return resource, ok
}

// grow makes an empty table as large as it will be.
func (t *table) grow(n int) {
	if len(t.entries) == 0 {
		t.entries = make(map[string]*entry, n)
	}
}

// put stores one resource. ok is false if a client has NACKed this content before, and reason says
// why.
func (c *Cache) put(t *table, from origin, r *xds.Resource, ch *changes) (reason error, ok bool) {
	delete(t.errors, r.Name)
	c.guard.Forget(t.url, r.Name)
	e := t.entries[r.Name]
	if e != nil && e.Current() == r && e.Source() == from.source && e.keepUnsubscribed == from.keepUnsubscribed {
		e.restored, e.update = false, t.updates
		return e.nack()
	}
	delete(t.notFound, r.Name)
	if e == nil {
		e = &entry{}
		t.entries[r.Name] = e
		c.resources++
	} else {
		c.bytes -= size(e.Current())
	}
	c.bytes += size(r)
	old, blamed, restored := e.Current(), e.Blamed(), e.restored
	if f, ok := t.former[r.Name]; ok && old == nil {
		if xds.Info(t.url).FallBack {
			e.SetStable(f.res)
		}
		delete(t.former, r.Name)
	}
	e.keepUnsubscribed, e.restored, e.update = from.keepUnsubscribed, false, t.updates
	change, rewrite := e.Put(r, from.source)
	switch change {
	case history.Content:
		c.expires(r)
		t.indexAliases(old, r)
		ch.add(r.Name, old, r)
		ch.retry = ch.retry || blamed
	case history.Lifetime:
		c.lifetimeChanged(e, ch)
	}
	if c.cfg.OnContent != nil && from.source != localSource && (change == history.Content || restored) {
		c.cfg.OnContent(r)
	}
	if c.changedSuspect(t, r.Name) {
		ch.add(r.Name, r)
	}
	if rewrite {
		c.log(t, r.Name) // what comes again as it was is on disk as it is
	}
	c.file(t, r.Name, e)
	return e.nack()
}

// nack returns why clients NACKed what is held; ok if they did not.
func (e *entry) nack() (reason error, ok bool) {
	if e.Status() == xds.Nacked {
		return nackError(e.Reason()), false
	}
	return nil, true
}

func (t *table) indexAliases(old, r *xds.Resource) {
	if old != nil {
		for _, a := range old.Aliases() {
			if t.aliases[a] == old.Name {
				delete(t.aliases, a)
			}
		}
		if glob := xds.CollectionOf(old.Name); glob != "" {
			delete(t.collections[glob], old.Name)
			if len(t.collections[glob]) == 0 {
				delete(t.collections, glob)
			}
		}
	}
	if r != nil {
		for _, a := range r.Aliases() {
			t.aliases[a] = r.Name
		}
		if glob := xds.CollectionOf(r.Name); glob != "" {
			if t.collections[glob] == nil {
				t.collections[glob] = make(map[string]struct{})
			}
			t.collections[glob][r.Name] = struct{}{}
			delete(t.notFound, glob)
		}
	}
}

// remove deletes what is held under a name, on the word of an upstream. That it does not exist is remembered while somebody wants it, or may
// have it.
func (c *Cache) remove(t *table, name string, ch *changes) {
	var was *xds.Resource
	if e := t.entries[name]; e != nil {
		was = e.Current()
		ch.add(name, was)
		ch.retry = ch.retry || e.Blamed()
		switch {
		case e.Stable() != nil:
			c.keepFormer(t, name, e.Stable(), time.Now())
		case t.url == xds.EndpointType && c.cfg.Crashes && e.Acked() != nil:
			c.keepFormer(t, name, e.Acked(), time.Now()) // their cluster may be served again
		}
		c.drop(t, name)
		c.changedSuspect(t, name)
	}
	if xds.Info(t.url).OnDemand && len(t.maybeHeld) < maxToldVirtualHosts {
		// A later client too must hear something, to end its wait (protocol.md V11).
		t.maybeHeld[name] = struct{}{}
		c.logFact(MaybeHeldFact, t.url, name)
	}
	if _, ok := t.notFound[name]; ok {
		return
	}
	if c.wantsResource(t, name, was) || c.requested(t, name) || t.knowledge != xds.Complete && c.requested(t, xds.Wildcard) {
		if len(t.notFound) == maxNotFound {
			clear(t.notFound)
		}
		t.notFound[name] = struct{}{}
		ch.add(name, was)
	}
}

// drop deletes an entry without a word to anybody.
func (c *Cache) drop(t *table, name string) {
	e := t.entries[name]
	if e == nil {
		return
	}
	c.guard.Forget(t.url, name)
	t.indexAliases(e.Current(), nil)
	c.follow(e, nil)
	c.resources--
	c.bytes -= size(e.Current())
	delete(t.entries, name)
	delete(t.errors, name)
	if c.journal != nil && e.disk != nil {
		c.journal.removed[key{t.url, name}] = e.disk
	}
	c.log(t, name)
	c.unreferenced.Remove(key{t.url, name})
}

// refresh takes in a heartbeat. One for a content that is not held refreshes
// nothing, and the error says so to the upstream (protocol.md 6.1).
func (c *Cache) refresh(t *table, from origin, h xds.Heartbeat, ch *changes) error {
	e := t.entries[h.Name]
	switch {
	case e == nil:
		return fmt.Errorf("%s %q: a heartbeat for what is not held", xds.Short(t.url), h.Name)
	case e.Current().UpstreamVersion != h.Version && !(h.AnyVersion && e.Source() == from.source):
		return fmt.Errorf("%s %q: a heartbeat of version %q, and %q is held", xds.Short(t.url), h.Name, h.Version, e.Current().UpstreamVersion)
	case c.cfg.HoldTTL[t.url]:
		return nil
	}
	if change, _ := e.Put(e.Current().WithLifetime(h.TTL, h.Deadline), e.Source()); change == history.Lifetime {
		c.lifetimeChanged(e, ch)
	}
	c.log(t, h.Name)
	return nil
}

// Held lists what is held and still subscribed of a type, with the version that
// a source issued for it, "" for what came from another source (I2), for what clients
// refused, since to say that it is held would say that it was accepted, and for what was
// removed and is held back: the source is to say whether it has it again.
func (c *Cache) Held(source, typeURL string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tables[typeURL]
	if t == nil {
		return nil
	}
	all := c.wants(t, xds.Wildcard)
	from := c.sources.id(source)
	if t.refused == from && from != nowhere {
		t.refused = nowhere // it is told what is held, and sends the rest
		delete(t.errors, "")
	}
	held := make(map[string]string)
	for name, e := range t.entries {
		if e.local() || !all && !c.wantsResource(t, name, e.Current()) {
			continue
		}
		held[name] = ""
		if waits, _ := c.guard.Waits(t.url, name); !waits && e.Source() == from && from != nowhere && e.Status() != xds.Nacked {
			held[name] = e.Current().UpstreamVersion
		}
	}
	return held
}

// Nacked lists what a source is to be asked for again, in alphabetical order: what it gave of a
// type, and is held, and clients NACKed; or xds.Wildcard, if an update of it was refused as a
// whole, so that it is not known what else there is.
func (c *Cache) Nacked(source, typeURL string) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tables[typeURL]
	if t == nil {
		return nil
	}
	from := c.sources.id(source)
	if from != nowhere && t.refused == from {
		return []string{xds.Wildcard}
	}
	if t.nacks == 0 {
		return nil
	}
	for name, e := range t.entries {
		if e.Status() == xds.Nacked && e.Source() == from {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Body returns the body that is held under a name, nil for none.
func (c *Cache) Body(typeURL string, name []byte) *anypb.Any {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tables[typeURL]
	if t == nil {
		return nil
	}
	e := t.entries[string(name)] // without a copy of it
	if e == nil {
		e = t.entries[xds.CanonicalName(string(name))]
	}
	if e == nil {
		return nil
	}
	return e.Current().Body
}
