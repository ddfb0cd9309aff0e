package guard

import (
	"iter"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// notEmpty is the number of resources that are not empty.
func notEmpty(t *state.Table) (n int) {
	for _, e := range t.All() {
		if !xds.Empty(e.Current()) {
			n++
		}
	}
	return n
}

// subscribed reports whether a source is asked for a name.
func (g *Guard) subscribed(k xds.Key) bool {
	t := g.tables(k.Type)
	return t.Names.Has(xds.Wildcard) || t.Names.Covers(k.Name, t.Resource(k.Name))
}

// Decide decides what becomes of the resources of an answer, before any of them is put.
func (g *Guard) Decide(u xds.Update) (d Decision) {
	if !g.Active() {
		return d
	}
	t := g.tables(u.Type)
	g.brought(u.Type, g.countNew(t, u))
	if u.Type != xds.EndpointType && !xds.Info(u.Type).LeadsToClusters {
		return d
	}
	list := g.changedBy(t, u)
	if len(list) == 0 {
		return d
	}
	return g.filterChanged(changed{
		typeURL: u.Type, resources: list, former: t.Resource, requestedAt: u.RequestedAt, belongs: g.belongs(), left: g.left(t),
	})
}

// countNew returns how many of the resources of an answer are new and may be in the place of others that go: of a type of which
// everything was known.
func (g *Guard) countNew(t *state.Table, u xds.Update) (n int) {
	if !xds.Info(u.Type).GuardRemovals || t.Knowledge() != xds.Complete {
		return 0
	}
	builtIn := xds.BuiltIn(u.Type)
	for _, r := range u.Resources {
		if t.Entry(r.Name) == nil && !(g.namesOnDemand(u.Type) && t.Names.Has(r.Name)) && !slices.Contains(builtIn, r.Name) {
			n++
		}
	}
	return n
}

// changedBy returns the resources of an answer that have another content than what is cached; of endpoints those that are emptied,
// but for members of aggregate clusters.
func (g *Guard) changedBy(t *state.Table, u xds.Update) (list []*xds.Resource) {
	endpoints := u.Type == xds.EndpointType
	for _, r := range u.Resources {
		if endpoints && !xds.Empty(r) {
			continue
		}
		if had := t.Resource(r.Name); had != nil && had.Version != r.Version && !(endpoints && xds.Empty(had)) {
			list = append(list, r)
		}
	}
	if endpoints && len(list) > 0 {
		members := g.endpointsOfMembers()
		list = slices.DeleteFunc(list, func(r *xds.Resource) bool { return members[r.Name] })
	}
	return list
}

// Removal describes the removals of one type in one answer.
type Removal struct {
	Type  string
	Names []string
	// Put are the resources of the answer, which were put.
	Put []*xds.Resource
	// RequestedAt is that of xds.Update. WithOthers says that the source has others of the type.
	RequestedAt time.Time
	WithOthers  bool
}

// Remove returns the removals that take effect now, and defers the others.
func (g *Guard) Remove(r Removal) (now []string) {
	if !g.Active() {
		return r.Names
	}
	t := g.tables(r.Type)
	replaced := g.replaced(t, r)
	if len(replaced) > 0 && xds.Info(r.Type).GuardRemovals {
		g.took(r.Type, len(replaced))
	}
	for name := range replaced {
		now = append(now, name)
	}
	var names []string
	for _, name := range r.Names {
		switch {
		case replaced[name]:
		case r.Type == xds.VirtualHostType, g.namesOnDemand(r.Type) && t.Names.Has(name):
			now = append(now, name) // those of VHDS, and those that an Envoy names on demand, are never held back
		default:
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return now
	}
	in := g.count(t, r, replaced)
	in.names = names
	return append(now, g.filter(in)...)
}

// replaced returns which of the removed names, and of those whose removal is held back, conflict
// with a resource that was put: a listener whose address another one has now, a scope whose key.
// Envoy would NACK both together, so the removal cannot wait and is no accident.
func (g *Guard) replaced(t *state.Table, r Removal) map[string]bool {
	taken := make(map[string]bool)
	for _, put := range r.Put {
		for _, key := range xds.ConflictKeys(put) {
			taken[key] = true
		}
	}
	if len(taken) == 0 {
		return nil
	}
	replaced := make(map[string]bool)
	for _, name := range slices.AppendSeq(slices.Clone(r.Names), g.Names(r.Type)) {
		if had := t.Resource(name); had != nil && slices.ContainsFunc(xds.ConflictKeys(had), func(key string) bool { return taken[key] }) {
			replaced[name] = true
		}
	}
	return replaced
}

// namesOnDemand reports whether who names a resource of the type needs it on demand.
func (g *Guard) namesOnDemand(typeURL string) bool {
	return xds.Info(typeURL).GuardRemovals && !g.cfg.CountNamed
}

// count returns what there is of a type without what is replaced; the removal has no names yet.
func (g *Guard) count(t *state.Table, r Removal, replaced map[string]bool) removal {
	has := func(name string) bool { return t.Entry(name) != nil && !replaced[name] }
	all := t.Len() - len(replaced)
	if g.namesOnDemand(r.Type) {
		for _, names := range []iter.Seq[string]{t.Names.Clients(), t.Names.Leases()} {
			for name := range names {
				if has(name) {
					all--
				}
			}
		}
	}
	counting, builtIn := all, xds.BuiltIn(r.Type)
	for _, name := range builtIn {
		if has(name) {
			counting--
		}
	}
	return removal{
		typeURL: r.Type, all: all, counting: counting, has: has, counts: func(name string) bool { return !slices.Contains(builtIn, name) },
		requestedAt: r.RequestedAt, withOthers: r.WithOthers || len(r.Put) > 0,
	}
}

// left returns what changed.left is for a type.
func (g *Guard) left(t *state.Table) func(gone func(string) bool) bool {
	return func(gone func(string) bool) bool {
		var members map[string]bool
		if t.URL == xds.EndpointType {
			members = g.endpointsOfMembers()
		}
		for name, e := range t.All() {
			if !gone(name) && !members[name] && !xds.Empty(e.Current()) {
				return true
			}
		}
		return false
	}
}

// emptying describes endpoints or route configurations.
func (g *Guard) emptying(typeURL string) emptying {
	t := g.tables(typeURL)
	return emptying{typeURL: typeURL, former: t.Resource, left: g.left(t), needed: g.needed(t)}
}

// needed returns what emptying.needed is.
func (g *Guard) needed(t *state.Table) func(name string) bool {
	var names map[string]bool // made when it is needed
	return func(name string) bool {
		if names != nil {
			return names[name]
		}
		names = make(map[string]bool)
		if t.URL == xds.RouteType {
			for _, e := range g.tables(xds.ListenerType).All() {
				xds.RouteNames(e.Current(), func(route string) { names[route] = true })
			}
			return names[name]
		}
		for _, e := range g.tables(xds.ClusterType).All() {
			if eds := e.Current().EDSName; eds != "" {
				names[eds] = true
			}
		}
		for member := range g.endpointsOfMembers() {
			delete(names, member)
		}
		return names[name]
	}
}

// endpointsOfMembers returns the names of the endpoints of clusters that an aggregate cluster consists of: they are empty so that
// the next one is used.
func (g *Guard) endpointsOfMembers() map[string]bool {
	clusters := g.tables(xds.ClusterType)
	var out map[string]bool
	for _, e := range clusters.All() {
		xds.Members(e.Current(), func(cluster string) {
			if r := clusters.Resource(cluster); r != nil && r.EDSName != "" {
				if out == nil {
					out = make(map[string]bool)
				}
				out[r.EDSName] = true
			}
		})
	}
	return out
}

// belongs returns a function that reports whether a change belongs to the removals that are held back. It does if
//   - it empties the endpoints of a cluster whose removal is held back;
//   - it changes the route configuration of a listener whose removal is held back: a control plane that does not know
//     a name answers with another one;
//   - the former content led to clusters whose removal is held back, and the latest leads to fewer that are there: what leads to
//     others in their place is a change like any other, and stopping it would send requests to hosts that may be gone.
func (g *Guard) belongs() func(former, latest *xds.Resource) bool {
	var clusters, endpoints, routes map[string]bool // made when they are needed: with every answer they are not
	return func(former, latest *xds.Resource) bool {
		if !g.HoldsRemovals() {
			return false
		}
		if clusters == nil {
			clusters, endpoints, routes = g.referred()
		}
		switch {
		case latest.Type == xds.EndpointType:
			return endpoints[latest.Name] && xds.Empty(latest)
		case latest.Type == xds.RouteType && routes[latest.Name]:
			return true
		}
		return g.loses(former, latest, clusters)
	}
}

// loses reports whether a content leads less often to the clusters than the one before, and not as much more often to others that
// are there. What every sidecar has is not in the place of anything.
func (g *Guard) loses(former, latest *xds.Resource, clusters map[string]bool) bool {
	more := make(map[string]int) // how much more often the latest leads to a cluster
	xds.LeadsToClusters(former, func(cluster string) { more[cluster]-- })
	xds.LeadsToClusters(latest, func(cluster string) { more[cluster]++ })
	t, builtIn := g.tables(xds.ClusterType), xds.BuiltIn(xds.ClusterType)
	lost, gained := 0, 0
	for cluster, n := range more {
		switch {
		case clusters[cluster]:
			lost -= min(n, 0)
		case t.Entry(cluster) != nil && !slices.Contains(builtIn, cluster):
			gained += max(n, 0)
		}
	}
	return lost > gained
}

// referred returns the names of the clusters whose removal is deferred, those of their endpoints, and those of the
// route configurations of listeners whose removal is.
func (g *Guard) referred() (clusters, endpoints, routes map[string]bool) {
	clusters, endpoints, routes = make(map[string]bool), make(map[string]bool), make(map[string]bool)
	t := g.tables(xds.ClusterType)
	for name := range g.Names(xds.ClusterType) {
		clusters[name] = true
		if r := t.Resource(name); r != nil && r.EDSName != "" {
			endpoints[r.EDSName] = true
		}
	}
	t = g.tables(xds.ListenerType)
	for name := range g.Names(xds.ListenerType) {
		if r := t.Resource(name); r != nil {
			xds.RouteNames(r, func(route string) { routes[route] = true })
		}
	}
	return clusters, endpoints, routes
}

// Report returns what is held back of these types, in their order.
func (g *Guard) Report(types []string) (r xds.AgentReport) {
	for _, url := range types {
		if n := g.HeldBack(url); n > 0 {
			r.HeldBack = append(r.HeldBack, xds.HeldBack{Type: xds.Short(url), Had: notEmpty(g.tables(url)), HeldBack: n, Since: g.HeldBackSince(url).UTC().Truncate(time.Second)})
		}
	}
	return r
}
