package config

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// meshGateway is the name by which a VirtualService means all sidecars.
const meshGateway = "mesh"

// validateVirtualService checks a VirtualService. One without hosts is a delegate.
func validateVirtualService(k *checker, spec *networking.VirtualService) {
	root := &path{name: "spec"}
	delegate := len(spec.Hosts) == 0
	if delegate {
		const only = "a VirtualService without hosts is a delegate, which has http routes only"
		if len(spec.Gateways) > 0 {
			k.errorf(root.field("gateways"), only)
		}
		if len(spec.Tls) > 0 {
			k.errorf(root.field("tls"), only)
		}
		if len(spec.Tcp) > 0 {
			k.errorf(root.field("tcp"), only)
		}
	}
	k.gatewayNames(root.field("gateways"), spec.Gateways)
	k.virtualHosts(root.field("hosts"), spec)
	if len(spec.Http) == 0 && len(spec.Tls) == 0 && len(spec.Tcp) == 0 {
		k.errorf(root, "must have http, tls or tcp routes")
	}
	for i, route := range spec.Http {
		k.httpRoute(root.field("http").at(i), route, delegate, boundToGateway(spec))
	}
	for i, route := range spec.Tls {
		k.tlsRoute(root.field("tls").at(i), route, spec)
	}
	for i, route := range spec.Tcp {
		k.tcpRoute(root.field("tcp").at(i), route)
	}
	k.exportTo(root.field("exportTo"), spec.ExportTo, false)
	k.unreachableHTTP(root.field("http"), spec.Http)
}

// boundToGateway reports whether the routes are for gateways, and not for sidecars too.
func boundToGateway(spec *networking.VirtualService) bool {
	return len(spec.Gateways) > 0 && !slices.Contains(spec.Gateways, meshGateway)
}

// virtualHosts checks the hosts of a VirtualService, of which none may contain another.
func (k *checker) virtualHosts(at *path, spec *networking.VirtualService) {
	valid := true
	for i, host := range spec.Hosts {
		before := len(k.findings)
		switch {
		case isIP(host):
		case host == "*" && !boundToGateway(spec):
			k.errorf(at.at(i), `"*" is for gateways only: sidecars do not accept it`)
		case boundToGateway(spec) && strings.HasPrefix(host, "outbound_"):
			// The SNI of mesh mTLS, which a gateway with AUTO_PASSTHROUGH routes by.
		default:
			k.report(at.at(i), host, wildcardHostProblem(host))
		}
		valid = valid && len(k.findings) == before
	}
	if !valid {
		return
	}
	for i, host := range spec.Hosts {
		for _, other := range spec.Hosts[:i] {
			if hostsOverlap(host, other) {
				k.errorf(at.at(i), "%q and %q have hosts in common", other, host)
			}
		}
	}
}

// hostsOverlap reports whether two hosts, of which each may begin with "*", have one in common.
func hostsOverlap(a, b string) bool { return hostWithin(a, b) || hostWithin(b, a) }

// hostWithin reports whether every host of a is one of b.
func hostWithin(a, b string) bool {
	suffix, wildcard := strings.CutPrefix(b, "*")
	if !wildcard {
		return a == b
	}
	if inner, both := strings.CutPrefix(a, "*"); both {
		return strings.HasSuffix(inner, suffix)
	}
	return len(a) > len(suffix) && strings.HasSuffix(a, suffix)
}

// gatewayNames checks references to gateways: "name", "namespace/name", or "mesh".
func (k *checker) gatewayNames(at *path, names []string) {
	for i, name := range names {
		namespace, short, found := strings.Cut(name, "/")
		switch {
		case !found && strings.Contains(name, "."):
			k.report(at.at(i), name, hostProblem(name))
			k.warnf(Deprecated, at.at(i), "write namespace/name: names with dots are Istio's old form")
		case !found && !isDNSLabel(name):
			k.errorf(at.at(i), "%q is no name of a gateway", name)
		case found && (!isDNSLabel(namespace) || !isDNSLabel(short)):
			k.errorf(at.at(i), "%q is no namespace/name of a gateway", name)
		}
	}
}

// tlsRoute checks a route of TLS connections.
func (k *checker) tlsRoute(at *path, route *networking.TLSRoute, spec *networking.VirtualService) {
	if len(route.GetMatch()) == 0 {
		k.errorf(at.field("match"), "must have at least one match, with sniHosts")
	}
	for i, match := range route.GetMatch() {
		at := at.field("match").at(i)
		if len(match.GetSniHosts()) == 0 {
			k.errorf(at.field("sniHosts"), "must have at least one host")
		}
		for j, host := range match.GetSniHosts() {
			k.sniHost(at.field("sniHosts").at(j), host, spec)
		}
		k.connectionMatch(at, match.GetDestinationSubnets(), match.GetPort(), match.GetSourceLabels(), match.GetGateways(), match.GetSourceNamespace())
	}
	k.routeDestinations(at.field("route"), route.GetRoute())
}

// sniHost checks a host of TLS, which must be one of the hosts of the VirtualService.
func (k *checker) sniHost(at *path, host string, spec *networking.VirtualService) {
	if isIP(host) {
		k.warnf(MatchesNothing, at, "clients send names as SNI, and no addresses")
		return
	}
	if !boundToGateway(spec) || !strings.HasPrefix(host, "outbound_") {
		if problem := wildcardHostProblem(host); problem != "" {
			k.report(at, host, problem)
			return
		}
		if problem := partialWildcardProblem(host); problem != "" {
			k.report(at, host, problem)
			return
		}
	}
	for _, of := range spec.Hosts {
		if hostWithin(host, of) {
			return
		}
	}
	k.errorf(at, "%q is within none of the hosts of the VirtualService", host)
}

// tcpRoute checks a route of TCP connections.
func (k *checker) tcpRoute(at *path, route *networking.TCPRoute) {
	for i, match := range route.GetMatch() {
		k.connectionMatch(at.field("match").at(i), match.GetDestinationSubnets(), match.GetPort(), match.GetSourceLabels(), match.GetGateways(), match.GetSourceNamespace())
	}
	k.routeDestinations(at.field("route"), route.GetRoute())
}

// connectionMatch checks what the matches of TLS and TCP connections share.
func (k *checker) connectionMatch(at *path, subnets []string, port uint32, labels map[string]string, gateways []string, namespace string) {
	for i, subnet := range subnets {
		k.report(at.field("destinationSubnets").at(i), subnet, prefixProblem(subnet))
	}
	k.matchOrigin(at, port, labels, gateways, namespace)
}

// matchOrigin checks what all matches share; 0 and "" are not set.
func (k *checker) matchOrigin(at *path, port uint32, labels map[string]string, gateways []string, namespace string) {
	if port != 0 {
		k.port(at.field("port"), int64(port))
	}
	k.labels(at.field("sourceLabels"), labels)
	k.gatewayNames(at.field("gateways"), gateways)
	if namespace != "" && !isDNSLabel(namespace) {
		k.errorf(at.field("sourceNamespace"), "%q is no namespace", namespace)
	}
}

// routeDestinations checks the weighted destinations of TLS and TCP routes.
func (k *checker) routeDestinations(at *path, routes []*networking.RouteDestination) {
	if len(routes) == 0 {
		k.errorf(at, "must have at least one destination")
	}
	var total int64
	for i, route := range routes {
		k.weight(at.at(i), route.GetDestination(), route.GetWeight(), &total)
	}
	k.totalWeight(at, len(routes), total)
}

// weight checks a weighted destination and adds its weight to the total.
func (k *checker) weight(at *path, destination *networking.Destination, weight int32, total *int64) {
	if destination == nil {
		k.errorf(at.field("destination"), "it is missing")
	}
	k.destination(at.field("destination"), destination)
	k.notNegative(at.field("weight"), int64(weight))
	*total += int64(weight)
}

// totalWeight checks the sum of the weights of a route. That of a single destination does not matter.
func (k *checker) totalWeight(at *path, routes int, total int64) {
	switch {
	case routes > 1 && total == 0:
		k.errorf(at, "all weights are 0: no destination would get anything")
	case total > 1<<32-1:
		k.errorf(at, "the weights must add up to at most 4294967295, and add up to %d", total)
	}
}

// destination checks a destination; nil is none.
func (k *checker) destination(at *path, destination *networking.Destination) {
	if destination == nil {
		return
	}
	if destination.Host == "*" {
		k.errorf(at.field("host"), `"*" is no destination`)
	} else {
		k.report(at.field("host"), destination.Host, wildcardHostProblem(destination.Host))
	}
	if destination.Subset != "" {
		k.subsetName(at.field("subset"), destination.Subset)
	}
	if destination.Port != nil {
		k.port(at.fields("port.number"), int64(destination.Port.Number))
	}
}

// subsetName checks the name of a subset.
func (k *checker) subsetName(at *path, name string) {
	if !isDNSLabel(name) {
		k.errorf(at, "%q is no name of a subset: use letters, digits and '-', at most 63", name)
	}
}

// unreachableHTTP warns about routes behind one that matches every request, and about matches that an earlier route has, too. A route that
// delegates has the requests of its delegate only.
func (k *checker) unreachableHTTP(at *path, routes []*networking.HTTPRoute) {
	type place struct{ route, match int }
	earlier := make(map[string]place)
	for i, route := range routes {
		for j, match := range route.GetMatch() {
			match = proto.CloneOf(match)
			match.Name = ""
			text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(match) // it was read
			if was, has := earlier[string(text)]; has && was.route < i {
				k.warnf(RouteUnreachable, at.at(i).field("match").at(j), "is never used: it is the same as http[%d].match[%d]", was.route, was.match)
			} else if !has && route.GetDelegate() == nil {
				earlier[string(text)] = place{i, j}
			}
		}
	}
	for i, route := range routes {
		if i == len(routes)-1 || route.GetDelegate() != nil || !takesAll(&networking.VirtualService{Http: routes[i : i+1]}) {
			continue
		}
		how := "takes every request"
		if len(route.GetMatch()) == 0 {
			how = "has no match and takes every request"
		}
		k.warnf(RouteUnreachable, at.at(i+1), "is never used: http[%d] %s", i, how)
		return
	}
}
