package cache

import "github.com/holdfast-xds/holdfast/internal/xds"

// ChangeKind says what happened to a resource.
type ChangeKind string

// The kinds of changes.
const (
	ResourceAdded   ChangeKind = "added"
	ResourceChanged ChangeKind = "changed"
	ResourceRemoved ChangeKind = "removed"
	ResourceExpired ChangeKind = "expired"
	// ResourceACKed: a client accepted a content that none had accepted before.
	ResourceACKed ChangeKind = "acked"
	// ResourceWithheld: a source added, changed or removed it, which is not served because it is frozen.
	ResourceWithheld ChangeKind = "withheld"
)

// observe reports what happened to a resource.
func (c *Cache) observe(typeURL, name string, what ChangeKind) {
	if c.cfg.OnChange != nil {
		c.cfg.OnChange(typeURL, name, what)
	}
}

// observeServed reports what a freeze, or its end, made of what clients are served; nil for nothing.
func (c *Cache) observeServed(k xds.Key, was, is *xds.Resource) {
	switch {
	case sameVersion(was, is):
	case was == nil:
		c.observe(k.Type, k.Name, ResourceAdded)
	case is == nil:
		c.observe(k.Type, k.Name, ResourceRemoved)
	default:
		c.observe(k.Type, k.Name, ResourceChanged)
	}
}

// observePut reports the new content of a resource; old is the one before, nil for none.
func (c *Cache) observePut(r, old *xds.Resource, frozen bool) {
	what := ResourceChanged
	switch {
	case frozen:
		what = ResourceWithheld
	case old == nil:
		what = ResourceAdded
	}
	c.observe(r.Type, r.Name, what)
}
