package envoyfilter

import (
	"slices"
	"strconv"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"
)

// managerFilter is the filter that has HTTP filters.
const managerFilter = "envoy.filters.network.http_connection_manager"

// isVirtual reports whether the ports of connections are told by the filter chains of a listener, because
// iptables sends all connections to it.
func isVirtual(l *listenerv3.Listener) bool {
	return l.GetName() == "virtualInbound" || l.GetName() == "virtualOutbound"
}

// isForListener reports whether a patch is for a listener or for something in it.
func (p *Patch) isForListener(l *listenerv3.Listener) bool {
	m := p.match.GetListener()
	if m.GetName() != "" && m.GetName() != l.GetName() {
		return false
	}
	if p.ApplyTo != networking.EnvoyFilter_LISTENER && isVirtual(l) {
		return true
	}
	return m.GetPortNumber() == 0 || l.GetAddress().GetSocketAddress().GetPortValue() == m.GetPortNumber()
}

// isForChain reports whether a patch is for a filter chain of a listener that it is for.
func (p *Patch) isForChain(l *listenerv3.Listener, c *listenerv3.FilterChain) bool {
	m, takes := p.match.GetListener(), c.GetFilterChainMatch()
	if isVirtual(l) && m.GetPortNumber() != 0 && takes.GetDestinationPort().GetValue() != m.GetPortNumber() {
		return false
	}
	want := m.GetFilterChain()
	protocols := true
	if want.GetApplicationProtocols() != "" {
		for name := range strings.SplitSeq(want.GetApplicationProtocols(), ",") {
			protocols = protocols && slices.Contains(takes.GetApplicationProtocols(), name)
		}
	}
	return protocols && (want.GetName() == "" || want.GetName() == c.GetName()) &&
		(want.GetSni() == "" || slices.Contains(takes.GetServerNames(), want.GetSni())) &&
		(want.GetTransportProtocol() == "" || want.GetTransportProtocol() == takes.GetTransportProtocol()) &&
		(want.GetDestinationPort() == 0 || want.GetDestinationPort() == takes.GetDestinationPort().GetValue())
}

// networkFilter returns the name of the network filter that a patch is for; named is false for any.
func (p *Patch) networkFilter() (name string, named bool) {
	f := p.match.GetListener().GetFilterChain().GetFilter()
	return f.GetName(), f != nil
}

// httpFilter returns the name of the HTTP filter that a patch is for; named is false for any.
func (p *Patch) httpFilter() (name string, named bool) {
	f := p.match.GetListener().GetFilterChain().GetFilter().GetSubFilter()
	return f.GetName(), f != nil
}

// isForRoutes reports whether a patch is for a route configuration or something in it. also is another name
// by which the patch may mean it, "" for none.
func (p *Patch) isForRoutes(context Context, rc *routev3.RouteConfiguration, also string) bool {
	m := p.match.GetRouteConfiguration()
	if m.GetName() != "" && m.GetName() != rc.GetName() && m.GetName() != also {
		return false
	}
	if context != networking.EnvoyFilter_GATEWAY {
		return m.GetPortNumber() == 0 || m.GetPortNumber() == portOfRoutes(rc.GetName())
	}
	port, portName, gateway := gatewayOfRoutes(rc.GetName())
	return (m.GetPortNumber() == 0 || m.GetPortNumber() == port) && (m.GetPortName() == "" || m.GetPortName() == portName) &&
		(m.GetGateway() == "" || m.GetGateway() == gateway)
}

// portOfRoutes returns the port in the name of the routes of a sidecar: "80", or "inbound|8080||".
func portOfRoutes(name string) uint32 {
	if rest, ok := strings.CutPrefix(name, "inbound|"); ok {
		name, _, _ = strings.Cut(rest, "|")
	}
	return number(name)
}

func number(text string) uint32 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// gatewayOfRoutes returns what the name of the routes of a gateway says: "http.80", or
// "https.443.PORT.GATEWAY.NAMESPACE".
func gatewayOfRoutes(name string) (port uint32, portName, gateway string) {
	parts := strings.Split(name, ".")
	switch {
	case parts[0] == "http" && len(parts) > 1:
		return number(parts[1]), "", ""
	case parts[0] == "https" && len(parts) == 5:
		return number(parts[1]), parts[2], parts[4] + "/" + parts[3]
	}
	return 0, "", ""
}

// isForHost reports whether a patch is for a virtual host of routes that it is for.
func (p *Patch) isForHost(vh *routev3.VirtualHost) bool {
	m := p.match.GetRouteConfiguration().GetVhost()
	return (m.GetName() == "" || m.GetName() == vh.GetName()) &&
		(m.GetDomainName() == "" || slices.Contains(vh.GetDomains(), m.GetDomainName()))
}

// isForRoute reports whether a patch is for a route of a virtual host that it is for.
func (p *Patch) isForRoute(r *routev3.Route) bool {
	m := p.match.GetRouteConfiguration().GetVhost().GetRoute()
	if m.GetName() != "" && m.GetName() != r.GetName() {
		return false
	}
	want := m.GetAction()
	if want == networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ANY {
		return true
	}
	switch r.GetAction().(type) {
	case *routev3.Route_Route:
		return want == networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ROUTE
	case *routev3.Route_Redirect:
		return want == networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_REDIRECT
	case *routev3.Route_DirectResponse:
		return want == networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_DIRECT_RESPONSE
	}
	return true
}

// namesRoute reports whether a patch names the route that it is for.
func (p *Patch) namesRoute() bool {
	return p.match.GetRouteConfiguration().GetVhost().GetRoute() != nil
}

// isForCluster reports whether a patch is for a cluster. hosts are the services of an inbound cluster,
// whose name does not say them.
func (p *Patch) isForCluster(name string, hosts []string) bool {
	m := p.match.GetCluster()
	if m.GetName() != "" {
		return m.GetName() == name
	}
	var port uint32
	var subset string
	if parts := strings.SplitN(name, "|", 4); len(parts) == 4 {
		port, subset = number(parts[1]), parts[2]
		if parts[0] != "inbound" || len(hosts) == 0 {
			hosts = []string{parts[3]}
		}
	}
	return (m.GetSubset() == "" || m.GetSubset() == subset) && (m.GetPortNumber() == 0 || m.GetPortNumber() == port) &&
		(m.GetService() == "" || slices.Contains(hosts, m.GetService()))
}
