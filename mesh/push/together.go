package push

import (
	"maps"
	"slices"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// What documents make together is bounded (config.MaxJoined): a VirtualService by the services for which it stands and by the Gateways that it
// names, a DestinationRule by the services of its wildcard, a Sidecar by the services that it imports again and again. Who exceeds a bound has less; what is made of
// other documents stays as it is. config.References warns of what is left out.

// measured returns a VirtualService that knows how much it makes for each of its hosts.
func (vs *VirtualService) measured() *VirtualService {
	vs.makes = config.RoutesOf(vs.Rule) + config.ChainsOf(vs.Rule)
	return vs
}

// reach is for which of the services that sidecars of a namespace see a VirtualService stands.
type reach struct {
	// ports are those at which it has no routes, hosts the services with such a port, and those that its wildcards do not stand for.
	ports map[uint32]bool
	hosts map[service.Hostname]bool
}

type reachKey struct {
	vs *VirtualService
	to string
}

// reachOf returns what is left out of a VirtualService for sidecars of a namespace; nil for nothing.
func (s *Snapshot) reachOf(vs *VirtualService, to string) *reach {
	most := s.services.ports
	if !slices.ContainsFunc(vs.Hosts, service.Hostname.IsWildcard) {
		most = min(most, len(vs.Hosts)*s.services.mostPorts)
	}
	if vs.makes*most <= config.MaxJoined {
		return nil // whatever it stands for
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := reachKey{vs, to}
	of, known := s.reaches[key]
	if !known {
		of = s.newReach(vs, to)
		if s.reaches == nil {
			s.reaches = make(map[reachKey]*reach)
		}
		s.reaches[key] = of
	}
	return of
}

// newReach gives the ports of the hosts that a VirtualService names their routes first, in their order, and then the services of its wildcards, in theirs.
func (s *Snapshot) newReach(vs *VirtualService, to string) *reach {
	left := config.MaxJoined / max(1, vs.makes) // ports of services
	atPort := make(map[uint32]int)
	named := make(map[service.Hostname]bool)
	var wildcards []service.Hostname
	for _, host := range vs.Hosts {
		switch {
		case host.IsWildcard():
			wildcards = append(wildcards, host)
		case !named[host]:
			named[host] = true
			if svc := s.named(to, host); svc != nil {
				for _, port := range svc.Ports {
					atPort[port.Number]++
				}
			}
		}
	}
	out := &reach{ports: make(map[uint32]bool), hosts: make(map[service.Hostname]bool)}
	for _, port := range slices.Sorted(maps.Keys(atPort)) {
		if atPort[port] <= left {
			left -= atPort[port]
		} else {
			out.ports[port] = true
		}
	}
	for host := range named {
		svc := s.named(to, host)
		out.hosts[host] = svc != nil && slices.ContainsFunc(svc.Ports, func(p service.Port) bool { return out.ports[p.Number] })
	}
	maps.DeleteFunc(out.hosts, func(_ service.Hostname, is bool) bool { return !is })
	if len(wildcards) > 0 {
		for _, svc := range s.services.all {
			if named[svc.Hostname] || !s.sees(to, svc) || !slices.ContainsFunc(wildcards, svc.Hostname.SubsetOf) {
				continue
			}
			named[svc.Hostname] = true
			if len(svc.Ports) <= left {
				left -= len(svc.Ports)
			} else {
				out.hosts[svc.Hostname] = true
			}
		}
	}
	if len(out.ports)+len(out.hosts) == 0 {
		return nil
	}
	return out
}

// RoutesAt reports whether a VirtualService has routes at a port of the services that it names, for sidecars of a namespace. 0 stands for all ports.
func (s *Snapshot) RoutesAt(vs *VirtualService, to string, port uint32) bool {
	of := s.reachOf(vs, to)
	return of == nil || !of.ports[port] && (port != 0 || len(of.ports) == 0)
}

// boundedGateway is a gateway with the number of the hosts of its servers.
type boundedGateway struct {
	*GatewayConfig
	hosts int
}

func indexGateways(gateways []*GatewayConfig) map[string]boundedGateway {
	out := make(map[string]boundedGateway, len(gateways))
	for _, gw := range gateways {
		out[gw.Ref()] = boundedGateway{gw, config.HostsOf(gw.Gateway)}
	}
	return out
}

type gatewayPair struct {
	gateway string
	vs      *VirtualService
}

// hostsAt returns how many of the hosts of a VirtualService, from the first on, a gateway has: all, unless they make too much there. It is computed for
// who has the gateway, and not for each snapshot: hosts are compared with hosts.
func (s *Snapshot) hostsAt(gateway string, vs *VirtualService) int {
	gw, known := s.gatewaysByRef[gateway]
	if !known || gw.hosts*len(vs.Hosts)*max(1, vs.makes) <= config.MaxJoined {
		return len(vs.Hosts)
	}
	pair := gatewayPair{gateway, vs}
	s.mu.Lock()
	n, done := s.atGateway[pair]
	s.mu.Unlock()
	if done {
		return n
	}
	hosts := make([]string, len(vs.Hosts))
	for i, host := range vs.Hosts {
		hosts[i] = string(host)
	}
	n = config.HostsAtGateway(gw.Gateway, gw.Namespace, hosts, vs.Namespace, vs.makes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.atGateway == nil {
		s.atGateway = make(map[gatewayPair]int)
	}
	s.atGateway[pair] = n
	return n
}

// only returns a VirtualService with some of its hosts alone; nil if it has none of them.
func (vs *VirtualService) only(some []service.Hostname) *VirtualService {
	keep := make(map[service.Hostname]bool, len(some))
	for _, host := range some {
		keep[host] = true
	}
	of := *vs
	of.Hosts = slices.DeleteFunc(slices.Clone(vs.Hosts), func(host service.Hostname) bool { return !keep[host] })
	if len(of.Hosts) == 0 {
		return nil
	}
	return &of
}

// SubsetsWithin returns how many of the subsets of a rule, from the first on, have clusters for a service: all, unless the rule and the
// services to which it applies make too many together.
func (s *Snapshot) SubsetsWithin(rule *DestinationRule, svc *service.Service) int {
	subsets, ports := len(rule.Subsets()), max(1, len(svc.Ports))
	if subsets == 0 {
		return 0
	}
	if n := config.MaxClusters/ports - 1; n < subsets {
		subsets = max(0, n)
	}
	if !rule.Host.IsWildcard() || subsets*s.services.ports <= config.MaxJoined {
		return subsets
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of, known := s.wide[rule]
	if !known {
		of = make(map[*service.Service]bool)
		for left, i := config.MaxJoined/len(rule.Subsets()), 0; i < len(s.services.all) && left > 0; i++ {
			if one := s.services.all[i]; one.Hostname.SubsetOf(rule.Host) {
				of[one] = len(one.Ports) <= left
				left -= len(one.Ports)
			}
		}
		if s.wide == nil {
			s.wide = make(map[*DestinationRule]map[*service.Service]bool)
		}
		s.wide[rule] = of
	}
	if !of[svc] {
		return 0
	}
	return subsets
}

// limitEgress leaves the last of the listeners with a port of their own without services, if together they make more than config.MaxImported
// virtual hosts, chains and routes.
func (sc *Scope) limitEgress() {
	left := config.MaxImported
	for _, e := range sc.Egress {
		if e.Listener.GetPort() == nil {
			continue
		}
		left -= len(e.Services)
		for _, vs := range e.Virtual {
			hosts := len(vs.Hosts)
			if slices.ContainsFunc(vs.Hosts, service.Hostname.IsWildcard) {
				hosts = max(hosts, len(e.Services))
			}
			left -= hosts * vs.makes
		}
		if left < 0 {
			e.Services, e.Destinations, e.Virtual = nil, nil, nil
		}
	}
}
