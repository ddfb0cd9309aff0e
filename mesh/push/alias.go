package push

import (
	"slices"

	"github.com/holdfast-xds/holdfast/mesh/service"
)

// resolveAliases replaces each Service of the type ExternalName that names a service of the mesh by an
// alias, as Istio does: requests to it take the routes, rules and endpoints of that service. One that
// names another host stays a service with endpoints of DNS.
func (idx *serviceIndex) resolveAliases(before *serviceIndex) {
	for _, svc := range idx.all {
		if target := idx.targetOf(svc); target != nil {
			if idx.aliases == nil {
				idx.aliases = make(map[*service.Service]*service.Service)
			}
			idx.aliases[svc] = before.alias(svc, target)
		}
	}
	replace := func(list []*service.Service) {
		for i, svc := range list {
			if alias := idx.aliases[svc]; alias != nil {
				list[i] = alias
			}
		}
	}
	if len(idx.aliases) > 0 {
		replace(idx.all)
	}
	for of := range idx.aliases {
		replace(idx.byHost[of.Hostname])
	}
}

// targetOf returns the service of which another is only a name, possibly through several names; nil if
// it is none, or if the names lead out of the mesh or in a circle. It needs an index whose aliases were
// not replaced yet.
func (idx *serviceIndex) targetOf(svc *service.Service) *service.Service {
	var seen []*service.Service
	for svc.ExternalName != "" {
		next := idx.byHost[svc.ExternalName]
		if len(next) == 0 || slices.Contains(seen, svc) {
			return nil
		}
		seen = append(seen, svc)
		svc = next[0]
	}
	if len(seen) == 0 {
		return nil
	}
	return svc
}

// alias returns the alias that stands for a Service: the one of this index if it is the same, so that
// what depends on it is not generated again. idx may be nil.
func (idx *serviceIndex) alias(of, target *service.Service) *service.Service {
	if idx != nil {
		if alias := idx.aliases[of]; alias != nil && alias.ExternalName == target.Hostname && slices.Equal(alias.Ports, target.Ports) {
			return alias
		}
	}
	alias := *of
	alias.Resolution, alias.ExternalName, alias.Ports = service.Alias, target.Hostname, target.Ports
	return &alias
}
