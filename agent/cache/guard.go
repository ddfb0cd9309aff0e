package cache

import (
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// guardedFrom is how many resources must be held for a share of them to be too
// much to remove at once; to remove all is too much of any number (design.md I10).
const guardedFrom = 10

// Guard holds removals back that look like an accident: a control plane that
// restarted with nothing, or lost sight of its source. The zero value holds none.
type Guard struct {
	// MaxRemovalPercent is the share of the listeners, or of the clusters, that one
	// answer may remove, in percent; 0 for no limit.
	MaxRemovalPercent int
	// ConfirmAfter is after which time removals that were held back count; 0 for
	// DefaultConfirmAfter. A later complete answer that still omits them confirms
	// them at once.
	ConfirmAfter time.Duration
	// PruneAfter is how long what a source neither confirms nor removes is kept
	// after it told all it has; 0 for ever (protocol.md 7.7).
	PruneAfter time.Duration
}

// DefaultConfirmAfter is when removals count that were held back.
const DefaultConfirmAfter = 5 * time.Minute

// guarded are the types whose removals are guarded.
func guarded(typeURL string) bool {
	return typeURL == xds.ListenerType || typeURL == xds.ClusterType
}

// doubtRemovals returns which of the removals of an update count, and holds the
// others back.
func (c *Cache) doubtRemovals(t *table, u Update) (names []string) {
	names = u.Remove
	if u.anew() {
		present := make(map[string]struct{}, len(u.Put))
		for _, r := range u.Put {
			present[r.Name] = struct{}{}
		}
		for name, e := range t.entries {
			if _, ok := present[name]; !ok && !e.local() {
				names = append(names, name)
			}
		}
	}
	for _, r := range u.News {
		delete(t.withheld, r.Name) // it is there again
	}
	if c.cfg.Guard.MaxRemovalPercent == 0 || !guarded(t.url) {
		return names
	}
	held, going := len(t.entries), 0
	for _, name := range names {
		if _, waits := t.withheld[name]; t.entries[name] != nil && !waits {
			going++
		}
	}
	tooMany := held >= guardedFrom && going*100 > held*c.cfg.Guard.MaxRemovalPercent || going > 0 && going == held
	if going == 0 || !tooMany {
		// What was held back before and is still missing is confirmed; so is, in
		// Delta, what is removed once more.
		for _, name := range names {
			delete(t.withheld, name)
		}
		return names
	}
	var counts []string
	until := time.Now().Add(c.confirmAfter())
	for _, name := range names {
		if t.entries[name] == nil {
			counts = append(counts, name)
			continue
		}
		if _, waits := t.withheld[name]; waits && u.Complete {
			delete(t.withheld, name)
			counts = append(counts, name)
			continue
		}
		t.withheld[name] = until
	}
	if c.cfg.OnWithheld != nil {
		c.cfg.OnWithheld(t.url, len(t.withheld), held)
	}
	c.poke()
	return counts
}

func (c *Cache) confirmAfter() time.Duration {
	if c.cfg.Guard.ConfirmAfter == 0 {
		return DefaultConfirmAfter
	}
	return c.cfg.Guard.ConfirmAfter
}

// confirm removes what was held back for long enough, and what a source that told
// all it has did not confirm for long enough. It returns when there is more to do;
// the zero time for never.
func (c *Cache) confirm(now time.Time) (next time.Time) {
	for _, t := range c.tables {
		ch := newChanges(t)
		for name, at := range t.withheld {
			if at.After(now) {
				next = earliest(next, at)
				continue
			}
			delete(t.withheld, name)
			c.remove(t, name, ch)
		}
		if at := t.pruneAt; !at.IsZero() {
			if at.After(now) {
				next = earliest(next, at)
			} else {
				t.pruneAt = time.Time{}
				told := c.sources.id(t.told)
				for name, e := range t.entries {
					if e.source != told && !e.unasked {
						c.remove(t, name, ch)
					}
				}
			}
		}
		if len(ch.names) > 0 {
			c.revision++
			c.notify(ch)
		}
	}
	return next
}

// confirmed takes in that a source has told all it has of a type. What it issued
// itself and was asked about with its own version, it confirms by saying nothing of
// it; the rest is pruned in time, if at all.
func (c *Cache) confirmed(t *table, source string) {
	from := c.sources.id(source)
	for _, e := range t.entries {
		if e.source == from {
			e.restored = false
		}
	}
}

// told notes which source last told all it has of a type.
func (c *Cache) told(t *table, source string) {
	t.told = source
	if c.cfg.Guard.PruneAfter > 0 && xds.FullState(t.url) {
		t.pruneAt = time.Now().Add(c.cfg.Guard.PruneAfter)
		c.poke()
	}
}

// Fresh ends that anything is withheld from who came when what is held was too old:
// a source has confirmed it since.
func (c *Cache) Fresh() {
	c.mu.Lock()
	defer c.mu.Unlock()
	withheld := false
	for w := range c.watches {
		withheld = withheld || w.withheld
		w.withheld = false
	}
	if withheld {
		c.turn()
	}
}

// turn makes every watch look at everything.
func (c *Cache) turn() {
	c.revision++
	for _, t := range c.tables {
		ch := newChanges(t)
		ch.all = true
		for name, e := range t.entries {
			ch.add(name, e.res)
		}
		for name := range t.former {
			ch.add(name)
		}
		c.notify(ch)
	}
}
