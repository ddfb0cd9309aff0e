package cache

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// guardedFrom is how many resources must be held for a share of them to be too
// much to remove at once; to remove all is too much of any number (design.md I10).
const guardedFrom = 10

// removalGrace is how long, under a guard, the removal waits of what listeners and clusters
// refer to, and of clusters themselves: a control plane that removes everything may say it
// of endpoints and routes some messages before it says it of clusters and listeners.
const removalGrace = 5 * time.Second

// Guard holds removals back that look like an accident: a control plane that
// restarted with nothing, or lost sight of its source. The zero value holds none.
type Guard struct {
	// MaxRemovalPercent is the share of the listeners, or of the clusters, that one
	// answer may remove, in percent; 0 for no limit.
	MaxRemovalPercent int
	// ConfirmAfter is how long removals are held back before the sources are asked again,
	// on new streams; 0 for DefaultConfirmAfter. Only an answer to that confirms them.
	ConfirmAfter time.Duration
	// PruneAfter is how long what a source neither confirms nor removes is kept
	// after it told all it has; 0 for ever (protocol.md 7.7).
	PruneAfter time.Duration
}

// DefaultConfirmAfter is when sources are asked again for what they removed.
const DefaultConfirmAfter = 5 * time.Minute

// accident is a removal of too much. It is held back, together with every removal of any
// type that came since, or up to removalGrace before, so that all that the listeners and
// clusters refer to stays with them. It ends when each of these listeners and clusters is
// there again, or a source that was asked again lacks it.
type accident struct {
	// since is when the first removals were held back; also on disk.
	since time.Time
	// asking: the time has passed, and the sources are to be asked again.
	asking bool
	// confirmed counts the removals of listeners and clusters that were confirmed.
	confirmed int
}

// withhold makes a removal wait: until a time or, with the zero time, as long as there is
// an accident.
func (c *Cache) withhold(t *table, name string, until time.Time) {
	t.withheld[name] = until
	c.logFact(WithheldFact, t.url, name)
}

// unwithhold forgets a removal that waits, if there is one under that name.
func (c *Cache) unwithhold(t *table, name string) {
	if _, waits := t.withheld[name]; waits {
		delete(t.withheld, name)
		c.logFact(WithheldFact, t.url, name)
	}
}

// countWithheld counts the removals that are held back, without those that only wait for
// removalGrace.
func (t *table) countWithheld() (n int) {
	for _, until := range t.withheld {
		if until.IsZero() {
			n++
		}
	}
	return n
}

// removals returns the names that an update removes, after what it puts was taken in.
func (c *Cache) removals(t *table, u xds.Update) []string {
	if !u.Complete {
		return u.Removed
	}
	names := slices.Clone(u.Removed)
	from := c.sources.id(u.Source)
	for name, e := range t.entries {
		if e.update == t.updates || e.local() {
			continue
		}
		if e.Source() == from {
			e.restored = false // its source has told all it has
		}
		names = append(names, name)
	}
	return names
}

// replaced returns which of the names that go, or whose removal is held back, have lost their place
// to a resource that was put: a listener whose address another has now, a scope whose key. Beside
// that they cannot stay, since Envoy would refuse it, so that it is no accident that they go.
func (c *Cache) replaced(t *table, removed []string, put []*xds.Resource) map[string]struct{} {
	if len(removed)+len(t.withheld) == 0 {
		return nil
	}
	taken := make(map[string]struct{})
	for _, r := range put {
		for _, place := range xds.Places(r) {
			taken[place] = struct{}{}
		}
	}
	if len(taken) == 0 {
		return nil
	}
	replaced := make(map[string]struct{})
	look := func(name string) {
		if e := t.entries[name]; e != nil && slices.ContainsFunc(xds.Places(e.Current()), func(place string) bool { _, ok := taken[place]; return ok }) {
			replaced[name] = struct{}{}
		}
	}
	for _, name := range removed {
		look(name)
	}
	for name := range t.withheld {
		look(name)
	}
	return replaced
}

// guards reports whether removals may have to wait.
func (c *Cache) guards() bool { return c.cfg.Guard.MaxRemovalPercent > 0 || c.accident != nil }

// deferRemovals returns which removals of a type take effect now, and makes the others wait. A source
// said them that was asked at a time; others: in an answer that had other resources. held is
// how many resources of the type were held before.
func (c *Cache) deferRemovals(t *table, names []string, held int, asked time.Time, others bool) (now []string) {
	if !c.guards() {
		return names
	}
	confirms := xds.Info(t.url).GuardRemovals && c.requestedAgain(asked)
	var doubted []string
	for _, name := range names {
		until, waits := t.withheld[name]
		switch {
		case t.entries[name] == nil:
			now = append(now, name)
		case !waits || !until.IsZero():
			doubted = append(doubted, name)
		case confirms:
			c.accident.confirmed++
			now = append(now, name)
		}
	}
	switch {
	case len(doubted) == 0:
	case xds.Info(t.url).GuardRemovals && c.tooMany(t, doubted, held):
		c.holdBack(t, doubted, confirms)
	case c.accident != nil && !confirms:
		for _, name := range doubted {
			c.withhold(t, name, time.Time{})
		}
		c.reportWithheld(t)
	case c.removedAtOnce(t, others):
		now = append(now, doubted...)
	default:
		until := time.Now().Add(removalGrace)
		for _, name := range doubted {
			if _, waits := t.withheld[name]; !waits {
				c.withhold(t, name, until)
			}
		}
		c.wakeRun()
	}
	return now
}

// removedAtOnce reports whether removals that nothing speaks against do not wait for
// removalGrace. A listener or scope that waited could collide with the one that replaces
// it: it has the same address, or key.
func (c *Cache) removedAtOnce(t *table, others bool) bool {
	return c.cfg.Guard.MaxRemovalPercent == 0 || t.url == xds.ListenerType || t.url == xds.ScopedRouteType && others
}

// tooMany reports whether so many would go that it looks like an accident, together with
// what goes within removalGrace.
func (c *Cache) tooMany(t *table, names []string, held int) bool {
	if c.cfg.Guard.MaxRemovalPercent == 0 {
		return false
	}
	going := 0
	for _, until := range t.withheld {
		if until.IsZero() {
			held-- // held back already
		} else {
			going++
		}
	}
	for _, name := range names {
		if _, waits := t.withheld[name]; !waits {
			going++
		}
	}
	return held >= guardedFrom && going*100 > held*c.cfg.Guard.MaxRemovalPercent || going == held
}

// holdBack begins an accident, or adds to the one that there is. anew: these were removed in
// the answer that confirmed others, so that their time begins now.
func (c *Cache) holdBack(t *table, names []string, anew bool) {
	if c.accident == nil || anew {
		c.accident = &accident{since: time.Now()}
		c.logFact(AccidentFact, "", "")
	}
	for _, name := range names {
		c.withhold(t, name, time.Time{})
	}
	for _, other := range c.tables { // what came shortly before
		for name, until := range other.withheld {
			if !until.IsZero() {
				c.withhold(other, name, time.Time{})
			}
		}
	}
	c.reportWithheld(t)
	c.wakeRun()
}

// reportWithheld tells how much is held back of a guarded type, when that has at least
// doubled: a control plane may remove name by name.
func (c *Cache) reportWithheld(t *table) {
	n := t.countWithheld()
	if !xds.Info(t.url).GuardRemovals || n < 2*t.withheldReported {
		return
	}
	t.withheldReported = n
	if c.cfg.OnWithheld != nil {
		c.cfg.OnWithheld(t.url, n, len(t.entries))
	}
}

func (c *Cache) confirmAfter() time.Duration {
	switch {
	case c.cfg.Guard.MaxRemovalPercent == 0:
		return 0 // held back by an agent before, which had a guard
	case c.cfg.Guard.ConfirmAfter == 0:
		return DefaultConfirmAfter
	}
	return c.cfg.Guard.ConfirmAfter
}

// requestedAgain reports whether what a source was asked at a time was asked after the time
// for which removals are held back, so that its answer confirms them.
func (c *Cache) requestedAgain(asked time.Time) bool {
	return c.accident != nil && !asked.Before(c.accident.since.Add(c.confirmAfter()))
}

// AskAgain returns since when sources are to be asked anew, as if nothing had been asked
// before, what there is: the zero time for no need to. A source that has asked since is
// done. The channel of each Interest gets a value when it changes.
func (c *Cache) AskAgain() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.accident == nil || !c.accident.asking {
		return time.Time{}
	}
	return c.accident.since.Add(c.confirmAfter())
}

// awaitsAnswer reports whether a removal of a type is held back of which a source is to say
// whether it stands. Of what nobody wants any more none is asked.
func (c *Cache) awaitsAnswer(t *table) bool {
	all := c.wants(t, xds.Wildcard)
	for name, until := range t.withheld {
		if until.IsZero() && (!c.accident.asking || all || c.wantsResource(t, name, t.entries[name].Current())) {
			return true
		}
	}
	return false
}

// endAccident ends an accident of which no listener or cluster is held back any more. What
// else was removed meanwhile has removalGrace to be put again.
func (c *Cache) endAccident(now time.Time) {
	if c.accident == nil {
		return
	}
	for url, t := range c.tables {
		if xds.Info(url).GuardRemovals && c.awaitsAnswer(t) {
			return
		}
	}
	confirmed := c.accident.confirmed
	c.accident = nil
	c.logFact(AccidentFact, "", "")
	for _, t := range c.tables {
		t.withheldReported = 0
		for name, until := range t.withheld {
			if until.IsZero() {
				c.withhold(t, name, now.Add(removalGrace))
			}
		}
		for name, e := range t.entries {
			c.file(t, name, e) // what nobody wants may be evicted again
		}
	}
	c.wakeRun()
	if c.cfg.OnWithheldEnd != nil {
		c.cfg.OnWithheldEnd(confirmed)
	}
}

// runGuard removes what has waited for long enough, and what a source that told
// all it has did not confirm for long enough; and it makes the sources be asked again
// for what is held back. It returns when there is more to do; the zero time for never.
func (c *Cache) runGuard(now time.Time) (next time.Time) {
	if a := c.accident; a != nil && !a.asking {
		if at := a.since.Add(c.confirmAfter()); at.After(now) {
			next = at
		} else {
			a.asking = true
			c.union.Wake()
			if c.cfg.OnAskAgain != nil {
				c.cfg.OnAskAgain()
			}
		}
	}
	c.endAccident(now) // a TTL may have ended it, or nobody wants it any more
	for _, t := range c.tables {
		ch := newChanges(t)
		for name, at := range t.withheld {
			switch {
			case at.IsZero():
			case at.After(now):
				next = earliest(next, at)
			default:
				c.remove(t, name, ch)
			}
		}
		if at := t.pruneAt; !at.IsZero() {
			if at.After(now) {
				next = earliest(next, at)
			} else {
				t.pruneAt = time.Time{}
				told := c.sources.id(t.completeFrom)
				for name, e := range t.entries {
					if _, waits := t.withheld[name]; e.Source() != told && !e.keepUnsubscribed && !waits {
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

// confirmAbsent confirms the removals of a type that are held back, since a source that was asked
// again counts as having told all it has, and did not put them. A Delta source says so by being
// quiet only, and may have more to tell: they have removalGrace to be put again.
func (c *Cache) confirmAbsent(t *table, asked time.Time) {
	if !xds.Info(t.url).GuardRemovals || !c.requestedAgain(asked) {
		return
	}
	for name, until := range t.withheld {
		if until.IsZero() {
			c.accident.confirmed++
			c.withhold(t, name, time.Now().Add(removalGrace))
		}
	}
	c.wakeRun()
	c.endAccident(time.Now())
}

// restoreAccident takes in since when removals were held back when the process ended before
// this one: their time goes on.
func (c *Cache) restoreAccident(value string, now time.Time) {
	since, err := time.Parse(time.RFC3339, value)
	if err != nil || since.After(now) {
		since = now // the clock was set back
	}
	if c.accident == nil {
		c.accident = &accident{since: since}
	} else if since.Before(c.accident.since) {
		c.accident.since = since
	}
}

// restoredAccident forgets what was held back when the process ended before this one, and
// is not on disk. gone is what was on disk, and of which a source has said before it was
// read that it does not exist: that is held back like any other removal.
func (c *Cache) restoredAccident(gone map[*table][]string) {
	for _, t := range c.tables {
		for name, until := range t.withheld {
			if until.IsZero() && (c.accident == nil || t.entries[name] == nil) {
				c.unwithhold(t, name)
			}
		}
	}
	for t, names := range gone {
		ch := newChanges(t)
		for _, name := range c.deferRemovals(t, names, len(t.entries), time.Time{}, false) {
			c.remove(t, name, ch)
		}
		c.revision++
		c.notify(ch)
	}
	c.endAccident(time.Now())
}

// confirmed takes in that a source has told all it has of a type. What it issued
// itself and was asked about with its own version, it confirms by saying nothing of
// it; the rest is pruned in time, if at all.
func (c *Cache) confirmed(t *table, source string) {
	from := c.sources.id(source)
	for _, e := range t.entries {
		if e.Source() == from {
			e.restored = false
		}
	}
}

// noteComplete notes which source last told all it has of a type.
func (c *Cache) noteComplete(t *table, source string) {
	t.completeFrom = source
	if c.cfg.Guard.PruneAfter > 0 && xds.FullState(t.url) {
		t.pruneAt = time.Now().Add(c.cfg.Guard.PruneAfter)
		c.wakeRun()
	}
}

// Fresh ends that anything is withheld from who came when what is held was too old:
// a source has confirmed it since.
func (c *Cache) Fresh() {
	c.mu.Lock()
	defer c.mu.Unlock()
	withheld := false
	for w := range c.watches {
		withheld = withheld || w.tooStale
		w.tooStale = false
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
			ch.add(name, e.Current())
		}
		for name := range t.former {
			ch.add(name)
		}
		c.notify(ch)
	}
}
