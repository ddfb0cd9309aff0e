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
// What a cache does beside keeping what the sources sent is done by features: each is one object in a package of its own, which hears of
// everything that happens to a name, and says what is served, stored and due. They are in one list (New). Every entry point
// does the same: the contents take in what happened, each feature hears of it, and what is served and accepted is compared with what
// was before (package change): the difference is told to the watches, the archive, the journal and whoever observes.
//
// The invariants are those of design.md section 3. The package knows neither SotW nor Delta, does
// no I/O and never decodes a body. All exported methods may be called concurrently; none blocks for
// longer than its computation takes. Unexported methods are called with the cache's lock held,
// unless they say otherwise.
package cache

import (
	"cmp"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/cache/builds"
	"github.com/holdfast-xds/holdfast/agent/cache/change"
	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/eviction"
	"github.com/holdfast-xds/holdfast/agent/cache/expiry"
	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/agent/cache/freeze"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/journal"
	"github.com/holdfast-xds/holdfast/agent/cache/nacks"
	"github.com/holdfast-xds/holdfast/agent/cache/pending"
	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/agent/cache/uncertain"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// DefaultLinger is how long the subscriptions of a closed watch stay leased (design.md I11).
const DefaultLinger = 30 * time.Minute

// DefaultMaxUnreferenced bounds how many resources without a subscription are cached.
const DefaultMaxUnreferenced = 4096

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
	// Ending, if set, reports whether the agent ends, so that clients go because of it.
	Ending func() bool
	// References, if set, returns what a resource refers to: what clients NACKed is offered again when that is accepted.
	References func(*xds.Resource) []xds.Key
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

	mu       sync.Mutex
	revision uint64
	state    *state.State
	event    state.Event // of Apply and Ack: they happen often
	stale    []string    // of Apply: names in the update whose resources go stale
	watches  map[*Watch]struct{}
	pending  pending.Types[*Watch]
	// rejectedFrom is, by type URL, the source of an update that went beyond the limits, until the source is asked
	// again: a Delta server does not send it again by itself.
	rejectedFrom map[string]history.Source
	// connected is since when an upstream answers, so that leases expire; the zero time if none
	// does.
	connected time.Time
	// requestAgain is since when the sources must have requested everything once more because a freeze
	// ended; the zero time for never.
	requestAgain   time.Time
	restoredServed bool // resources that are restored from now on are served at once

	changer      *change.Changer
	uncertain    *uncertain.Names
	guard        *guard.Feature
	fallback     *fallback.Feature
	freezer      *freeze.Freezer
	stable       *probation.Stable
	expiry       *expiry.Feature
	nacks        *nacks.Nacks
	builds       *builds.Builds
	unreferenced *eviction.Unreferenced
	archive      *archive.Feature
	journal      *journal.Journal // nil for none
}

type entry = contents.Entry

// New returns an empty cache, in which everything is unknown.
func New(cfg Config) *Cache {
	cfg.Linger = cmp.Or(cfg.Linger, DefaultLinger)
	cfg.MaxUnreferenced = cmp.Or(cfg.MaxUnreferenced, DefaultMaxUnreferenced)
	cfg.MaxResources = cmp.Or(cfg.MaxResources, DefaultMaxResources)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, DefaultMaxBytes)
	c := &Cache{
		cfg:          cfg,
		wake:         make(chan struct{}, 1),
		began:        time.Now(),
		watches:      make(map[*Watch]struct{}),
		pending:      make(pending.Types[*Watch]),
		rejectedFrom: make(map[string]history.Source),
	}
	union := subscriptions.New(cfg.Linger, func(k xds.Key) { c.subscriptionChanged(c.state.Table(k.Type), k.Name) })
	c.state = state.New(union, cfg.Local, func() { wake.Signal(c.wake) })
	c.uncertain = uncertain.New(cfg.Linger, func(k xds.Key) { c.state.PersistFact(state.MaybeHeldFact, k) })
	c.freezer = freeze.New(c.state)
	c.fallback = fallback.NewFeature(fallback.FeatureConfig{
		State: c.state, Enabled: cfg.FallbackEnabled, For: cfg.FallbackFor, Sent: c.freezer.Sent, OnEnd: cfg.OnFallbackEnd,
	})
	c.stable = probation.New(c.state, cfg.FallbackEnabled, c.fallback.HoldsBack)
	c.fallback.SetStable(c.stable)
	c.guard = guard.NewFeature(cfg.Guard, guard.FeatureConfig{
		State: c.state, OnHeldBack: cfg.OnHeldBack, OnAskAgain: cfg.OnAskAgain, OnHeldBackEnd: cfg.OnHeldBackEnd,
		OnEnd: func() {
			if !c.guard.Holding() {
				c.unreferenced.UpdateAll(false) // what is not referenced may be evicted again
			}
		},
	})
	c.expiry = expiry.NewFeature(c.state, cfg.HoldTTL, func(k xds.Key) *xds.Resource {
		if r := c.state.Existing(k.Type).Resource(k.Name); r != nil {
			return r
		}
		r, _ := c.freezer.Current(k)
		return r
	})
	c.builds = builds.New(c.state)
	c.nacks = nacks.New(c.state, nacks.Config{
		History: c.freezer.History, References: cfg.References,
		Serves: func(k xds.Key) bool { return c.freezer.Order() == nil && !c.fallback.HoldsBack(k) },
	})
	c.unreferenced = eviction.New(c.state, cfg.MaxUnreferenced, func() bool { return c.guard.Holding() || c.freezer.Order() != nil }, func(k xds.Key) {
		c.changer.Forget(state.NewEvent(), c.state.Table(k.Type), k.Name, false)
	})
	c.archive = archive.NewFeature(c.state, cfg.HistoryBytes, func(k xds.Key) { c.journal.Archived(k) })
	c.changer = &change.Changer{
		State: c.state, Freezer: c.freezer, Archive: c.archive, Uncertain: c.uncertain, OnContent: cfg.OnContent, OnChange: cfg.OnChange,
	}
	c.changer.Features.Add(c.guard, c.fallback, c.freezer, c.stable, c.expiry, c.nacks, c.builds, c.unreferenced, c.archive, c.uncertain, c.state)
	return c
}

// TakeLocks takes and releases the lock, for a watchdog.
func (c *Cache) TakeLocks() {
	c.mu.Lock()
	defer c.mu.Unlock()
}
