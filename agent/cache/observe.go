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
