package cache

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/cache/journal"
	"github.com/holdfast-xds/holdfast/agent/cache/restore"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Journal tells what should be on disk (package journal); Saved is that of one name, SavedVersion a former content, and Batch what
// changes.
type (
	Journal      = journal.Journal
	Batch        = journal.Batch
	Saved        = journal.Saved
	SavedVersion = archive.SavedVersion
)

// Fact is something to remember beside the resources. It has a value.
type (
	Fact     = state.Fact
	FactKind = state.FactKind
)

// The kinds of facts (package state).
const (
	SubscribedFact = state.SubscribedFact
	MaybeHeldFact  = state.MaybeHeldFact
	KnownFact      = state.KnownFact
	SuspectFact    = state.SuspectFact
	FallbackFact   = state.FallbackFact
	DeferredFact   = state.DeferredFact
	AccidentFact   = state.AccidentFact
	FreezeFact     = state.FreezeFact
	PinnedFact     = state.PinnedFact
	HistoryFact    = state.HistoryFact
	UnrecordedFact = state.UnrecordedFact
	RejectedFact   = state.RejectedFact
	BuildsFact     = state.BuildsFact
	EndedFact      = state.EndedFact
)

// Journal opens the journal; it is called once at most, before the first update. changed, which
// holds one value, gets one when Take has something to return. durable says whether the disk can be
// written: while it cannot, no ACK waits for it.
func (c *Cache) Journal(changed chan<- struct{}, durable bool) *Journal {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.journal = journal.New(&c.mu, c.stored(), changed, durable)
	c.state.SetDisk(c.journal)
	c.changer.Features.Add(c.journal)
	return c.journal
}

// stored is what should be on disk.
func (c *Cache) stored() journal.Contents {
	return journal.Contents{State: c.state, Archive: c.archive, Builds: c.builds, Storers: c.changer.Features.Storers, Facts: c.changer.Features.Facts}
}

// Saved returns what should be on disk, in the form of Restore's arguments.
func (c *Cache) Saved() (saved []Saved, facts map[Fact]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stored().Saved(), c.stored().AllFacts()
}

// Restore restores what was on disk, before or after the first answer of a source: what the sources
// have said so far takes precedence. A restored resource is not served before ServeRestored or the
// first answer of a source for its type. Restored subscriptions are leased until the first client
// connects, as by Prefetch. Resources whose TTL has ended are dropped, and none lives longer than
// its TTL from now, in case the clock was set back (protocol.md 6.2).
func (c *Cache) Restore(saved []Saved, facts map[Fact]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, r := state.NewEvent(), c.restorer()
	pinned := r.Facts(c.stored(), facts, e.Now)
	removed := r.Resources(saved, e.Now)
	for _, k := range r.Pins(saved, pinned, e.Now) {
		t := c.state.Table(k.Type)
		pin, _ := c.freezer.Current(k)
		e.Changes(t).Add(k.Name, pin, t.Resource(k.Name))
	}
	c.fallback.Restored()
	c.guard.Restored()
	c.nacks.Restored(e)
	c.builds.Restored()
	for typeURL, names := range removed {
		for _, name := range c.guard.Removals(guard.Removal{Type: typeURL, Names: names}) {
			c.changer.Remove(e, c.state.Table(typeURL), name, false)
		}
		c.guard.Tell(typeURL)
	}
	c.guard.EndIfConfirmed(e.Now)
	c.finish(e)
	c.unreferenced.UpdateAll(true) // only now all subscriptions are known
	if c.restoredServed {
		c.serveAllRestored()
	}
	c.state.Wake()
}

func (c *Cache) restorer() restore.Restorer {
	return restore.Restorer{State: c.state, Guard: c.guard, Freezer: c.freezer, Stable: c.stable, Builds: c.builds, Expiry: c.expiry, Journal: c.journal}
}

// RestoreUnstored says, before Restore, which names had a content that could not be stored. If they are frozen,
// that content is not known any more: they are served as the sources send them, because nothing would be
// worse.
func (c *Cache) RestoreUnstored(names []xds.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freezer.Unstored(names)
}

// ServeRestored serves the restored resources of all types: no source answered in time.
func (c *Cache) ServeRestored() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serveAllRestored()
}

// serveAllRestored serves the restored resources of all types, also those that are restored from now on.
func (c *Cache) serveAllRestored() {
	c.restoredServed = true
	for _, t := range c.state.Tables() {
		c.serveRestored(t)
	}
}

// Restored counts the restored resources that no source has confirmed.
func (c *Cache) Restored() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.state.Tables() {
		for _, e := range t.All() {
			if e.Restored() {
				n++
			}
		}
	}
	return n
}

// RestoreVersions restores the former contents that were on disk. It is called once at most, after Restore. asOf is when the disk
// was last written to; the zero time is now. Of a name with an UnrecordedFact it is not known what it was from the last of its
// records until then.
func (c *Cache) RestoreVersions(saved []SavedVersion, asOf time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if asOf.IsZero() {
		asOf = c.began
	}
	c.archive.RestoreVersions(saved, asOf)
}

// Unconfigured reports whether an Envoy that connects now would wait for a source: nothing is known of all
// listeners and clusters, or of those of both types that are subscribed to.
func (c *Cache) Unconfigured() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	none := true
	for _, typeURL := range []string{xds.ClusterType, xds.ListenerType} {
		t := c.state.Existing(typeURL)
		known := t.KnownOrRestored()
		if !known && t.Names.SubscribedOrLeased(xds.Wildcard) {
			return true
		}
		none = none && !known
	}
	return none
}

// RestoreSeed serves contents that another agent had of its sources, as if they had been restored from
// disk: no client has ACKed them, and what a source says takes precedence, before and after. Of the
// types in known, the wildcards were known there. Where the cache knows all resources of a type, or a
// resource, its own are kept. It returns how many contents it restored.
func (c *Cache) RestoreSeed(contents []*xds.Resource, known []string) (restored int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	complete := make(map[string]bool)
	for typeURL, t := range c.state.Tables() {
		complete[typeURL] = xds.FullState(typeURL) && t.KnownOrRestored()
	}
	names := c.restorer().Seed(contents, complete, time.Now())
	for _, k := range names {
		t := c.state.Table(k.Type)
		c.unreferenced.Update(t, k.Name, t.Entry(k.Name))
	}
	for _, typeURL := range known {
		if !complete[typeURL] && slices.Contains(xds.Types(), typeURL) {
			c.state.Table(typeURL).RestoreKnown()
			c.state.PersistFact(state.KnownFact, xds.Key{Type: typeURL})
		}
	}
	c.serveAllRestored()
	c.state.Wake()
	return len(names)
}
