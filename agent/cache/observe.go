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
)

// observe reports what happened to a resource.
func (c *Cache) observe(typeURL, name string, what ChangeKind) {
	if c.cfg.OnChange != nil {
		c.cfg.OnChange(typeURL, name, what)
	}
}

// observePut reports the new content of a resource; old is the one before, nil for none.
func (c *Cache) observePut(r, old *xds.Resource) {
	what := ResourceChanged
	if old == nil {
		what = ResourceAdded
	}
	c.observe(r.Type, r.Name, what)
}
