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

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/expiry"
	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/pending"
	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/agent/cache/uncertain"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// DefaultLinger is how long the subscriptions of a closed watch stay leased
// (design.md I11).
const DefaultLinger = 30 * time.Minute

// DefaultMaxUnreferenced bounds how many resources are kept that nobody subscribes
// to any more.
const DefaultMaxUnreferenced = 4096

// maxRemovedVirtualHosts bounds the removed virtual hosts that later clients are told of.
const maxRemovedVirtualHosts = 16

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
	Linger          time.Duration
	MaxUnreferenced int
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
	OnHeldBack    func(typeURL string, withheld, held int)
	OnAskAgain    func()
	OnHeldBackEnd func(confirmed int)
	// Stale, if set, tells whether what is held is too old to be served: nobody has
	// confirmed it for too long. Who has it keeps it; who comes then gets nothing
	// until Fresh.
	Stale func() bool
	// OnContent, if set, is called under the cache's lock with each resource of an upstream
	// whose content is new since the start.
	OnContent func(*xds.Resource)
	// Local, if set, tells which resources the agent makes itself (Publish).
	Local func(typeURL, name string) bool
	// FallbackEnabled says that Crashed is called, so that it is remembered what clients had that
	// went. FallbackFor is how long suspects are held back then; 0 for
	// fallback.DefaultDuration. OnFallbackEnd, if set, is told under the cache's lock why that
	// has ended.
	FallbackEnabled bool
	FallbackFor     time.Duration
	OnFallbackEnd   func(why string)
	// OnIdle, if set, is called by Run when nobody watches and the last lease
	// has ended; more than once if that stays so.
	OnIdle func()
}

// Cache is the state of one group of clients. Make one with New and run Run.
type Cache struct {
	cfg   Config
	wake  chan struct{} // to Run: a deadline may have come nearer
	began time.Time

	mu        sync.Mutex
	revision  uint64
	tables    map[string]*table
	watches   map[*Watch]struct{}
	union     *subscriptions.Union
	sources   sources
	contents  *contents.Contents
	uncertain *uncertain.Names
	// connected is since when an upstream answers, so that leases run out; the zero time for
	// none.
	connected time.Time
	deadlines *expiry.Deadlines[xds.Key] // of resources with a TTL
	guard     *guard.Guard
	fallback  *fallback.Fallback
	// updateStableAt is when something may be stable next; the zero time for never.
	updateStableAt time.Time
	journal        *Journal // nil for none
	restoredServed bool     // what is restored from now on is served at once
	// unreferenced orders what nobody subscribes to by age.
	unreferenced *lru.Cache[xds.Key, struct{}]
}

// table is everything of one type.
type table struct {
	*contents.Type
	url         string
	names       *subscriptions.Names // that are subscribed to
	hadWildcard bool                 // a client of this kind subscribed to everything once
	pending     pending.Updates[*Watch]
	removed     probation.Removed
	errors      map[string]error // by name, the last error from above
	updated     time.Time        // when a source last said anything; the zero time for never
	nacks       uint64           // of contents that were held
	expired     uint64           // resources that outlived their TTL
	hadTTL      bool             // a resource ever had one
	// completeFrom is the source that last told all it has, pruneAt when what it did not confirm
	// goes.
	completeFrom string
	pruneAt      time.Time
	// rejectedFrom is the source of an update for which there was no room, until it is asked anew:
	// a Delta server says nothing of it again by itself.
	rejectedFrom sourceID
}

type entry = contents.Entry

func (t *table) key(name string) xds.Key { return xds.Key{Type: t.url, Name: name} }

func (c *Cache) origin(u xds.Update) contents.Origin {
	return contents.Origin{Source: c.sources.id(u.Source), KeepUnsubscribed: u.KeepUnsubscribed}
}

// New returns an empty cache, in which everything is unknown.
func New(cfg Config) *Cache {
	if cfg.Linger == 0 {
		cfg.Linger = DefaultLinger
	}
	if cfg.MaxUnreferenced == 0 {
		cfg.MaxUnreferenced = DefaultMaxUnreferenced
	}
	if cfg.MaxResources == 0 {
		cfg.MaxResources = DefaultMaxResources
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	c := &Cache{
		cfg:      cfg,
		wake:     make(chan struct{}, 1),
		began:    time.Now(),
		tables:   make(map[string]*table),
		watches:  make(map[*Watch]struct{}),
		sources:  newSources(),
		contents: contents.New(),
	}
	c.deadlines = expiry.New(c.deadline)
	c.guard = guard.New(cfg.Guard, func(k xds.Key) { c.persistFactOr(DeferredFact, AccidentFact, k) })
	c.fallback = fallback.New(cfg.FallbackFor, func(k xds.Key) { c.persistFactOr(SuspectFact, FallbackFact, k) })
	c.uncertain = uncertain.New(cfg.Linger, func(k xds.Key) { c.persistFact(MaybeHeldFact, k) })
	c.union = subscriptions.New(cfg.Linger, func(k xds.Key) { c.subscriptionChanged(c.table(k.Type), k.Name) })
	// The size is positive, so there is no error.
	c.unreferenced, _ = lru.NewWithEvict(cfg.MaxUnreferenced, func(k xds.Key, _ struct{}) { c.evicted(k) })
	return c
}

// elapsed returns how long there has been the cache.
func (c *Cache) elapsed() time.Duration { return time.Since(c.began) }

func (c *Cache) table(typeURL string) *table {
	t := c.tables[typeURL]
	if t == nil {
		t = &table{
			Type:    c.contents.Type(typeURL),
			url:     typeURL,
			names:   c.union.Of(typeURL),
			removed: make(probation.Removed),
			errors:  make(map[string]error),
		}
		c.tables[typeURL] = t
	}
	return t
}

// Apply takes in one update, atomically. answer, which may be nil, is called with the clients'
// answer: nil for an ACK, once every watch that the update concerned has come past it, or an error
// for a NACK, with the reason of the first client that sent one. It is called outside of the
// cache's lock, from Apply or from a method of a watch.
//
// The steps of an update, of which each relies on those before:
//
//  1. what is not the source's to say goes (local);
//  2. the update is refused as a whole if there is no room for it (contents);
//  3. what was restored may be served, since a source has answered the type;
//  4. the resources are put, each into its history (contents, expiry, subscriptions);
//  5. removals take effect or wait (guard), and heartbeats renew TTLs;
//  6. errors are noted, and what is known of the type advances;
//  7. the watches that subscribe to what changed are told, and their answer is awaited (pending).
func (c *Cache) Apply(u xds.Update, answer func(nack error)) {
	c.mu.Lock()
	due := c.apply(u, answer)
	c.mu.Unlock()
	run(due)
}

func (c *Cache) apply(u xds.Update, answer func(nack error)) (due []func()) {
	t := c.table(u.Type)
	u = c.withoutLocal(t, u)
	if u.Timeout {
		c.noteErrors(t, u, newChanges(t))
		return c.awaitAnswer(t, answer, nil, nil)
	}
	t.updated = time.Now()
	if err := t.Check(u, contents.Limits{Resources: c.cfg.MaxResources, Bytes: c.cfg.MaxBytes}, !c.guard.Active()); err != nil {
		t.errors[""], t.rejectedFrom = err, c.sources.id(u.Source)
		return c.awaitAnswer(t, answer, nil, err)
	}
	t.SetAnswered()
	if t.rejectedFrom == history.Unknown {
		delete(t.errors, "") // what was wrong with an answer before
	}
	c.serveRestored(t)
	c.revision++
	ch := newChanges(t)
	held, from := t.Len(), c.origin(u)
	if held == 0 {
		t.Grow(len(u.Resources))
		ch.names = make([]string, 0, len(u.Resources))
	}
	t.BeginUpdate()
	var nack error
	for _, r := range u.Resources {
		if err := c.put(t, from, c.applyTTLPolicy(r), ch); err != nil && nack == nil {
			nack = err
		}
	}
	c.removeAll(t, u, held, ch)
	for _, h := range u.Heartbeats {
		if err := c.refresh(t, from, h, ch); err != nil && nack == nil {
			nack = err
		}
	}
	c.noteErrors(t, u, ch)
	if t.UpdateKnowledge(u, t.names.Requested(xds.Wildcard)) {
		ch.all = true
		c.persistFact(KnownFact, t.key(""))
	}
	concerned := c.notify(ch)
	c.endAccident(time.Now())
	if len(concerned) == 0 {
		concerned = c.pendingWatches(t, u)
	}
	return c.awaitAnswer(t, answer, concerned, nack)
}

// noteErrors takes in the errors of an update.
func (c *Cache) noteErrors(t *table, u xds.Update, ch *changes) {
	for _, e := range u.Errors {
		held := t.Entry(e.Name) != nil
		if e.Name != "" && !held && !t.names.Requested(e.Name) && !t.names.Requested(xds.Wildcard) {
			continue // nobody subscribes to it any more
		}
		if errors.Is(e.Err, xds.ErrNotFound) && !held {
			c.remove(t, e.Name, ch) // as good as a removal, of what is not held (protocol.md 3.14)
		}
		if errors.Is(e.Err, xds.ErrNoAnswer) && held {
			continue // unchanged, so that nothing need be said of it
		}
		if _, ok := t.errors[e.Name]; ok || len(t.errors) < maxErrors {
			t.errors[e.Name] = e.Err
		}
	}
}

// pendingWatches returns the watches that have not answered the newest pending update, if this one
// repeats, unchanged, a resource that no client has answered yet: the repeat gets the same answer.
func (c *Cache) pendingWatches(t *table, u xds.Update) []*Watch {
	newest := t.pending.Newest()
	if len(newest) == 0 {
		return nil
	}
	for _, r := range u.Resources {
		if e := t.Entry(r.Name); e != nil && e.Status() == xds.Pending {
			return newest
		}
	}
	return nil
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
	late := c.filterRemovals(t, guard.Removal{Names: c.restoredUnconfirmed(t), Held: t.Len(), RequestedAt: asked, WithOthers: true})
	c.confirmAll(t, source)
	c.noteComplete(t, source)
	if !t.Synced(t.names.Requested(xds.Wildcard)) {
		return
	}
	c.persistFact(KnownFact, t.key(""))
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

// put stores one resource. It returns why clients NACKed this content before, nil if they did not.
func (c *Cache) put(t *table, from contents.Origin, r *xds.Resource, ch *changes) (nack error) {
	delete(t.errors, r.Name)
	c.guard.Forget(t.key(r.Name))
	p := t.Put(r, from, c.takeRemoved(t, r.Name))
	switch p.Change {
	case history.ContentChanged:
		c.trackDeadline(r)
		ch.add(r.Name, p.Old, r)
		ch.retry = ch.retry || p.WasNackedOrSuspect
	case history.LifetimeChanged:
		c.lifetimeChanged(p.Entry, ch)
	}
	if c.cfg.OnContent != nil && from.Source != history.Local && (p.Change == history.ContentChanged || p.WasRestored) {
		c.cfg.OnContent(r)
	}
	if c.updateSuspect(t, r.Name) {
		ch.add(r.Name, r)
	}
	if p.DiskDiffers {
		c.persist(t, r.Name) // what comes again as it was is on disk as it is
	}
	c.updateLRU(t, r.Name, p.Entry)
	return nackOf(p.Entry)
}

// nackOf returns why clients NACKed what is held; nil if they did not.
func nackOf(e *entry) error {
	if e.Status() == xds.Nacked {
		return nackError(e.Reason())
	}
	return nil
}

// remove deletes what is held under a name, on the word of a source. That it does not exist is
// remembered while somebody wants it, or may have it.
func (c *Cache) remove(t *table, name string, ch *changes) {
	var was *xds.Resource
	if e := t.Entry(name); e != nil {
		was = e.Current()
		ch.add(name, was)
		ch.retry = ch.retry || e.NackedOrSuspect()
		switch {
		case e.Stable() != nil:
			c.keepRemoved(t, name, e.Stable(), time.Now())
		case t.url == xds.EndpointType && c.cfg.FallbackEnabled && e.Acked() != nil:
			c.keepRemoved(t, name, e.Acked(), time.Now()) // their cluster may be served again
		}
		c.drop(t, name)
		c.updateSuspect(t, name)
	}
	if xds.Info(t.url).OnDemand && c.uncertain.Count(t.url) < maxRemovedVirtualHosts {
		c.uncertain.Add(t.key(name)) // a later client must be told too, to end its wait (protocol.md V11)
	}
	if t.NotFound(name) {
		return
	}
	if c.isSubscribed(t, name, was) || t.names.Requested(name) || t.Knowledge() != xds.Complete && t.names.Requested(xds.Wildcard) {
		t.SetNotFound(name)
		ch.add(name, was)
	}
}

// drop deletes an entry without a word to anybody.
func (c *Cache) drop(t *table, name string) {
	e := t.Drop(name)
	if e == nil {
		return
	}
	c.guard.Forget(t.key(name))
	c.subscribeEndpoints(e, nil)
	delete(t.errors, name)
	c.journal.dropped(t.key(name), e)
	c.persist(t, name)
	c.unreferenced.Remove(t.key(name))
}

// refresh takes in a heartbeat. One for a content that is not held refreshes
// nothing, and the error says so to the upstream (protocol.md 6.1).
func (c *Cache) refresh(t *table, from contents.Origin, h xds.Heartbeat, ch *changes) error {
	e := t.Entry(h.Name)
	switch {
	case e == nil:
		return fmt.Errorf("%s %q: a heartbeat for what is not held", xds.Short(t.url), h.Name)
	case e.Current().UpstreamVersion != h.Version && !(h.AnyVersion && e.Source() == from.Source):
		return fmt.Errorf("%s %q: a heartbeat of version %q, and %q is held", xds.Short(t.url), h.Name, h.Version, e.Current().UpstreamVersion)
	case c.cfg.HoldTTL[t.url]:
		return nil
	}
	if change, _ := e.Put(e.Current().WithLifetime(h.TTL, h.Deadline), e.Source()); change == history.LifetimeChanged {
		c.lifetimeChanged(e, ch)
	}
	c.persist(t, h.Name)
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
	all := t.names.Has(xds.Wildcard)
	from := c.sources.id(source)
	if t.rejectedFrom == from && from != history.Unknown {
		t.rejectedFrom = history.Unknown // it is told what is held, and sends the rest
		delete(t.errors, "")
	}
	held := make(map[string]string)
	for name, e := range t.All() {
		if e.IsLocal() || !all && !c.isSubscribed(t, name, e.Current()) {
			continue
		}
		held[name] = ""
		if waits, _ := c.guard.Deferred(t.key(name)); !waits && e.Source() == from && from != history.Unknown && e.Status() != xds.Nacked {
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
	if from != history.Unknown && t.rejectedFrom == from {
		return []string{xds.Wildcard}
	}
	if t.nacks == 0 {
		return nil
	}
	for name, e := range t.All() {
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
	e := t.EntryOf(name)
	if e == nil {
		e = t.Entry(xds.CanonicalName(string(name)))
	}
	if e == nil {
		return nil
	}
	return e.Current().Body
}
