package cache

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// LocalSource is the source of the resources that the agent itself makes.
const LocalSource = "local"

// sourceID identifies a source in two bytes: each entry has two.
type sourceID = history.Source

// sources has all sources so far, by ID.
type sources struct {
	names []string
	ids   map[string]sourceID
}

func newSources() sources {
	return sources{[]string{"", LocalSource}, map[string]sourceID{"": history.Unknown, LocalSource: history.Local}}
}

// id returns the ID of a source. There are few sources; after 65,535 they are unknown.
func (s *sources) id(name string) sourceID {
	id, ok := s.ids[name]
	if !ok && len(s.names) <= math.MaxUint16 {
		id = sourceID(len(s.names))
		s.names, s.ids[name] = append(s.names, name), id
	}
	return id
}

// name returns the name of a source.
func (s *sources) name(id sourceID) string { return s.names[id] }

// errLocal is the error of a source's resource whose name the agent itself serves.
var errLocal = errors.New("the agent itself makes this resource: the control plane's resource of this name is not used")

// local reports whether the agent itself makes a resource. No source is asked for such a resource
// or can change it. It is not written to disk, and it is always served: it is never hidden, held
// back or replaced by an earlier content.
func (c *Cache) local(k xds.Key) bool {
	return c.cfg.Local != nil && c.cfg.Local(k.Type, k.Name)
}

// withoutLocal returns an update of a source without the names that the agent itself makes.
func (c *Cache) withoutLocal(t *table, u xds.Update) xds.Update {
	if c.cfg.Local == nil {
		return u
	}
	local := func(name string) bool { return c.local(t.key(name)) }
	u.Resources = without(u.Resources, func(r *xds.Resource) bool {
		is := local(r.Name)
		if is && len(t.errors) < maxErrors {
			t.setError(r.Name, errLocal)
		}
		return is
	})
	u.Heartbeats = without(u.Heartbeats, func(h xds.Heartbeat) bool { return local(h.Name) })
	u.Removed = without(u.Removed, local)
	u.Errors = without(u.Errors, func(e xds.ResourceError) bool { return local(e.Name) })
	return u
}

// without returns a list without the elements for which drop returns true. It does not change the
// list, and copies it only if there are such elements.
func without[E any](list []E, drop func(E) bool) []E {
	if !slices.ContainsFunc(list, drop) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), drop)
}

// Publish applies resources of one type that the agent itself makes, each name once, and serves
// them under the names for which Config.Local returns true. answer is as in Apply.
func (c *Cache) Publish(resources []*xds.Resource, answer func(nack error)) {
	if len(resources) == 0 {
		return
	}
	c.mu.Lock()
	t := c.table(resources[0].Type)
	c.revision++
	t.updated = time.Now()
	ch := &changes{table: t}
	var nack error
	for _, r := range resources {
		nack = cmp.Or(nack, c.put(t, contents.Origin{Source: history.Local, KeepUnsubscribed: true}, r, ch))
	}
	due := c.awaitAnswer(t, answer, c.notify(ch), nack)
	c.mu.Unlock()
	run(due)
}

// Withdraw drops published resources without a subscription. Clients are not notified: for them the
// resources become unknown, not removed.
func (c *Cache) Withdraw(typeURL string, names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.table(typeURL)
	for _, name := range names {
		if c.local(t.key(name)) && !t.names.Has(name) {
			c.drop(t, name)
		}
	}
}

// LocalSubscriptions opens a view of the subscriptions to resources that the agent itself makes.
func (c *Cache) LocalSubscriptions() *Subscriptions { return c.newSubscriptions(c.local) }
