package cache

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"google.golang.org/protobuf/types/known/anypb"
)

// LocalSource is the source of the resources that the agent itself makes.
const LocalSource = state.LocalSource

// Prefetch leases names before a client subscribes to them. The time of the leases starts with the
// first watch.
func (c *Cache) Prefetch(typeURL string, names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.state.Table(typeURL)
	for _, name := range names {
		t.Names.Prefetch(name)
	}
	if c.state.Union.AnyOpen() {
		c.state.Union.Start()
		c.state.Wake()
	}
}

// Idle reports whether no watch is open and nothing is leased.
func (c *Cache) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.watches) == 0 && !c.state.Union.Leased()
}

// AnyMissing reports whether something is subscribed to of which nothing is known.
func (c *Cache) AnyMissing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, name := range c.state.Subscribed {
		if c.state.IsMissing(t, name) {
			return true
		}
	}
	return false
}

// Missing returns the names, of the first type in push order that has some, that are subscribed to,
// of which nothing is known, and for which no source has reported an error. none says that there
// are no subscriptions.
func (c *Cache) Missing() (typeURL string, names []string, none bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	none = true
	missing := make(map[string][]string)
	for t, name := range c.state.Subscribed {
		none = false
		if c.state.IsMissing(t, name) && t.Errors.Of(name) == nil {
			missing[t.URL] = append(missing[t.URL], name)
		}
	}
	if len(missing) == 0 {
		return "", nil, none
	}
	typeURL = slices.SortedFunc(maps.Keys(missing), xds.CompareTypes)[0]
	slices.Sort(missing[typeURL])
	return typeURL, missing[typeURL], none
}

// Holding reports whether a resource of a source is cached that is subscribed to.
func (c *Cache) Holding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.state.Tables() {
		all := t.Names.Has(xds.Wildcard)
		for name, e := range t.All() {
			if !e.IsLocal() && (all || t.Names.Covers(name, e.Current())) {
				return true
			}
		}
	}
	return false
}

// Cached returns the cached resources of a type that are subscribed to, with the version that the
// source issued. The version is "" for a content of another source (I2), for one that clients
// NACKed, since listing its version would mean that it was accepted, and for one whose removal is
// deferred, so that the source says whether it has the resource again.
func (c *Cache) Cached(source, typeURL string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.state.Existing(typeURL)
	all := t.Names.Has(xds.Wildcard)
	from := c.state.Sources.ID(source)
	if c.rejectedFrom[t.URL] == from && from != history.Unknown {
		c.rejectedFrom[t.URL] = history.Unknown // the source will send what is not listed here
		t.Errors.Delete("")
	}
	held := make(map[string]string)
	for name, e := range t.All() {
		if e.IsLocal() || !all && !t.Names.Covers(name, e.Current()) {
			continue
		}
		held[name] = ""
		if !c.guard.Withheld(t.Key(name)) && e.Source() == from && from != history.Unknown && !e.Rejected() {
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
	t := c.state.Existing(typeURL)
	from := c.state.Sources.ID(source)
	if from != history.Unknown && c.rejectedFrom[t.URL] == from {
		return []string{xds.Wildcard}
	}
	for _, name := range c.nacks.Rejected(typeURL) {
		if e := t.Entry(name); e != nil && e.Source() == from {
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
	t := c.state.Existing(typeURL)
	e := t.EntryOf(name)
	if e == nil {
		e = t.Entry(xds.CanonicalName(string(name)))
	}
	if e == nil {
		return nil
	}
	return e.Current().Body
}

// RequestAgain returns the time since which every source must have requested everything once more, on a
// new stream; the zero time if none must. Subscriptions.Changed gets a value when it changes.
func (c *Cache) RequestAgain() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.guard.AskAgain(); at.After(c.requestAgain) {
		return at
	}
	return c.requestAgain
}

// AgentReport returns what a control plane that understands it is told, at most a second old.
// Subscriptions.Changed gets a value when it changes.
func (c *Cache) AgentReport() xds.AgentReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.guard.Reported()
	if o := c.freezer.Order(); o != nil {
		r.Frozen = o.Report(c.state.Types())
	}
	return r
}

// Subscriptions is a source's view of what is subscribed to.
type Subscriptions struct {
	c    *Cache
	view *subscriptions.View // under c.mu
}

// Subscriptions opens a view of what sources are asked for. The caller must close it.
func (c *Cache) Subscriptions() *Subscriptions {
	return newSubscriptions(c, func(k xds.Key) bool { return !c.state.IsLocal(k) })
}

// newSubscriptions opens a view of the names for which of returns true. It takes the cache's lock.
func newSubscriptions(c *Cache, of func(xds.Key) bool) *Subscriptions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &Subscriptions{c, c.state.Union.View(of)}
}

// Changed holds a value whenever Changes has something new to return.
func (s *Subscriptions) Changed() <-chan struct{} { return s.view.Changed() }

// Changes returns what changed since the last call, in push order; the first call returns
// everything that is subscribed to.
func (s *Subscriptions) Changes() []xds.SubscriptionChange {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	changes := make(map[string]*xds.SubscriptionChange)
	known := xds.Types()
	s.view.Changes(func(k xds.Key, is, was bool) {
		if k.Name == xds.Wildcard && !is {
			s.c.state.Table(k.Type).SetIncomplete() // from now on sources do not report removals
		}
		if was == is {
			return
		}
		change := changes[k.Type]
		if change == nil {
			change = &xds.SubscriptionChange{Type: k.Type}
			changes[k.Type] = change
		}
		switch {
		case k.Name == xds.Wildcard:
		case is:
			change.Subscribe = append(change.Subscribe, k.Name)
		default:
			change.Unsubscribe = append(change.Unsubscribe, k.Name)
		}
		if !is {
			s.c.state.Table(k.Type).ForgetNotFound(k.Name)
			if !slices.Contains(known, k.Type) {
				s.c.state.Wake() // the type may be forgotten
			}
		}
	})
	out := make([]xds.SubscriptionChange, 0, len(changes))
	for _, url := range slices.SortedFunc(maps.Keys(changes), xds.CompareTypes) {
		change := changes[url]
		change.Wildcard = s.view.Reported(xds.Key{Type: url, Name: xds.Wildcard})
		change.Complete = s.c.state.Table(url).Knowledge() == xds.Complete
		slices.Sort(change.Subscribe)
		slices.Sort(change.Unsubscribe)
		out = append(out, *change)
	}
	return out
}

// Optional returns names that are subscribed to and may be left out of a request: gone are endpoints whose clusters have gone, which clients are
// about to drop, and leased what no client subscribes to now (design.md I11). Changed gets a value when one is gone no longer.
func (s *Subscriptions) Optional(typeURL string) (gone, leased []string) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	names := s.c.state.Existing(typeURL).Names
	return slices.Collect(names.Gone()), slices.Collect(names.Unused())
}

// Close closes the view.
func (s *Subscriptions) Close() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.view.Close(func(k xds.Key) { s.c.state.Table(k.Type).ForgetNotFound(k.Name) })
}

// LocalSubscriptions opens a view of the subscriptions to resources that the agent itself makes.
func (c *Cache) LocalSubscriptions() *Subscriptions { return newSubscriptions(c, c.state.IsLocal) }
