package config

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	networkingv1 "k8s.io/api/networking/v1"
)

// together warns of what documents make together beyond the bounds, and is left out (docs/mesh.md, "How much one document may make"). It goes by all
// services, though a proxy may see fewer of them.
func (x *references) together() {
	allPorts := 0
	for _, of := range x.hosts {
		allPorts += len(of)
	}
	for _, c := range x.reader.List(VirtualService, "") {
		spec := c.Spec.(*networking.VirtualService)
		x.delegations(c, spec)
		if len(spec.Hosts) > 0 {
			x.reach(c, spec, allPorts)
			x.atGateways(c, spec)
		}
	}
	for _, c := range x.reader.List(DestinationRule, "") {
		x.clustersOf(c, c.Spec.(*networking.DestinationRule), allPorts)
	}
	for _, c := range x.reader.List(Sidecar, "") {
		x.egress(c, c.Spec.(*networking.Sidecar))
	}
	x.ingresses()
}

// delegations warns of the routes of delegates for which there is no room in a VirtualService.
func (x *references) delegations(c *Config, spec *networking.VirtualService) {
	room := NewDelegation(spec)
	for i, route := range spec.Http {
		if route.GetDelegate() == nil {
			continue
		}
		key := Key{VirtualService, c.Namespace, route.Delegate.Name}
		if route.Delegate.Namespace != "" {
			key.Namespace = route.Delegate.Namespace
		}
		to := x.reader.Get(key)
		if to == nil || len(to.Spec.(*networking.VirtualService).Hosts) > 0 {
			continue
		}
		left := 0
		for _, delegate := range to.Spec.(*networking.VirtualService).Http {
			if delegate.Delegate == nil && !room.Takes(route, delegate) {
				left++
			}
		}
		if left > 0 {
			x.warn(TooMuchTogether, c, (&path{name: "spec"}).field("http").at(i).field("delegate"),
				"with %s, the hosts and matches of this document make more than %d routes, or %d bytes: %d of the routes of the delegate are left out", key, MaxJoined, MaxBytes, left)
		}
	}
}

// madeBy returns how many routes and filter chains a VirtualService makes for each of its hosts, with its delegates.
func (x *references) madeBy(c *Config, spec *networking.VirtualService) int {
	n, room := RoutesOf(spec)+ChainsOf(spec), NewDelegation(spec)
	for _, route := range spec.Http {
		if route.GetDelegate() == nil {
			continue
		}
		key := Key{VirtualService, c.Namespace, route.Delegate.Name}
		if route.Delegate.Namespace != "" {
			key.Namespace = route.Delegate.Namespace
		}
		if to := x.reader.Get(key); to != nil {
			for _, delegate := range to.Spec.(*networking.VirtualService).Http {
				if delegate.Delegate == nil && room.Takes(route, delegate) {
					n += times(MatchesOf(route), MatchesOf(delegate))
				}
			}
		}
	}
	return n
}

// reach warns of a VirtualService that stands for too many services, or ports of them.
func (x *references) reach(c *Config, spec *networking.VirtualService, allPorts int) {
	makes := x.madeBy(c, spec)
	if times(max(1, makes), max(1, allPorts)) <= MaxJoined || !forMesh(spec) {
		return
	}
	services, ports := 0, 0
	named := make(map[string]bool)
	var wildcards []string
	for _, host := range spec.Hosts {
		switch host = x.resolve(host, c.Namespace); {
		case strings.HasPrefix(host, "*"):
			wildcards = append(wildcards, host)
		case !named[host] && x.hosts[host] != nil:
			named[host] = true
			services, ports = services+1, ports+len(x.hosts[host])
		}
	}
	if len(wildcards) > 0 {
		for host, of := range x.hosts {
			if !named[host] && slices.ContainsFunc(wildcards, func(wildcard string) bool { return hostWithin(host, wildcard) }) {
				services, ports = services+1, ports+len(of)
			}
		}
	}
	if total := times(max(1, makes), max(1, ports)); total > MaxJoined {
		x.warn(TooMuchTogether, c, (&path{name: "spec"}).field("hosts"),
			"its %d routes, at %d ports of %d services, make %d, and at most %d are used: it has no effect at the highest ports, and its wildcards do not stand for the youngest services", makes, ports, services, total, MaxJoined)
	}
}

// forMesh reports whether routes are for sidecars.
func forMesh(spec *networking.VirtualService) bool {
	return len(spec.Gateways) == 0 || slices.Contains(spec.Gateways, meshGateway)
}

// atGateways warns of a VirtualService that makes too much at a Gateway.
func (x *references) atGateways(c *Config, spec *networking.VirtualService) {
	var hosts []string
	for i, name := range spec.Gateways {
		if name == meshGateway {
			continue
		}
		gateway := x.reader.Get(gatewayKey(name, c.Namespace))
		if gateway == nil {
			continue
		}
		if hosts == nil {
			for _, host := range spec.Hosts {
				hosts = append(hosts, x.resolve(host, c.Namespace))
			}
		}
		if n := HostsAtGateway(gateway.Spec.(*networking.Gateway), gateway.Namespace, hosts, c.Namespace, x.madeBy(c, spec)); n < len(hosts) {
			x.warn(TooMuchTogether, c, (&path{name: "spec"}).field("gateways").at(i),
				"with the hosts of the servers of %s, its hosts and routes make more than %d: at this Gateway it has only the first %d of its %d hosts", gateway.Meta.Key, MaxJoined, n, len(hosts))
		}
	}
}

// clustersOf warns of a DestinationRule whose subsets make too many clusters of the ports of its services.
func (x *references) clustersOf(c *Config, spec *networking.DestinationRule, allPorts int) {
	if len(spec.Subsets) == 0 {
		return
	}
	host, at := x.resolve(spec.Host, c.Namespace), (&path{name: "spec"}).field("subsets")
	ports, most := 0, 0
	switch {
	case !strings.HasPrefix(host, "*"):
		most = len(x.hosts[host])
	case times(len(spec.Subsets), max(1, allPorts)) > min(MaxJoined, MaxClusters):
		for name, of := range x.hosts {
			if hostWithin(name, host) {
				ports, most = ports+len(of), max(most, len(of))
			}
		}
	}
	switch {
	case times(1+len(spec.Subsets), max(1, most)) > MaxClusters:
		x.warn(TooMuchTogether, c, at, "its %d subsets, at %d ports of a service, make more than %d clusters: the last subsets are left out", len(spec.Subsets), most, MaxClusters)
	case times(len(spec.Subsets), max(1, ports)) > MaxJoined:
		x.warn(TooMuchTogether, c, at, "its %d subsets, at %d ports of the services of %q, make more than %d clusters: the youngest services have none of them", len(spec.Subsets), ports, host, MaxJoined)
	}
}

// egress warns of a Sidecar whose listeners import too much again and again.
func (x *references) egress(c *Config, spec *networking.Sidecar) {
	imported := 0
	for i, e := range spec.Egress {
		if e.GetPort() == nil {
			continue
		}
		for host, of := range x.hosts {
			if _, has := of[e.Port.GetNumber()]; (has || e.Port.GetNumber() == 0) && slices.ContainsFunc(e.Hosts, func(text string) bool {
				_, name, _ := strings.Cut(text, "/")
				return hostWithin(host, strings.ToLower(name))
			}) {
				imported++
			}
		}
		if imported > MaxImported {
			x.warn(TooMuchTogether, c, (&path{name: "spec"}).field("egress").at(i), "the listeners up to this one have more than %d services: the last of them have none", MaxImported)
			return
		}
	}
}

// ingresses warns of Ingresses that are left out because of what all of them make.
func (x *references) ingresses() {
	list := x.reader.List(Ingress, "")
	within := make(map[*Config]bool)
	for _, c := range IngressesWithin(slices.SortedFunc(slices.Values(list), Older)) {
		within[c] = true
	}
	for _, c := range list {
		if !within[c] {
			paths, hosts := wildIngress(c.Spec.(*networkingv1.Ingress))
			x.warn(TooMuchTogether, c, (&path{name: "spec"}), "with the other Ingresses, its %d paths without a host and %d hosts of tls make more than %d routes: it is left out, because it makes the most", paths, hosts, MaxJoined)
		}
	}
}
