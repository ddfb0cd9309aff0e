package cache

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Fallback describes a fallback after crashes of Envoy.
type Fallback struct {
	Since, Until time.Time
	// Suspects are in push order.
	Suspects []xds.Key
}

// unstable returns what the client has, or may have, that is not stable. unanswered lists names, by
// type, that the client was sent and has not answered.
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
			if r := w.c.sent(t, name); r != nil && !t.isStable(r) && !w.c.fallback.HoldsBack(t.key(name)) {
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

// sent returns the content of a name that clients are sent; nil for none.
func (c *Cache) sent(t *table, name string) *xds.Resource {
	if h := c.history(t, name); h != nil {
		return h.Sent()
	}
	return nil
}

// isStable reports whether a content is the stable one of a name that has a resource.
func (t *table) isStable(r *xds.Resource) bool {
	stable := t.stable(r.Name)
	return stable != nil && t.Entry(r.Name) != nil && stable.Version == r.Version
}

// stable returns the stable content of a name, which may have been removed; nil for none.
func (t *table) stable(name string) *xds.Resource {
	if e := t.Entry(name); e != nil {
		return e.Stable()
	}
	return t.removed.Stable(name)
}

// Crashed records that an Envoy that was started at a time has crashed. That Envoy counts as having
// had what the clients had that disconnected since. After the third crash within ten minutes, what
// all three had and what is not stable is held back for Config.FallbackFor, and returned. It
// returns none if nothing is held back: the crashed Envoys had nothing in common, or there is
// nothing stable to serve in its place.
func (c *Cache) Crashed(started time.Time) []xds.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	suspects := make(map[xds.Key]string)
	for v := range c.fallback.Crashed(started) {
		t := c.table(v.Type)
		if c.local(v.Key) || c.fallback.HoldsBack(v.Key) {
			continue
		}
		// A name that has changed since is no suspect.
		switch r := c.sent(t, v.Name); {
		case r != nil && r.Version == v.Version && !t.isStable(r) && t.Entry(v.Name) != nil:
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
	return sorted(suspects)
}

// sorted returns the names of suspects in push order.
func sorted(suspects map[xds.Key]string) []xds.Key {
	return slices.SortedFunc(maps.Keys(suspects), func(a, b xds.Key) int {
		return cmp.Or(xds.CompareTypes(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
}

// addDependents adds the names that must be held back together with the suspects, so that what is
// served fits together. An Envoy that crashes at once has not asked for everything that changed
// together with the cause of the crash:
//   - resources that lead to a cluster that is held back without a stable version (a route that
//     changed at the same time), if they have a stable version themselves;
//   - removed clusters that a stable version leads to;
//   - the endpoints of these clusters.
func (c *Cache) addDependents(suspects map[xds.Key]string) {
	held := func(k xds.Key) bool {
		_, is := suspects[k]
		return is || c.fallback.HoldsBack(k)
	}
	clusters, endpoints := c.table(xds.ClusterType), c.table(xds.EndpointType)
	unavailable := func(cluster string) bool { // it is served as one that does not exist
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
			xds.LeadsToClusters(e.Current(), func(cluster string) { leads = leads || unavailable(cluster) })
			if leads {
				suspects[t.key(name)] = e.Current().Version
			}
		}
	}
	// addRemoved adds a removed name that the stable version of another resource refers to.
	addRemoved := func(t *table, name string) {
		if t.Entry(name) == nil && t.removed.Stable(name) != nil && !held(t.key(name)) {
			suspects[t.key(name)] = ""
		}
	}
	for k := range maps.Clone(suspects) {
		if r := c.table(k.Type).stable(k.Name); r != nil {
			xds.LeadsToClusters(r, func(cluster string) { addRemoved(clusters, cluster) })
		}
	}
	for k := range maps.Clone(suspects) {
		if r := c.table(k.Type).stable(k.Name); r != nil && r.EDSName != "" {
			addRemoved(endpoints, r.EDSName)
		}
	}
}

// anyStable reports whether a listener or a cluster was ever stable. Without one an Envoy is better
// served with the newest configuration.
func (c *Cache) anyStable() bool {
	for url, t := range c.tables {
		if !xds.Info(url).GuardRemovals {
			continue // only listeners and clusters are essential
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

// Fallback returns the present fallback; nil for none.
func (c *Cache) Fallback() *Fallback {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fallback.Active() {
		return nil
	}
	since, until := c.fallback.Times()
	return &Fallback{since, until, sorted(c.fallback.Suspects())}
}

// Resume ends the fallback, and reports whether there was one.
func (c *Cache) Resume() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fallback.Active() {
		return false
	}
	c.endFallback("holdfast resume")
	return true
}

// endFallback ends the fallback and serves the newest contents of the suspects.
func (c *Cache) endFallback(why string) {
	c.notifyNames(c.fallback.End())
	if c.cfg.OnFallbackEnd != nil {
		c.cfg.OnFallbackEnd(why)
	}
}

// expireFallback ends the fallback when its time is over, and returns when that will be; the zero
// time for never.
func (c *Cache) expireFallback(now time.Time) (next time.Time) {
	_, until := c.fallback.Times()
	if !c.fallback.Active() || until.After(now) {
		return until
	}
	c.endFallback("--fallback-for is over")
	return time.Time{}
}

// updateSuspect records that a source changed a name. A suspect that has changed is served as it is
// now, and the content that was suspected does not count as ACKed any more. It reports whether the
// name was such a suspect.
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
		c.endFallback("the control plane changed every resource that was held back")
	}
	return changed
}

// notifyNames notifies the watches of names that are served in another version from now on.
func (c *Cache) notifyNames(names map[xds.Key]string) {
	changed := make(changesByType)
	for k := range names {
		t := c.table(k.Type)
		changed.of(t).add(k.Name, t.Resource(k.Name))
	}
	c.notifyAll(changed)
}

// served returns what is served of an entry, which may be nothing.
func (c *Cache) served(t *table, e *entry) xds.Item {
	switch {
	case t.Hidden(e):
		return xds.Item{}
	case c.fallback.Active() && c.fallback.HoldsBack(t.key(e.Current().Name)):
		// Without a stable version the name is served as one that does not exist.
		return xds.Item{Current: e.Stable(), Acked: e.Stable(), Status: xds.Acked, NotFound: e.Stable() == nil}
	case c.pins.Count(t.URL) > 0:
		if pin := c.pins.Of(t.key(e.Current().Name)); pin != nil {
			return pin.Item()
		}
	}
	return e.Item()
}

// servedRemoved returns what is served of a removed name: its stable content if the removal is held
// back, and what is pinned.
func (c *Cache) servedRemoved(t *table, name string) xds.Item {
	if !c.fallback.HoldsBack(t.key(name)) {
		if pin := c.pinOf(t, name); pin != nil {
			return pin.Item()
		}
		return xds.Item{}
	}
	r := t.removed.Stable(name)
	return xds.Item{Current: r, Acked: r, Status: xds.Acked}
}
