package cache

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/cache/freeze"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Rollback says what to serve again.
type Rollback struct {
	// Freeze is what is frozen then: its RolledBackTo is the time whose contents are served. If it has
	// names, only these are rolled back.
	Freeze Freeze
	// Version, if it is set, is the version that the only name of Freeze gets, instead of the content
	// of a time.
	Version string
	// Partial accepts that something is missing: those names stay as they are. DryRun changes nothing.
	Partial, DryRun bool
	// Missing, if set, returns what the contents that would be served refer to and would not be there,
	// such as Secrets. It is called with the cache's lock held. served returns what would be served under
	// a name, nil for nothing; had reports whether clients once accepted something under it.
	Missing func(contents []*xds.Resource, served func(xds.Key) *xds.Resource, had func(xds.Key) bool) []MissingContent
}

// MissingContent is something that cannot be served as it was.
type MissingContent struct {
	xds.Key
	Why string
}

// Change is a name that a rollback changes.
type Change struct {
	xds.Key
	// From and To are versions; "" for none.
	From, To string
}

// RolledBack is the result of a rollback.
type RolledBack struct {
	// Changes are in push order. To is the time whose contents are served.
	Changes []Change
	To      time.Time
	Missing []MissingContent
}

// ErrMissing is the error of RollBack if something is missing.
var ErrMissing = fmt.Errorf("what was accepted then cannot be served completely")

// RollBack serves what clients had accepted at a time, and freezes it. What is frozen already stays
// frozen, but the reason is the new one. If something is missing and Partial is not set, it changes nothing
// and returns ErrMissing.
func (c *Cache) RollBack(in Rollback) (RolledBack, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := RolledBack{To: in.Freeze.RolledBackTo}
	targets := make(map[xds.Key]*xds.Resource) // nil: the name had no content
	var contents []*xds.Resource
	for _, k := range c.rollbackNames(in.Freeze) {
		r, why := c.target(k, in)
		if why != "" {
			out.Missing = append(out.Missing, MissingContent{k, why})
			continue
		}
		served := c.sent(c.table(k.Type), k.Name)
		if sameVersion(served, r) || r == nil && c.neverAccepted(k) {
			continue
		}
		targets[k] = r
		if r != nil {
			contents = append(contents, r)
		}
		out.Changes = append(out.Changes, Change{k, version(served), version(r)})
	}
	endpoints := c.endpointsOf(contents)
	for k, r := range endpoints {
		if r == nil {
			out.Missing = append(out.Missing, MissingContent{k, "its cluster comes back, and its endpoints are not known: the control plane is asked for them"})
			continue
		}
		out.Changes = append(out.Changes, Change{k, "", r.Version})
	}
	if in.Missing != nil {
		out.Missing = append(out.Missing, in.Missing(contents, func(k xds.Key) *xds.Resource {
			if r, ok := targets[k]; ok {
				return r
			}
			t := c.existing(k.Type)
			return cmp.Or(c.sent(t, t.Canonical(k.Name)), endpoints[k])
		}, c.had)...)
	}
	slices.SortFunc(out.Changes, func(a, b Change) int { return compareKeys(a.Key, b.Key) })
	slices.SortFunc(out.Missing, func(a, b MissingContent) int { return compareKeys(a.Key, b.Key) })
	switch {
	case len(out.Missing) > 0 && !in.Partial:
		return out, ErrMissing
	case in.DryRun:
		return out, nil
	}
	o := in.Freeze
	o.RolledBack = true
	if c.frozen != nil {
		o = c.frozen.With(o)
	}
	c.beginFreeze(&o)
	changed := make(changesByType)
	now := time.Now()
	for k, r := range endpoints {
		if r != nil {
			c.pinTo(k, r, now, changed)
		}
	}
	for k, r := range targets {
		c.pinTo(k, r, now, changed)
	}
	c.notifyAll(changed)
	c.requestAgain = now // the sources are told that what they sent is not served
	c.union.Wake()
	return out, nil
}

// had reports whether clients once accepted something under a name, as far as that is recorded.
func (c *Cache) had(k xds.Key) bool {
	return slices.ContainsFunc(c.archive.Records(k), func(r archive.Record) bool { return !r.Absent() })
}

// compareKeys orders names in push order.
func compareKeys(a, b xds.Key) int {
	return cmp.Or(xds.CompareTypes(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
}

func version(r *xds.Resource) string {
	if r == nil {
		return ""
	}
	return r.Version
}

// rollbackNames returns the names that a rollback may change, in push order.
func (c *Cache) rollbackNames(o Freeze) (names []xds.Key) {
	if len(o.Names) > 0 {
		return o.Names
	}
	all := make(map[xds.Key]struct{})
	for _, t := range c.tables {
		if !o.FrozenType(t.URL) {
			continue
		}
		for name := range t.All() {
			if !c.local(t.key(name)) {
				all[t.key(name)] = struct{}{}
			}
		}
	}
	for k := range c.pins.All() {
		all[k] = struct{}{}
	}
	for k := range c.archive.Names() {
		all[k] = struct{}{}
	}
	for k := range all {
		if o.Frozen(k) {
			names = append(names, k)
		}
	}
	slices.SortFunc(names, compareKeys)
	return names
}

// neverAccepted reports whether what is served under a name was never accepted, so that no earlier time
// is another one.
func (c *Cache) neverAccepted(k xds.Key) bool {
	h := c.history(c.table(k.Type), k.Name)
	return h != nil && h.Acked() == nil && len(c.archive.Records(k)) == 0
}

// target returns what a rollback serves under a name, nil for nothing; why says why that cannot be
// served.
func (c *Cache) target(k xds.Key, in Rollback) (r *xds.Resource, why string) {
	if in.Version != "" {
		r, why = c.ofVersion(k, in.Version)
	} else {
		r, why = c.ofTime(k, in.Freeze.RolledBackTo)
	}
	if why != "" || r == nil {
		return nil, why
	}
	if now := c.table(k.Type).Resource(k.Name); r.TTL() > 0 && now != nil {
		return r.WithLifetime(now.TTL(), now.Deadline()), ""
	}
	if expired(r, time.Now()) {
		return nil, "its TTL ended at " + r.Deadline().UTC().Format(time.RFC3339)
	}
	return r, ""
}

func (c *Cache) ofTime(k xds.Key, at time.Time) (r *xds.Resource, why string) {
	record, state := c.archive.At(k, at)
	began := c.archive.Began(k.Type)
	switch {
	case state == archive.Found:
		return record.Resource, ""
	case state == archive.Unknown && began.IsZero():
		return nil, "no client has accepted this type since the start"
	case state == archive.Unknown && at.Before(began):
		return nil, "its history begins at " + began.UTC().Format(time.RFC3339)
	case state == archive.Unknown && record.Version == archive.Lost:
		return nil, "what it was then is lost: the agent was killed before it had written it, and it had lasted for less than " + archive.Short.String()
	case state == archive.Unknown && k.Type == xds.SecretType:
		return nil, "former secrets are not kept"
	case state == archive.Unknown:
		return nil, "what it was then is not kept: the history has 10 versions of a name, those that lasted longest, and --history-bytes in all"
	}
	r, _ = c.at(k, at)
	return r, ""
}

func (c *Cache) ofVersion(k xds.Key, version string) (r *xds.Resource, why string) {
	for _, record := range slices.Backward(c.versions(k)) {
		if record.Version != version {
			continue
		}
		if record.Resource == nil {
			return nil, "version " + version + " is not kept: the history has 10 versions of a name, and --history-bytes in all"
		}
		return record.Resource, ""
	}
	return nil, "it has no version " + version + ": `holdfast history " + xds.Short(k.Type) + "/" + k.Name + "` shows those that are kept"
}

// endpointsOf returns the newest known endpoints of clusters that come back and whose endpoints are not
// served; nil for those that are not known.
func (c *Cache) endpointsOf(contents []*xds.Resource) map[xds.Key]*xds.Resource {
	out := make(map[xds.Key]*xds.Resource)
	t := c.table(xds.EndpointType)
	for _, r := range contents {
		if r.EDSName == "" || c.sent(t, r.EDSName) != nil {
			continue
		}
		k := t.key(r.EDSName)
		out[k] = nil
		for _, record := range c.archive.Records(k) {
			if record.Resource != nil {
				out[k] = record.Resource
			}
		}
	}
	return out
}

// pinTo serves a content under a name, nil for none, as if clients had accepted it.
func (c *Cache) pinTo(k xds.Key, r *xds.Resource, now time.Time, changed changesByType) {
	t := c.table(k.Type)
	ch := changed.of(t)
	var was, before *xds.Resource
	if h := c.history(t, k.Name); h != nil {
		was, before = h.Acked(), h.Sent()
	}
	if !sameVersion(was, r) {
		c.archive.Replaced(k, was, now)
	}
	pin := &freeze.Pin{NotFound: r == nil}
	if r != nil {
		pin.History = history.Restored(history.Saved{Content: r, Acked: true})
		c.trackDeadline(r)
	}
	c.setPin(k, pin)
	c.observeServed(k, before, r)
	ch.add(k.Name, before, r, t.Resource(k.Name))
}
