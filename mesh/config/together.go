package config

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	networkingv1 "k8s.io/api/networking/v1"
)

// What two documents make together is bounded where configuration is made (package push), by the same functions that References warns by.

// Delegation counts what a VirtualService makes with its delegates: routes for each of its hosts. Use NewDelegation.
type Delegation struct {
	routes, bytes int // how much more it may make
	// own and matches are sizesOf of root, the last one.
	root         *networking.HTTPRoute
	own, matches int
}

// NewDelegation returns what a VirtualService may make with delegates.
func NewDelegation(root *networking.VirtualService) *Delegation {
	hosts := max(1, len(root.GetHosts()))
	return &Delegation{routes: MaxJoined/hosts - RoutesOf(root), bytes: MaxBytes / hosts}
}

// Takes reports whether a route of a delegate has room below a route of the root, and takes it. Each of its matches is compared with each of
// the root's. Once one has too many bytes there is no room for any.
func (d *Delegation) Takes(root, delegate *networking.HTTPRoute) bool {
	routes := times(MatchesOf(root), MatchesOf(delegate))
	if routes > d.routes || d.bytes <= 0 {
		return false
	}
	if d.root != root {
		d.root = root
		d.own, d.matches = sizesOf(root)
	}
	own, matches := sizesOf(delegate)
	d.bytes -= times(routes, max(1, d.own+own)) + times(max(1, d.matches), MatchesOf(delegate)) + times(max(1, matches), MatchesOf(root))
	if d.bytes < 0 {
		return false
	}
	d.routes -= routes
	return true
}

// sizesOf returns how many bytes a route has without its matches, and how many these have.
func sizesOf(route *networking.HTTPRoute) (own, matches int) {
	encoded := 0
	for _, m := range route.GetMatch() {
		size := proto.Size(m)
		matches += size
		encoded += protowire.SizeTag(1) + protowire.SizeBytes(size) // as they are among the fields of the route
	}
	return max(0, proto.Size(route)-encoded), matches
}

// HostsAtGateway returns how many of the hosts of a VirtualService, from the first on, make at most MaxJoined routes and chains at a Gateway: each host of a
// server that meets one of them has all of them. hosts are in full; makes is RoutesOf and ChainsOf.
func HostsAtGateway(gateway *networking.Gateway, of string, hosts []string, namespace string, makes int) int {
	all := HostsOf(gateway)
	pairs := times(max(1, all), max(1, len(hosts)))
	switch {
	case times(pairs, max(1, makes)) <= MaxJoined:
		return len(hosts)
	case pairs > MaxCompared:
		return MaxCompared / max(1, all)
	}
	total := 0
	for i, host := range hosts {
		for _, server := range gateway.GetServers() {
			for _, text := range server.GetHosts() {
				if meets(text, of, host, namespace) {
					total += max(1, makes)
				}
			}
		}
		if total > MaxJoined {
			return i
		}
	}
	return len(hosts)
}

// HostsOf returns how many hosts the servers of a Gateway have.
func HostsOf(gateway *networking.Gateway) (n int) {
	for _, server := range gateway.GetServers() {
		n += len(server.GetHosts())
	}
	return n
}

// tooManyPairs reports whether a VirtualService has too many hosts to compare each of them with those of a Gateway.
func tooManyPairs(gateway *networking.Gateway, hosts int) bool {
	return times(max(1, HostsOf(gateway)), max(1, hosts)) > MaxCompared
}

// meets reports whether a host of a server of a Gateway, which is in the namespace of, and one of a VirtualService of a namespace have a host in common.
func meets(text, of, host, namespace string) bool {
	if from, _, limited := strings.Cut(text, "/"); limited && from != "*" && from != namespace && (from != "." || of != namespace) {
		return false
	}
	own := hostOf(text)
	return own == "*" || host == "*" || hostsOverlap(host, own)
}

// IngressesWithin returns those of some Ingresses that make at most MaxJoined routes together: each host of TLS has the paths without a host, and
// of wildcards, of all of them. The largest are left out.
func IngressesWithin(list []*Config) []*Config {
	within := make([]*Config, 0, len(list))
	paths, hosts := 0, 0
	of := func(c *Config) (int, int) { return wildIngress(c.Spec.(*networkingv1.Ingress)) }
	for _, c := range list {
		if _, ok := c.Spec.(*networkingv1.Ingress); ok {
			p, h := of(c)
			paths, hosts, within = paths+p, hosts+h, append(within, c)
		}
	}
	for times(max(1, paths), max(1, hosts)) > MaxJoined {
		largest, most := 0, -1
		for i, c := range within {
			p, h := of(c)
			if makes := times(max(1, p), max(1, hosts)) + times(max(1, h), max(1, paths)); (p > 0 || h > 0) && makes > most {
				largest, most = i, makes
			}
		}
		p, h := of(within[largest])
		paths, hosts = paths-p, hosts-h
		within = append(within[:largest:largest], within[largest+1:]...)
	}
	return within
}
