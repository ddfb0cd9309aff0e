// Package cache is the state in the middle of holdfast: one map from (type URL, name) to a
// resource, for one group of clients. Sources apply updates to it, each downstream stream reads it
// through a Watch, and the union of the watches' subscriptions is what the sources are asked for.
//
// It promises:
//   - an update is applied atomically, and a watch sees it as a whole (I4);
//   - an unknown name is distinguishable from one that does not exist (I1), and only a source
//     removes a resource, by name or with a complete set that lacks it (I2, I3);
//   - a watch holds a set of changed names, so that a slow client costs no more than these names
//     and gets the newest contents;
//   - each update gets an ACK or a NACK from the clients that it concerns (I6), and what a client
//     ACKed stays until a client ACKs something newer (I7);
//   - the subscriptions of a closed watch stay leased for a while (I11).
//
// The invariants are those of design.md section 3. The package knows neither SotW nor Delta, does
// no I/O and never decodes a body. All exported methods may be called concurrently; none blocks for
// longer than its computation takes. Unexported methods are called with the cache's lock held,
// unless they say otherwise.
package cache

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/expiry"
	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/agent/cache/freeze"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/pending"
	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/agent/cache/uncertain"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// DefaultLinger is how long the subscriptions of a closed watch stay leased (design.md I11).
const DefaultLinger = 30 * time.Minute

// DefaultMaxUnreferenced bounds how many resources without a subscription are cached.
const DefaultMaxUnreferenced = 4096

// maxRemovedVirtualHosts bounds the removed virtual hosts whose removal later clients are sent.
const maxRemovedVirtualHosts = 16

// maxErrors bounds the names of one type whose errors are remembered.
const maxErrors = 1024

// Defaults of the limits of a cache, for all types together. A mesh of 20,000 clusters stays well
// below.
const (
	DefaultMaxResources = 1_000_000
	DefaultMaxBytes     = 1 << 30
)

// Config configures a Cache. Zero values take the defaults above.
type Config struct {
	Linger          time.Duration
	MaxUnreferenced int
	// MaxResources and MaxBytes bound the number of resources and the sum of the sizes of their
	// bodies. An update that goes beyond is rejected as a whole.
	MaxResources int
	MaxBytes     int64
	// HistoryBytes bounds the bytes of contents that are kept after clients have accepted others; 0
	// means that none are kept.
	HistoryBytes int64
	// HoldTTL has the types, by URL, whose TTLs are neither enforced nor passed on (design.md I8,
	// policy "hold").
	HoldTTL map[string]bool
	// Guard configures which removals are held back. The functions may be nil and are called with
	// the cache's lock held: OnHeldBack with how many of how many resources of a type are held
	// back, and since when, OnAskAgain when sources are asked again for these, and OnHeldBackEnd when none is
	// any more, with how many the sources confirmed.
	Guard         Guard
	OnHeldBack    func(typeURL string, heldBack, had int, since time.Time)
	OnAskAgain    func()
	OnHeldBackEnd func(confirmed int)
	// Stale, if set, reports whether the cache is too old to be served: no source has answered for
	// too long. A watch that is opened then gets nothing until EndStale.
	Stale func() bool
	// OnContent, if set, is called with the cache's lock held for each new content from a source.
	OnContent func(*xds.Resource)
	// OnChange, if set, is called with the cache's lock held for what happens to a resource. It must not
	// block.
	OnChange func(typeURL, name string, what ChangeKind)
	// Local, if set, reports whether the agent itself makes a resource (Publish).
	Local func(typeURL, name string) bool
	// FallbackEnabled says that Crashed will be called, so that the cache remembers what
	// disconnected clients had. FallbackFor is how long suspects are held back; 0 means
	// fallback.DefaultDuration. OnFallbackEnd, if set, is called with the reason, with the cache's
	// lock held.
	FallbackEnabled bool
	FallbackFor     time.Duration
	OnFallbackEnd   func(why string)
	// OnIdle, if set, is called by Run when no watch is open and the last lease has ended, and
	// again as long as that is so.
	OnIdle func()
}

// Cache is the state of one group of clients. Make one with New and call Run.
type Cache struct {
	cfg   Config
	wake  chan struct{} // to Run: an earlier deadline may have been added
	began time.Time

	mu        sync.Mutex
	revision  uint64
	tables    map[string]*table
	watches   map[*Watch]struct{}
	union     *subscriptions.Union
	sources   sources
	contents  contents.Contents
	uncertain *uncertain.Names
	// connected is since when an upstream answers, so that leases expire; the zero time if none
	// does.
	connected time.Time
	deadlines *expiry.Deadlines[xds.Key] // of resources with a TTL
	guard     *guard.Guard
	fallback  *fallback.Fallback
	frozen    *freeze.Order        // nil if nothing is frozen
	unstored  map[xds.Key]struct{} // names of RestoreUnstored, until the freeze ends
	pins      freeze.Pins          // without a freeze there are none
	archive   *archive.Archive
	// unrecorded has the names with an UnrecordedFact, until RestoreVersions.
	unrecorded []xds.Key
	// requestAgain is since when the sources must have requested everything once more because a freeze
	// ended; the zero time for never.
	requestAgain time.Time
	// reported is the report of which the sources know, reportedAt when it was made.
	reported   xds.AgentReport
	reportedAt time.Time
	// updateStableAt is when a content may become stable next; the zero time for never.
	updateStableAt time.Time
	journal        *Journal // nil for none
	restoredServed bool     // resources that are restored from now on are served at once
	// unreferenced orders the resources without a subscription by age.
	unreferenced *lru.Cache[xds.Key, struct{}]
}

// table has everything of one type.
type table struct {
	*contents.Type
	names       *subscriptions.Names // the names that are subscribed to
	hadWildcard bool                 // a client of the group once subscribed to the wildcard
	pending     pending.Updates[*Watch]
	removed     probation.Removed
	errors      map[string]error // by name, the last error of a source
	errorsSince time.Time        // since when there are errors, if there are
	updated     time.Time        // when a source last answered; the zero time for never
	nacks       uint64           // of cached contents
	expired     uint64           // resources whose TTL ended
	hadTTL      bool             // a resource once had a TTL
	// completeFrom is the source that last sent everything it has, pruneAt when the resources are
	// removed that this source did not confirm.
	completeFrom string
	pruneAt      time.Time
	// rejectedFrom is the source of an update that went beyond the limits, until the source is asked
	// again: a Delta server does not send it again by itself.
	rejectedFrom sourceID
}

type entry = contents.Entry

func (t *table) setError(name string, err error) {
	if len(t.errors) == 0 {
		t.errorsSince = time.Now()
	}
	t.errors[name] = err
}

func (t *table) key(name string) xds.Key { return xds.Key{Type: t.URL, Name: name} }

func (c *Cache) origin(u xds.Update) contents.Origin {
	return contents.Origin{Source: c.sources.id(u.Source), KeepUnsubscribed: u.KeepUnsubscribed}
}

// New returns an empty cache, in which everything is unknown.
func New(cfg Config) *Cache {
	cfg.Linger = cmp.Or(cfg.Linger, DefaultLinger)
	cfg.MaxUnreferenced = cmp.Or(cfg.MaxUnreferenced, DefaultMaxUnreferenced)
	cfg.MaxResources = cmp.Or(cfg.MaxResources, DefaultMaxResources)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, DefaultMaxBytes)
	c := &Cache{
		cfg:     cfg,
		wake:    make(chan struct{}, 1),
		began:   time.Now(),
		tables:  make(map[string]*table),
		watches: make(map[*Watch]struct{}),
		sources: newSources(),
	}
	c.deadlines = expiry.New(c.deadline)
	c.guard = guard.New(cfg.Guard, c.guardTable, func(k xds.Key) { c.persistFactOr(DeferredFact, AccidentFact, k) })
	c.fallback = fallback.New(cfg.FallbackFor, func(k xds.Key) { c.persistFactOr(SuspectFact, FallbackFact, k) })
	c.archive = archive.New(cfg.HistoryBytes, c.archiveChanged)
	c.uncertain = uncertain.New(cfg.Linger, func(k xds.Key) { c.persistFact(MaybeHeldFact, k) })
	c.union = subscriptions.New(cfg.Linger, func(k xds.Key) { c.subscriptionChanged(c.table(k.Type), k.Name) })
	// The size is positive, so there is no error.
	c.unreferenced, _ = lru.NewWithEvict(cfg.MaxUnreferenced, func(k xds.Key, _ struct{}) { c.evicted(k) })
	return c
}

// noTable stands for the table of a type that was never subscribed to or updated. Nothing writes to it.
var noTable = &table{Type: &contents.Type{}, names: &subscriptions.Names{}}

// existing returns the table of a type to read from. Unlike table, it makes none.
func (c *Cache) existing(typeURL string) *table { return cmp.Or(c.tables[typeURL], noTable) }

func (c *Cache) table(typeURL string) *table {
	t := c.tables[typeURL]
	if t == nil {
		t = &table{
			Type:    c.contents.Type(typeURL),
			names:   c.union.Of(typeURL),
			removed: make(probation.Removed),
			errors:  make(map[string]error),
		}
		c.tables[typeURL] = t
	}
	return t
}

// Apply applies one update atomically. answer, which may be nil, is called with the clients'
// answer: nil for an ACK, when every watch that the update concerned has processed it, or an error
// for a NACK, with the reason of the first client that sent one. An update that concerns no watch is
// ACKed at once; if a client that comes later NACKs it, answer is called once more, with that NACK. It
// is called without the cache's lock, by Apply or by a method of a Watch.
//
// The steps of an update, each of which relies on those before:
//
//  1. names that the agent itself makes are taken out of the update (local);
//  2. the update is rejected as a whole if it goes beyond the limits (contents);
//  3. restored resources may be served, because a source has answered the type;
//  4. the resources are put, each into its history (contents, expiry, subscriptions, archive); what
//     is frozen is pinned before (freeze);
//  5. removals take effect or are deferred, as are changes that belong to them (guard), and heartbeats renew TTLs;
//  6. errors are recorded, and the knowledge of the wildcard advances;
//  7. the watches that subscribe to what changed are notified, and their answer is awaited
//     (pending).
func (c *Cache) Apply(u xds.Update, answer func(nack error)) {
	c.ApplyTraced(u, answer, nil)
}

// ApplyTraced is Apply, and calls numbered, if it is not nil, with the revision of the update, unless the
// update is rejected as a whole. It is called under the cache's lock, before anybody can see the update, so
// it must be short.
func (c *Cache) ApplyTraced(u xds.Update, answer func(nack error), numbered func(revision uint64)) {
	c.mu.Lock()
	due := c.apply(u, answer, numbered)
	c.mu.Unlock()
	run(due)
}

func (c *Cache) apply(u xds.Update, answer func(nack error), numbered func(revision uint64)) (due []func()) {
	t := c.table(u.Type)
	u = c.withoutLocal(t, u)
	if u.Timeout {
		c.noteErrors(t, u, &changes{table: t})
		return c.awaitAnswer(t, answer, nil, nil)
	}
	t.updated = time.Now()
	c.guard.Contact(u.Contact)
	if err := t.Check(u, contents.Limits{Resources: c.cfg.MaxResources, Bytes: c.cfg.MaxBytes}, !c.guard.Active()); err != nil {
		t.setError("", err)
		t.rejectedFrom = c.sources.id(u.Source)
		return c.awaitAnswer(t, answer, nil, err)
	}
	t.SetAnswered()
	if t.rejectedFrom == history.Unknown {
		delete(t.errors, "") // of an earlier answer
	}
	c.serveRestored(t)
	c.revision++
	if numbered != nil {
		numbered(c.revision)
	}
	ch := &changes{table: t}
	from := c.origin(u)
	if t.Len() == 0 {
		t.Grow(len(u.Resources))
		ch.names = make([]string, 0, len(u.Resources))
	}
	changed := c.guard.Before(u)
	if len(changed.HeldBack)+len(changed.Remember) > 0 {
		c.wakeRun()
	}
	t.BeginUpdate()
	var nack error
	for _, r := range u.Resources {
		if changed.HeldBack[r.Name] {
			t.InUpdate(r.Name)
			continue
		}
		nack = cmp.Or(nack, c.put(t, from, c.applyTTLPolicy(r), ch))
		if former := changed.Remember[r.Name]; former != nil {
			c.guard.Applied(former, r)
		}
	}
	c.removeAll(t, u, ch)
	others := make(changesByType)
	others[t.URL] = ch
	c.undoChanged(others.of)
	delete(others, t.URL)
	c.guard.ConfirmEmptied(t.URL, u.RequestedAt)
	c.report(t)
	for _, h := range u.Heartbeats {
		nack = cmp.Or(nack, c.refresh(t, from, h, ch))
	}
	if ch.withheld && !c.frozen.ACK {
		nack = cmp.Or(nack, errors.New(c.frozen.Error()))
	}
	c.noteErrors(t, u, ch)
	if t.UpdateKnowledge(u, t.names.Requested(xds.Wildcard)) {
		ch.all = true
		c.persistFact(KnownFact, t.key(""))
	}
	concerned := c.notify(ch)
	for _, ch := range others {
		c.notify(ch)
	}
	c.endAccident(t.updated)
	if len(concerned) == 0 {
		concerned = c.pendingWatches(t, u)
	}
	return c.awaitAnswer(t, answer, concerned, nack)
}

// noteErrors records the errors of an update.
func (c *Cache) noteErrors(t *table, u xds.Update, ch *changes) {
	for _, e := range u.Errors {
		cached := t.Entry(e.Name) != nil
		if e.Name != "" && !cached && !t.names.Requested(e.Name) && !t.names.Requested(xds.Wildcard) {
			continue // nobody subscribes to it any more
		}
		if errors.Is(e.Err, xds.ErrNotFound) && !cached {
			c.remove(t, e.Name, ch) // the same as a removal (protocol.md 3.14)
		}
		if errors.Is(e.Err, xds.ErrNoAnswer) && cached {
			continue // a server need not send what has not changed
		}
		if _, ok := t.errors[e.Name]; ok || len(t.errors) < maxErrors {
			t.setError(e.Name, e.Err)
		}
	}
}

// pendingWatches returns the watches that have not answered the newest pending update, if this
// update repeats a resource of it that no client has answered: the repeat gets the same answer.
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

// Synced records that a source has sent everything of a type's wildcard, or has nothing to send
// because it was not asked for the wildcard. asked is as xds.Update.RequestedAt.
func (c *Cache) Synced(source, typeURL string, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.table(typeURL)
	if c.guard.ConfirmAbsent(t.URL, asked) {
		c.wakeRun()
	}
	c.endAccident(time.Now())
	missing := c.guarded(guard.Removal{Type: t.URL, Names: c.restoredUnconfirmed(t), RequestedAt: asked, WithOthers: true})
	c.report(t)
	c.confirmAll(t, source)
	c.noteComplete(t, source)
	if !t.Synced(t.names.Requested(xds.Wildcard)) {
		return
	}
	c.persistFact(KnownFact, t.key(""))
	c.revision++
	ch := &changes{table: t}
	ch.all = true
	for _, name := range missing {
		c.remove(t, name, ch)
	}
	c.notify(ch)
}

// SetConnected records whether an upstream answers. While none does, leases do not expire (I11).
func (c *Cache) SetConnected(connected bool) {
	c.mu.Lock()
	switch {
	case !connected:
		c.connected = time.Time{}
	case c.connected.IsZero():
		c.connected = time.Now()
		for w := range c.watches {
			wake.Signal(w.changed) // from now on a view waits only so long for names without an answer
		}
	}
	c.mu.Unlock()
	c.wakeRun()
}

// changes has the names of one type that an update changed.
type changes struct {
	table *table
	// names has the names of the changed resources, possibly several times; aliases has their
	// aliases, with the resource's name, nil for none.
	names   []string
	aliases map[string]string
	// index is made by the first lookup.
	index map[string]string
	// all: the knowledge of the wildcard changed.
	all bool
	// retry: a content that clients NACKed was identified, replaced or removed. See retrySuspects.
	retry bool
	// withheld: something is frozen, and was changed by the source.
	withheld bool
}

// changesByType has the changes of several types, by type URL.
type changesByType map[string]*changes

func (by changesByType) of(t *table) *changes {
	ch := by[t.URL]
	if ch == nil {
		ch = &changes{table: t}
		by[t.URL] = ch
	}
	return ch
}

// notifyAll notifies the watches of changes beside an update.
func (c *Cache) notifyAll(changed changesByType) {
	if len(changed) == 0 {
		return
	}
	c.revision++
	for _, ch := range changed {
		c.notify(ch)
	}
}

// add adds a name, and the aliases of the resource in the given versions.
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

// each yields the changed names and aliases, with the resource's name.
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

// lookup returns the resource's name of a changed name or alias. Nothing may be added afterwards.
func (ch *changes) lookup(name string) (resource string, ok bool) {
	if ch.index == nil {
		ch.index = maps.Collect(ch.each)
	}
	resource, ok = ch.index[name]
	return resource, ok
}

// put stores one resource. It returns why clients NACKed this content before; nil if they did not.
func (c *Cache) put(t *table, from contents.Origin, r *xds.Resource, ch *changes) (nack error) {
	delete(t.errors, r.Name)
	c.guard.Forget(t.key(r.Name))
	frozen := c.pin(t, r.Name, r, ch)
	p := t.Put(r, from, c.takeRemoved(t, r.Name))
	if frozen {
		c.noteWithheld(t, r, ch)
	}
	switch p.Change {
	case history.ContentChanged:
		if p.Status() == xds.Acked && !frozen {
			c.accepted(t, r.Name, p.OldAcked, r, time.Now()) // clients had accepted it before
		}
		c.observePut(r, p.Old, frozen)
		c.trackDeadline(r)
		ch.add(r.Name, p.Old, r)
		ch.retry = ch.retry || p.WasNackedOrSuspect
	case history.LifetimeChanged:
		c.lifetimeChanged(p.Entry, ch)
	}
	if c.cfg.OnContent != nil && from.Source != history.Local && (p.Change == history.ContentChanged || p.WasRestored) {
		c.cfg.OnContent(r)
	}
	if !frozen && c.updateSuspect(t, r.Name) {
		ch.add(r.Name, r)
	}
	if p.DiskDiffers {
		c.persist(t, r.Name)
	}
	c.updateLRU(t, r.Name, p.Entry)
	if p.Status() == xds.Nacked {
		return errors.New(p.Reason())
	}
	return nil
}

// remove deletes the resource of a name because a source removed it. That the name does not exist
// is remembered while it is subscribed to or a client may hold it.
func (c *Cache) remove(t *table, name string, ch *changes) {
	var was *xds.Resource
	if e := t.Entry(name); e != nil {
		was = e.Current()
		frozen := c.pin(t, name, nil, ch)
		ch.withheld = ch.withheld || frozen && !c.pins.Of(t.key(name)).Absent()
		switch {
		case expired(was, time.Now()): // dropExpired reports it
		case frozen:
			c.observe(t.URL, name, ResourceWithheld)
		default:
			c.observe(t.URL, name, ResourceRemoved)
		}
		ch.add(name, was)
		ch.retry = ch.retry || e.NackedOrSuspect()
		switch {
		case e.Stable() != nil:
			c.keepRemoved(t, name, e.Stable(), time.Now())
		case t.URL == xds.EndpointType && c.cfg.FallbackEnabled && e.Acked() != nil:
			c.keepRemoved(t, name, e.Acked(), time.Now()) // a fallback may serve their cluster again
		}
		c.drop(t, name)
		if !frozen {
			c.updateSuspect(t, name)
		}
	}
	if xds.Info(t.URL).OnDemand && c.uncertain.Count(t.URL) < maxRemovedVirtualHosts {
		c.uncertain.Add(t.key(name)) // later clients wait for its removal, too (protocol.md V11)
	}
	if t.NotFound(name) {
		return
	}
	if t.names.Covers(name, was) || t.names.Requested(name) || t.Knowledge() != xds.Complete && t.names.Requested(xds.Wildcard) {
		t.SetNotFound(name)
		ch.add(name, was)
	}
}

// drop deletes an entry without notifying any watch.
func (c *Cache) drop(t *table, name string) {
	e := t.Drop(name)
	if e == nil {
		return
	}
	if !e.IsLocal() {
		c.accepted(t, name, e.Acked(), nil, time.Now())
	}
	c.guard.Forget(t.key(name))
	c.subscribeEndpoints(e, nil)
	delete(t.errors, name)
	if c.journal != nil && e.OnDisk != nil {
		c.journal.removed[t.key(name)] = e.OnDisk
	}
	c.persist(t, name)
	c.unreferenced.Remove(t.key(name))
}

// refresh applies a heartbeat. A heartbeat for a content that is not cached does nothing, and the
// error is the source's answer (protocol.md 6.1).
func (c *Cache) refresh(t *table, from contents.Origin, h xds.Heartbeat, ch *changes) error {
	e := t.Entry(h.Name)
	switch {
	case e == nil:
		return fmt.Errorf("%s %q: heartbeat for a resource that is not cached", xds.Short(t.URL), h.Name)
	case e.Current().UpstreamVersion != h.Version && !(h.AnyVersion && e.Source() == from.Source):
		return fmt.Errorf("%s %q: heartbeat for version %q, but version %q is cached", xds.Short(t.URL), h.Name, h.Version, e.Current().UpstreamVersion)
	case c.cfg.HoldTTL[t.URL]:
		return nil
	}
	if change, _ := e.Put(e.Current().WithLifetime(h.TTL, h.Deadline), e.Source()); change == history.LifetimeChanged {
		c.lifetimeChanged(e, ch)
		c.setPinLifetime(t, e.Current())
	}
	c.persist(t, h.Name)
	return nil
}

// Cached returns the cached resources of a type that are subscribed to, with the version that the
// source issued. The version is "" for a content of another source (I2), for one that clients
// NACKed, since listing its version would mean that it was accepted, and for one whose removal is
// deferred, so that the source says whether it has the resource again.
func (c *Cache) Cached(source, typeURL string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.existing(typeURL)
	all := t.names.Has(xds.Wildcard)
	from := c.sources.id(source)
	if t.rejectedFrom == from && from != history.Unknown {
		t.rejectedFrom = history.Unknown // the source will send what is not listed here
		delete(t.errors, "")
	}
	held := make(map[string]string)
	for name, e := range t.All() {
		if e.IsLocal() || !all && !t.names.Covers(name, e.Current()) {
			continue
		}
		held[name] = ""
		if !c.guard.Withheld(t.key(name)) && e.Source() == from && from != history.Unknown && e.Status() != xds.Nacked {
			held[name] = e.Current().UpstreamVersion
		}
	}
	return held
}

// Nacked returns what a source must be asked for again, in alphabetical order: its resources of a
// type that clients NACKed, or xds.Wildcard if an update of the source was rejected as a whole, so
// that it is not known what else there is.
func (c *Cache) Nacked(source, typeURL string) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.existing(typeURL)
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

// Body returns the body of a cached resource; nil for none.
func (c *Cache) Body(typeURL string, name []byte) *anypb.Any {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.existing(typeURL)
	e := t.EntryOf(name)
	if e == nil {
		e = t.Entry(xds.CanonicalName(string(name)))
	}
	if e == nil {
		return nil
	}
	return e.Current().Body
}

// A TTL is a deadline, fixed when the upstream last sent or refreshed the resource
// (design.md I8). The cache enforces it: an expired resource is never read.

// trackDeadline adds the deadline of a resource that was just put or refreshed.
func (c *Cache) trackDeadline(r *xds.Resource) {
	if r.Deadline().IsZero() {
		return
	}
	c.table(r.Type).hadTTL = true
	if c.deadlines.Add(xds.Key{Type: r.Type, Name: r.Name}, r.Deadline(), c.contents.Resources) {
		c.wakeRun()
	}
}

// lifetimeChanged handles a new deadline: clients that enforce TTLs must get it.
func (c *Cache) lifetimeChanged(e *entry, ch *changes) {
	c.trackDeadline(e.Current())
	ch.add(e.Current().Name, e.Current())
}

// deadline returns the deadline of a resource; the zero time for none.
func (c *Cache) deadline(k xds.Key) time.Time {
	if r := c.table(k.Type).Resource(k.Name); r != nil {
		return r.Deadline()
	}
	if pin := c.pins.Of(k); pin != nil && !pin.Absent() {
		return pin.Current().Deadline()
	}
	return time.Time{}
}

// applyTTLPolicy returns the resource, without its TTL if the policy of its type is "hold".
func (c *Cache) applyTTLPolicy(r *xds.Resource) *xds.Resource {
	if r.TTL() == 0 || !c.cfg.HoldTTL[r.Type] {
		return r
	}
	return r.WithLifetime(0, time.Time{})
}

// dropExpired removes the resources whose TTL has ended, and returns when the next one ends; the
// zero time for none.
func (c *Cache) dropExpired(now time.Time) (next time.Time) {
	changed := make(changesByType)
	for {
		k, next, ok := c.deadlines.Pop(now)
		if !ok {
			c.notifyAll(changed)
			return next
		}
		t := c.table(k.Type)
		t.expired++
		c.observe(k.Type, k.Name, ResourceExpired)
		if xds.Info(t.URL).RemoveExpired {
			c.remove(t, k.Name, changed.of(t))
		} else {
			c.drop(t, k.Name)
		}
		if c.pins.Of(k) != nil {
			c.unpin(t, k.Name, changed.of(t))
		}
	}
}
