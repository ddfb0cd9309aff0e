package push

import (
	"slices"

	"github.com/holdfast-xds/holdfast/mesh/service"
)

// aliasTarget is the service of which a Service of the type ExternalName is another name.
type aliasTarget struct {
	*service.Service
	// by is the namespace of the Service that names it: that of the last name, if there are several.
	by string
}

// resolveAliases replaces each Service of the type ExternalName that names a service of the mesh by an
// alias, as Istio does: requests to it take the routes, rules and endpoints of that service. One that
// names another host stays a service with endpoints of DNS.
func (s *Snapshot) resolveAliases(before *serviceIndex) {
	idx := s.services
	for _, svc := range idx.all {
		if target, ok := s.targetOf(svc); ok {
			if idx.aliases == nil {
				idx.aliases, idx.targets = make(map[*service.Service]*service.Service), make(map[*service.Service]aliasTarget)
			}
			alias := before.alias(svc, target.Service)
			idx.aliases[svc], idx.targets[alias] = alias, target
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

// targetOf returns the service of which another is only a name, possibly through several names: each is what the namespace of the Service
// that names it means by it, so that nobody makes an alias of another's Service with a document that this one does not see. ok is false if
// it is none, or if the names lead out of the mesh or in a circle. It needs an index whose aliases were not replaced yet.
func (s *Snapshot) targetOf(svc *service.Service) (target aliasTarget, ok bool) {
	var seen []*service.Service
	for svc.ExternalName != "" {
		next := s.named(svc.Namespace, svc.ExternalName)
		if next == nil || slices.Contains(seen, svc) {
			return aliasTarget{}, false
		}
		seen = append(seen, svc)
		target = aliasTarget{next, svc.Namespace}
		svc = next
	}
	return target, len(seen) > 0
}

// aliased returns the service that proxies of a namespace reach by an alias; nil for none. A proxy has one service of a host, so that it is
// the one that they mean by the host, if that is the target, or their own, or comes before the target also for the namespace that names it.
// Any other one is of somebody whom the alias does not mean.
func (s *Snapshot) aliased(namespace string, alias *service.Service) *service.Service {
	target := s.services.targets[alias]
	means := s.named(namespace, target.Hostname)
	switch {
	case means == nil || means.Resolution == service.Alias:
		return nil
	case means == target.Service || means.Namespace == namespace, s.sees(target.by, means) && compareServices(means, target.Service) < 0:
		return means
	}
	return nil
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
