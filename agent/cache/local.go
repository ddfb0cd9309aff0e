package cache

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// LocalSource is the source of what the agent makes itself.
const LocalSource = "local"

// errLocal is what is wrong with an upstream's resource of a local name.
var errLocal = errors.New("the agent makes it itself: what the control plane sends of this name is not used")

// local reports whether a resource is made by the agent itself. No upstream is asked
// for it, nor has a say in it; it is not written to disk, and served as it is: not
// sealed, withheld or replaced by what was before.
func (c *Cache) local(k xds.Key) bool {
	return c.cfg.Local != nil && c.cfg.Local(k.Type, k.Name)
}

// withoutLocal returns an update of a source without what is not its own to say.
func (c *Cache) withoutLocal(t *table, u xds.Update) xds.Update {
	if c.cfg.Local == nil {
		return u
	}
	mine := func(name string) bool { return c.local(t.key(name)) }
	some := slices.ContainsFunc(u.Resources, func(r *xds.Resource) bool { return mine(r.Name) }) || slices.ContainsFunc(u.Removed, mine) ||
		slices.ContainsFunc(u.Errors, func(e xds.ResourceError) bool { return mine(e.Name) }) ||
		slices.ContainsFunc(u.Heartbeats, func(r xds.Heartbeat) bool { return mine(r.Name) })
	if !some {
		return u
	}
	u.Resources = slices.DeleteFunc(slices.Clone(u.Resources), func(r *xds.Resource) bool {
		if !mine(r.Name) {
			return false
		}
		if len(t.errors) < maxErrors {
			t.errors[r.Name] = errLocal
		}
		return true
	})
	u.Heartbeats = slices.DeleteFunc(slices.Clone(u.Heartbeats), func(r xds.Heartbeat) bool { return mine(r.Name) })
	u.Removed = slices.DeleteFunc(slices.Clone(u.Removed), mine)
	u.Errors = slices.DeleteFunc(slices.Clone(u.Errors), func(e xds.ResourceError) bool { return mine(e.Name) })
	return u
}

// Publish takes in resources of one type that the agent makes itself, each name
// once, and serves them under names for which Config.Local holds. answer is as in
// Apply.
func (c *Cache) Publish(resources []*xds.Resource, answer func(nack error)) {
	if len(resources) == 0 {
		return
	}
	c.mu.Lock()
	t := c.table(resources[0].Type)
	c.revision++
	t.updated = time.Now()
	ch := newChanges(t)
	var nack error
	for _, r := range resources {
		if err := c.put(t, contents.Origin{Source: history.Local, KeepUnsubscribed: true}, r, ch); err != nil && nack == nil {
			nack = err
		}
	}
	due := c.awaitAnswer(t, answer, c.notify(ch), nack)
	c.mu.Unlock()
	run(due)
}

// Withdraw forgets what was published and nobody wants. Nobody is told: to clients
// it is as if it had never been asked for.
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

// LocalSubscriptions opens a view of what is wanted of what the agent makes itself.
func (c *Cache) LocalSubscriptions() *Subscriptions { return c.newSubscriptions(c.local) }
