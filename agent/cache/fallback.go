package cache

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	// crashLoop is how many Envoys must have crashed within crashWindow for what they all
	// had to be suspected.
	crashLoop   = 3
	crashWindow = 10 * time.Minute
	// DefaultFallbackFor is how long suspects are held back.
	DefaultFallbackFor = time.Hour
)

// fallback is the time in which suspects are held back: their stable versions are
// served in their place. Everything else goes on changing.
type fallback struct {
	since, until time.Time
	// suspects are the names that are held back, with the version that the control plane
	// said last; "" is an absence. It is another one than the suspected where that takes
	// the place of a rejected one.
	suspects map[key]string
}

// crash is what an Envoy had that crashed and that was not stable: accepted, or sent
// and not answered, or removed.
type crash struct {
	at  time.Time
	had map[versioned]struct{}
}

// versioned is one version of a resource; "" is its absence.
type versioned struct {
	key
	version string
}

// Fallback says what is held back.
type Fallback struct {
	Since, Until time.Time
	// Suspects are in alphabetical order, Kind is SuspectFact.
	Suspects []Fact
}

// holdsBack reports whether a name is a suspect.
func (c *Cache) holdsBack(t *table, name string) bool {
	if c.fallback == nil {
		return false
	}
	_, ok := c.fallback.suspects[key{t.url, name}]
	return ok
}

// unstable returns what the client has, or may have, that is not stable.
func (w *Watch) unstable(unanswered map[string][]string) map[versioned]struct{} {
	had := make(map[versioned]struct{})
	for url, wt := range w.types {
		if !xds.Info(url).FallBack {
			continue
		}
		t := w.c.tables[url]
		for _, p := range wt.probation {
			if e := t.entries[p.res.Name]; e == nil || !e.IsStable() || e.Acked().Version != p.res.Version {
				had[versioned{key{url, p.res.Name}, p.res.Version}] = struct{}{}
			}
		}
		for _, name := range unanswered[url] {
			if r := t.sent(name); r != nil && !t.isStable(r) && !w.c.holdsBack(t, name) {
				had[versioned{key{url, name}, r.Version}] = struct{}{}
			}
		}
		for name := range t.former {
			if !w.c.holdsBack(t, name) {
				had[versioned{key{url, name}, ""}] = struct{}{}
			}
		}
	}
	return had
}

// sent returns what clients are sent of a name, nil for nothing.
func (t *table) sent(name string) *xds.Resource {
	if e := t.entries[name]; e != nil {
		return e.Sent()
	}
	return nil
}

// isStable reports whether a content is the stable one of its name.
func (t *table) isStable(r *xds.Resource) bool {
	e := t.entries[r.Name]
	return e != nil && e.Stable() != nil && e.Stable().Version == r.Version
}

// maxDeparted bounds the clients that went of which it is remembered what they had.
const maxDeparted = 64

// went remembers what a client had that went, in case it was an Envoy that crashed.
func (c *Cache) went(had map[versioned]struct{}) {
	if len(had) == 0 {
		return
	}
	if len(c.departed) == maxDeparted {
		c.departed = slices.Delete(c.departed, 0, 1)
	}
	c.departed = append(c.departed, crash{time.Now(), had})
}

// Crashed takes in that an Envoy that was started at a time has crashed: it counts as
// having had what the clients had that went since. After the third crash within ten
// minutes what all three had and what is not stable is held back for Config.FallbackFor,
// and returned. None says that nothing is held back: there is nothing that all of them
// had, or nothing stable to serve in its place.
func (c *Cache) Crashed(started time.Time) (suspects []Fact) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	had := make(map[versioned]struct{})
	for _, gone := range c.departed {
		if gone.at.Before(started) {
			continue
		}
		for k := range gone.had {
			had[k] = struct{}{}
		}
	}
	c.departed = nil
	c.crashes = slices.DeleteFunc(c.crashes, func(old crash) bool { return now.Sub(old.at) > crashWindow })
	c.crashes = append(c.crashes, crash{now, had})
	if len(c.crashes) < crashLoop {
		return nil
	}
	versions := make(map[key]string)
	for of := range had {
		k := of.key
		if slices.ContainsFunc(c.crashes, func(other crash) bool { _, too := other.had[of]; return !too }) || c.cfg.Local != nil && c.local(k.typeURL, k.name) {
			continue
		}
		t := c.table(k.typeURL)
		if c.holdsBack(t, k.name) {
			continue
		}
		// What has changed since is not what they had.
		switch r := t.sent(k.name); {
		case r != nil && r.Version == of.version && !t.isStable(r):
			versions[k] = t.entries[k.name].Current().Version
		case t.entries[k.name] == nil && of.version == "" && t.former[k.name].res != nil:
			versions[k] = ""
		}
	}
	c.crashes = c.crashes[1:]
	if len(versions) == 0 || !c.somethingStable() {
		return nil
	}
	c.addDependents(versions)
	c.crashes = nil
	if c.fallback == nil {
		c.fallback = &fallback{since: now, suspects: make(map[key]string)}
		defer c.logFact(FallbackFact, "", "")
	}
	c.fallback.until = now.Add(c.cfg.FallbackFor)
	for k, version := range versions {
		c.fallback.suspects[k] = version
		c.logFact(SuspectFact, k.typeURL, k.name)
		suspects = append(suspects, Fact{SuspectFact, k.typeURL, k.name})
	}
	slices.SortFunc(suspects, compareFacts)
	c.serveAgain(versions)
	c.wakeRun()
	return suspects
}

// addDependents adds to suspects what has to go back with them, so that what is served fits
// together. An Envoy that crashes at once has not asked for everything that changed with what
// it crashes of:
//
//   - what leads to a cluster that is held back and has no stable version (a route that was
//     changed in the same breath), if it has a stable version itself;
//   - clusters that were removed and to which a stable version leads, and
//   - their endpoints.
func (c *Cache) addDependents(suspects map[key]string) {
	held := func(typeURL, name string) bool {
		_, is := suspects[key{typeURL, name}]
		return is || c.holdsBack(c.table(typeURL), name)
	}
	clusters, endpoints := c.table(xds.ClusterType), c.table(xds.EndpointType)
	withdrawn := func(cluster string) bool {
		e := clusters.entries[cluster]
		return e != nil && e.Stable() == nil && held(xds.ClusterType, cluster)
	}
	for _, typeURL := range xds.TypesWhere(func(info xds.TypeInfo) bool { return info.LeadsToClusters }) {
		for name, e := range c.table(typeURL).entries {
			if e.Stable() == nil || e.Stable().Version == e.Current().Version || held(typeURL, name) {
				continue
			}
			leads := false
			xds.LeadsToClusters(e.Current(), func(cluster string) { leads = leads || withdrawn(cluster) })
			if leads {
				suspects[key{typeURL, name}] = e.Current().Version
			}
		}
	}
	// absent adds what was removed and is needed by something that is served in its stable version.
	absent := func(t *table, name string) {
		if t.entries[name] == nil && t.former[name].res != nil && !held(t.url, name) {
			suspects[key{t.url, name}] = ""
		}
	}
	stable := func(k key) *xds.Resource {
		t := c.table(k.typeURL)
		if e := t.entries[k.name]; e != nil {
			return e.Stable()
		}
		return t.former[k.name].res
	}
	for k := range maps.Clone(suspects) {
		if r := stable(k); r != nil {
			xds.LeadsToClusters(r, func(cluster string) { absent(clusters, cluster) })
		}
	}
	for k := range maps.Clone(suspects) {
		if r := stable(k); r != nil && r.EDSName != "" {
			absent(endpoints, r.EDSName)
		}
	}
}

// somethingStable reports whether a client ever lived with a listener or a cluster:
// otherwise an Envoy is better served with what there is.
func (c *Cache) somethingStable() bool {
	for url, t := range c.tables {
		if !xds.Info(url).GuardRemovals {
			continue // only what Envoy cannot serve without
		}
		if len(t.former) > 0 {
			return true
		}
		for _, e := range t.entries {
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
	if c.fallback == nil {
		return nil
	}
	f := &Fallback{Since: c.fallback.since, Until: c.fallback.until}
	for k := range c.fallback.suspects {
		f.Suspects = append(f.Suspects, Fact{SuspectFact, k.typeURL, k.name})
	}
	slices.SortFunc(f.Suspects, compareFacts)
	return f
}

// Resume serves what is held back once more. It reports whether anything was.
func (c *Cache) Resume() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fallback == nil {
		return false
	}
	c.endFallback("it was resumed by hand")
	return true
}

// endFallback serves the suspects again.
func (c *Cache) endFallback(why string) {
	suspects := c.fallback.suspects
	c.fallback = nil
	c.logFact(FallbackFact, "", "")
	for k := range suspects {
		c.logFact(SuspectFact, k.typeURL, k.name)
	}
	c.serveAgain(suspects)
	if c.cfg.OnFallbackEnd != nil {
		c.cfg.OnFallbackEnd(why)
	}
}

// expireFallback ends the fallback when its time has come, and returns when that is;
// the zero time for never.
func (c *Cache) expireFallback(now time.Time) (next time.Time) {
	switch {
	case c.fallback == nil:
		return time.Time{}
	case c.fallback.until.After(now):
		return c.fallback.until
	}
	c.endFallback("its time is over")
	return time.Time{}
}

// changedSuspect takes in that the upstream changed what is held under a name. A suspect
// that has changed is served as it is now. The content that was suspected is not one to
// go back to. It reports whether that was so.
func (c *Cache) changedSuspect(t *table, name string) bool {
	if c.fallback == nil {
		return false
	}
	k := key{t.url, name}
	version, ok := c.fallback.suspects[k]
	if !ok {
		return false
	}
	e := t.entries[name]
	if e != nil && e.Current().Version == version || e == nil && version == "" {
		return false // the same again
	}
	if e != nil {
		e.GoBack(version)
	}
	delete(c.fallback.suspects, k)
	c.logFact(SuspectFact, k.typeURL, k.name)
	if len(c.fallback.suspects) == 0 {
		c.endFallback("the control plane has changed everything that was held back")
	}
	return true
}

// serveAgain makes every watch look again at some names.
func (c *Cache) serveAgain(names map[key]string) {
	c.revision++
	changed := make(map[string]*changes)
	for k := range names {
		ch := changed[k.typeURL]
		if ch == nil {
			ch = newChanges(c.table(k.typeURL))
			changed[k.typeURL] = ch
		}
		var r *xds.Resource
		if e := ch.table.entries[k.name]; e != nil {
			r = e.Current()
		}
		ch.add(k.name, r)
	}
	for _, ch := range changed {
		c.notify(ch)
	}
}

// served returns what of an entry is served, which may be nothing.
func (c *Cache) served(t *table, e *entry) xds.Item {
	switch {
	case e.restored && t.sealed:
		return xds.Item{}
	case c.holdsBack(t, e.Current().Name):
		// Without a stable version the name is served as one that does not exist.
		return xds.Item{Current: e.Stable(), Acked: e.Stable(), Status: xds.Acked, NotFound: e.Stable() == nil}
	}
	return e.Item()
}

// formerly returns what is served of a name that does not exist any more: its stable
// content, if its absence is suspected.
func (c *Cache) formerly(t *table, name string) xds.Item {
	if !c.holdsBack(t, name) {
		return xds.Item{}
	}
	f := t.former[name]
	return xds.Item{Current: f.res, Acked: f.res, Status: xds.Acked}
}
