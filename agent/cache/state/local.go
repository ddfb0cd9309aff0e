package state

import (
	"errors"
	"slices"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// errLocal is the error of a source's resource whose name the agent itself serves.
var errLocal = errors.New("the agent itself makes this resource: the control plane's resource of this name is not used")

// WithoutLocal returns an update of a source without the names that the agent itself makes.
func (s *State) WithoutLocal(t *Table, u xds.Update) xds.Update {
	if s.local == nil {
		return u
	}
	local := func(name string) bool { return s.IsLocal(t.Key(name)) }
	u.Resources = without(u.Resources, func(r *xds.Resource) bool {
		is := local(r.Name)
		if is {
			t.Errors.Set(r.Name, errLocal)
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
