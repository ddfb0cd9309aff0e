package cache

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Saved returns what should be on disk, in the form of Restore's arguments.
func (c *Cache) Saved() (saved []Saved, facts map[Fact]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, name := range c.names {
		if s, _ := c.saved(t, name); !s.empty() {
			saved = append(saved, s)
		}
	}
	return saved, c.allFacts()
}

// Unconfigured reports whether an Envoy that connects now would wait for a source: nothing is known of all
// listeners and clusters, or of those of both types that are subscribed to.
func (c *Cache) Unconfigured() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	none := true
	for _, typeURL := range []string{xds.ClusterType, xds.ListenerType} {
		t := c.existing(typeURL)
		known := t.KnownOrRestored()
		if !known && t.names.SubscribedOrLeased(xds.Wildcard) {
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
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	complete := make(map[string]bool)
	for typeURL, t := range c.tables {
		complete[typeURL] = xds.FullState(typeURL) && t.KnownOrRestored()
	}
	for _, r := range contents {
		t := c.table(r.Type)
		if complete[r.Type] || t.Entry(r.Name) != nil || t.WasRemoved(r.Name) || c.local(t.key(r.Name)) || expired(r, now) {
			continue
		}
		h := c.restoredHistory(Saved{Type: r.Type, Name: r.Name, Content: r}, now)
		e := t.Restore(h, nil)
		c.trackDeadline(h.Current())
		c.persist(t, r.Name)
		c.updateLRU(t, r.Name, e)
		restored++
	}
	for _, typeURL := range known {
		if !complete[typeURL] && slices.Contains(xds.Types(), typeURL) {
			c.table(typeURL).RestoreKnown()
			c.persistFact(KnownFact, xds.Key{Type: typeURL})
		}
	}
	c.restoredServed = true
	for _, t := range c.tables {
		c.serveRestored(t)
	}
	c.wakeRun()
	return restored
}
