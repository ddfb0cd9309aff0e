package cache

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Fallback says what is held back after crashes of Envoy.
type Fallback struct {
	Since, Until time.Time
	// Suspects are in alphabetical order, Kind is SuspectFact.
	Suspects []Fact
}

// unstable returns what the client has, or may have, that is not stable. unanswered lists names, by
// type, that it was sent and has not answered.
func (w *Watch) unstable(unanswered map[string][]string) fallback.Set {
	had := make(fallback.Set)
	for url, wt := range w.types {
		if !xds.Info(url).FallBack {
			continue
		}
		t := w.c.tables[url]
		for r := range wt.probation.All() {
			if e := t.Entry(r.Name); e == nil || !e.IsStable() || e.Acked().Version != r.Version {
				had[fallback.Version{Key: t.key(r.Name), Version: r.Version}] = struct{}{}
			}
		}
		for _, name := range unanswered[url] {
			if r := t.sent(name); r != nil && !t.isStable(r) && !w.c.fallback.HoldsBack(t.key(name)) {
				had[fallback.Version{Key: t.key(name), Version: r.Version}] = struct{}{}
			}
		}
		for name := range t.removed {
			if !w.c.fallback.HoldsBack(t.key(name)) {
				had[fallback.Version{Key: t.key(name)}] = struct{}{}
			}
		}
	}
	return had
}

// sent returns what clients are sent of a name, nil for nothing.
func (t *table) sent(name string) *xds.Resource {
	if e := t.Entry(name); e != nil {
		return e.Sent()
	}
	return nil
}

// isStable reports whether a content is the stable one of its name.
func (t *table) isStable(r *xds.Resource) bool {
	stable := t.stable(r.Name)
	return stable != nil && t.Entry(r.Name) != nil && stable.Version == r.Version
}

// stable returns the stable content of a name, which may not exist any more; nil for none.
func (t *table) stable(name string) *xds.Resource {
	if e := t.Entry(name); e != nil {
		return e.Stable()
	}
	return t.removed.Stable(name)
}

// Crashed takes in that an Envoy that was started at a time has crashed: it counts as
// having had what the clients had that went since. After the third crash within ten
// minutes what all three had and what is not stable is held back for Config.FallbackFor,
// and returned. None says that nothing is held back: there is nothing that all of them
// had, or nothing stable to serve in its place.
func (c *Cache) Crashed(started time.Time) []Fact {
	c.mu.Lock()
	defer c.mu.Unlock()
	suspects := make(map[xds.Key]string)
	for v := range c.fallback.Crashed(started) {
		t := c.table(v.Type)
		if c.local(v.Key) || c.fallback.HoldsBack(v.Key) {
			continue
		}
		// What has changed since is not what they had.
		switch r := t.sent(v.Name); {
		case r != nil && r.Version == v.Version && !t.isStable(r):
			suspects[v.Key] = t.Resource(v.Name).Version
		case t.Entry(v.Name) == nil && v.Version == "" && t.removed.Stable(v.Name) != nil:
			suspects[v.Key] = ""
		}
	}
	if len(suspects) == 0 || !c.anyStable() {
		return nil
	}
	c.addDependents(suspects)
	c.fallback.Begin(suspects)
	c.notifyNames(suspects)
	c.wakeRun()
	return suspectFacts(suspects)
}

func suspectFacts(suspects map[xds.Key]string) (facts []Fact) {
	for k := range suspects {
		facts = append(facts, Fact{SuspectFact, k.Type, k.Name})
	}
	slices.SortFunc(facts, compareFacts)
	return facts
}

// addDependents adds to suspects what has to go back with them, so that what is served fits
// together. An Envoy that crashes at once has not asked for everything that changed with what
// it crashes of:
//
//   - what leads to a cluster that is held back and has no stable version (a route that was
//     changed in the same breath), if it has a stable version itself;
//   - clusters that were removed and to which a stable version leads, and
//   - their endpoints.
func (c *Cache) addDependents(suspects map[xds.Key]string) {
	held := func(k xds.Key) bool {
		_, is := suspects[k]
		return is || c.fallback.HoldsBack(k)
	}
	clusters, endpoints := c.table(xds.ClusterType), c.table(xds.EndpointType)
	withdrawn := func(cluster string) bool {
		e := clusters.Entry(cluster)
		return e != nil && e.Stable() == nil && held(clusters.key(cluster))
	}
	for _, typeURL := range xds.TypesWhere(func(info xds.TypeInfo) bool { return info.LeadsToClusters }) {
		t := c.table(typeURL)
		for name, e := range t.All() {
			if e.Stable() == nil || e.Stable().Version == e.Current().Version || held(t.key(name)) {
				continue
			}
			leads := false
			xds.LeadsToClusters(e.Current(), func(cluster string) { leads = leads || withdrawn(cluster) })
			if leads {
				suspects[t.key(name)] = e.Current().Version
			}
		}
	}
	// absent adds what was removed and is needed by something that is served in its stable version.
	absent := func(t *table, name string) {
		if t.Entry(name) == nil && t.removed.Stable(name) != nil && !held(t.key(name)) {
			suspects[t.key(name)] = ""
		}
	}
	for k := range maps.Clone(suspects) {
		if r := c.table(k.Type).stable(k.Name); r != nil {
			xds.LeadsToClusters(r, func(cluster string) { absent(clusters, cluster) })
		}
	}
	for k := range maps.Clone(suspects) {
		if r := c.table(k.Type).stable(k.Name); r != nil && r.EDSName != "" {
			absent(endpoints, r.EDSName)
		}
	}
}

// anyStable reports whether a client ever lived with a listener or a cluster:
// otherwise an Envoy is better served with what there is.
func (c *Cache) anyStable() bool {
	for url, t := range c.tables {
		if !xds.Info(url).GuardRemovals {
			continue // only what Envoy cannot serve without
		}
		if len(t.removed) > 0 {
			return true
		}
		for _, e := range t.All() {
			if e.Stable() != nil {
				return true
			}
		}
	}
	return false
}

// Fallback returns what is held back; nil for nothing.
func (c *Cache) Fallback() *Fallback {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fallback.Active() {
		return nil
	}
	since, until := c.fallback.Times()
	return &Fallback{since, until, suspectFacts(c.fallback.Suspects())}
}

// Resume serves what is held back once more. It reports whether anything was.
func (c *Cache) Resume() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fallback.Active() {
		return false
	}
	c.endFallback("it was resumed by hand")
	return true
}

// endFallback serves the suspects again.
func (c *Cache) endFallback(why string) {
	c.notifyNames(c.fallback.End())
	if c.cfg.OnFallbackEnd != nil {
		c.cfg.OnFallbackEnd(why)
	}
}

// expireFallback ends the fallback when its time has come, and returns when that is;
// the zero time for never.
func (c *Cache) expireFallback(now time.Time) (next time.Time) {
	_, until := c.fallback.Times()
	if !c.fallback.Active() || until.After(now) {
		return until
	}
	c.endFallback("its time is over")
	return time.Time{}
}

// updateSuspect takes in that the upstream changed what is held under a name. A suspect
// that has changed is served as it is now. The content that was suspected is not one to
// go back to. It reports whether that was so.
func (c *Cache) updateSuspect(t *table, name string) bool {
	if !c.fallback.Active() {
		return false
	}
	version := ""
	e := t.Entry(name)
	if e != nil {
		version = e.Current().Version
	}
	suspected, changed, last := c.fallback.Changed(t.key(name), version)
	if changed && e != nil {
		e.RevertAcked(suspected)
	}
	if last {
		c.endFallback("the control plane has changed everything that was held back")
	}
	return changed
}

// notifyNames makes every watch look again at some names.
func (c *Cache) notifyNames(names map[xds.Key]string) {
	c.revision++
	changed := make(map[string]*changes)
	for k := range names {
		ch := changed[k.Type]
		if ch == nil {
			ch = newChanges(c.table(k.Type))
			changed[k.Type] = ch
		}
		ch.add(k.Name, ch.table.Resource(k.Name))
	}
	for _, ch := range changed {
		c.notify(ch)
	}
}

// served returns what of an entry is served, which may be nothing.
func (c *Cache) served(t *table, e *entry) xds.Item {
	switch {
	case t.Hidden(e):
		return xds.Item{}
	case c.fallback.Active() && c.fallback.HoldsBack(t.key(e.Current().Name)):
		// Without a stable version the name is served as one that does not exist.
		return xds.Item{Current: e.Stable(), Acked: e.Stable(), Status: xds.Acked, NotFound: e.Stable() == nil}
	}
	return e.Item()
}

// servedRemoved returns what is served of a name that does not exist any more: its stable
// content, if its absence is suspected.
func (c *Cache) servedRemoved(t *table, name string) xds.Item {
	if !c.fallback.HoldsBack(t.key(name)) {
		return xds.Item{}
	}
	r := t.removed.Stable(name)
	return xds.Item{Current: r, Acked: r, Status: xds.Acked}
}
