package generate

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// autoPassthrough reports whether the gateway forwards connections to the services that their SNI names.
func (s gatewayServer) autoPassthrough() bool {
	return s.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH && s.protocol.IsTLS()
}

// serverNameServices returns the services that a gateway reaches by their SNI in mesh TLS: those of the
// mesh that its namespace sees.
func (g *Generator) serverNameServices(v *proxy.View) (out []*service.Service) {
	for _, svc := range g.snap.Services() {
		if !svc.MeshExternal && svc.Resolution != service.Alias && svc.Resolution != service.DynamicDNS && g.snap.Service(v.Namespace(), svc.Hostname) == svc {
			out = append(out, svc)
		}
	}
	return out
}

// addServerNameClusters adds the clusters of a gateway that forwards connections by their SNI: of all
// services, whatever the hosts of its server are, as with istiod.
func (g *Generator) addServerNameClusters(v *proxy.View, out *sink) {
	if g.hasAutoPassthrough(v) {
		g.outboundClusters(v, g.serverNameServices(v), true, out)
	}
}

// hasAutoPassthrough reports whether a Gateway of the proxy has a server in the mode AUTO_PASSTHROUGH.
func (g *Generator) hasAutoPassthrough(v *proxy.View) bool {
	for _, gw := range g.snap.Gateways(v) {
		for _, server := range gw.Gateway.GetServers() {
			if (gatewayServer{server, gw, service.ParseProtocol(server.GetPort().GetProtocol())}).autoPassthrough() {
				return true
			}
		}
	}
	return false
}

// serverNameChains returns the chains of a server that forwards connections by their SNI: one for each
// port and subset of the services that its hosts stand for. A chain takes connections of mesh TLS only,
// by their ALPN, and its cluster has only endpoints that end mesh TLS: nothing else comes through.
func (b *gatewayBuilder) serverNameChains(s gatewayServer) (out []*chain) {
	ls := b.outbound()
	for _, svc := range b.serverNameServices(b.view) {
		if svc.Hostname.IsWildcard() {
			continue // its name within that of an SNI is none that Envoy takes
		}
		if !slices.ContainsFunc(s.GetHosts(), func(text string) bool {
			_, host := splitHost(text)
			return svc.Hostname.SubsetOf(host)
		}) {
			continue
		}
		for _, port := range svc.Ports {
			if port.Protocol == service.UDP {
				continue
			}
			add := func(subset string) {
				name := serverName(port.Number, subset, svc.Hostname)
				out = append(out, &chain{
					serverNames: []string{name}, applications: inboundMeshALPN, transport: "tls",
					filters: []*listenerv3.Filter{ls.tcpTo(name, nil, svc, &networking.Destination{Subset: subset}, port)},
				})
			}
			add("")
			rule := b.snap.DestinationRule(b.view, svc)
			for _, subset := range rule.Subsets()[:b.snap.SubsetsWithin(rule, svc)] {
				add(subset.GetName())
			}
		}
	}
	return out
}
