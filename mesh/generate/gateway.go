package generate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// gatewayServer is a server of a Gateway that selects the proxy.
type gatewayServer struct {
	*networking.Server
	of       *push.GatewayConfig
	protocol service.Protocol
}

// gatewayPort is a port on which a gateway listens: the servers of one address.
type gatewayPort struct {
	bind    string // "" for all addresses
	number  uint32 // as the Gateways say it, by which routes are named
	target  uint32 // on which the proxy listens
	servers []gatewayServer
	// shared says that it listens on another port than an earlier one of the same number.
	shared bool
}

// routes returns the name of the routes of HTTP without TLS.
func (p *gatewayPort) routes() string {
	name := "http." + strconv.Itoa(int(p.number))
	if p.bind != "" {
		name += "." + p.bind
	}
	if p.shared {
		name += "-" + strconv.Itoa(int(p.target))
	}
	return name
}

// httpsRoutes returns the name of the routes of a server of HTTPS.
func (p *gatewayPort) httpsRoutes(s gatewayServer) string {
	return "https." + strconv.Itoa(int(p.number)) + "." + s.GetPort().GetName() + "." + s.of.Name + "." + s.of.Namespace
}

// gatewayBuilder makes what a gateway needs.
type gatewayBuilder struct {
	*Generator
	view *proxy.View
	// guard and dynamic, which says that requests may go to a host that is resolved when they come, are for listeners.
	guard   *guard
	dynamic bool
}

// addGatewayListeners adds the listeners of the Gateways that select a proxy.
func (g *Generator) addGatewayListeners(v *proxy.View, out *sink) {
	b := &gatewayBuilder{g, v, g.guardOf(v), slices.ContainsFunc(g.gatewayServices(v), func(svc *service.Service) bool { return svc.Resolution == service.DynamicDNS })}
	for _, port := range b.ports() {
		b.addListener(port, out)
	}
}

// addGatewayRoutes adds the routes to which these listeners refer.
func (g *Generator) addGatewayRoutes(v *proxy.View, out *sink) {
	b := &gatewayBuilder{Generator: g, view: v}
	for _, port := range b.ports() {
		var plain []gatewayServer
		for _, s := range port.servers {
			switch {
			case s.protocol.IsHTTP():
				plain = append(plain, s)
			case s.endsTLS() && s.protocol == service.HTTPS:
				b.addRoutes(port.httpsRoutes(s), port, []gatewayServer{s}, true, out)
			}
		}
		if len(plain) > 0 {
			b.addRoutes(port.routes(), port, plain, false, out)
		}
	}
}

// ports returns the ports of the Gateways. A port of a Gateway is that of the Service before the
// proxy; the proxy listens on its target port.
func (b *gatewayBuilder) ports() (ports []*gatewayPort) {
	for _, gw := range b.snap.Gateways(b.view) {
		for _, server := range gw.Gateway.GetServers() {
			number := server.GetPort().GetNumber()
			for _, target := range gw.Ports(b.view, number) {
				bind := b.bindOf(server)
				if b.view.Unprivileged() && target < firstUnprivileged || bind == "" && b.view.HasPort(target) {
					continue
				}
				i := slices.IndexFunc(ports, func(p *gatewayPort) bool { return p.bind == bind && p.number == number && p.target == target })
				if i < 0 {
					if slices.ContainsFunc(ports, func(p *gatewayPort) bool { return p.target == target && p.excludes(bind, gw.Namespace) }) {
						continue
					}
					i = len(ports)
					shared := slices.ContainsFunc(ports, func(p *gatewayPort) bool { return p.bind == bind && p.number == number })
					ports = append(ports, &gatewayPort{bind: bind, number: number, target: target, shared: shared})
				}
				ports[i].servers = append(ports[i].servers, gatewayServer{server, gw, service.ParseProtocol(server.GetPort().GetProtocol())})
			}
		}
	}
	return ports
}

// bindOf returns the address of a server; "" for all addresses, however that is written.
func (b *gatewayBuilder) bindOf(server *networking.Server) string {
	if all := wildcards(b.view.Families()); len(all) == 1 && server.GetBind() == all[0] {
		return ""
	}
	return server.GetBind()
}

// excludes reports whether a younger Gateway may not listen at an address, because an older one has the port there: at the same address for
// another port of the Service, or at all addresses. (The kernel prefers a listener of a single address.) Those of one namespace have one author.
func (p *gatewayPort) excludes(bind, namespace string) bool {
	if p.bind == bind {
		return true // they would have one name
	}
	all := func(bind string) bool { return bind == "" || isUnspecified(bind) }
	return all(p.bind) && (all(bind) || slices.ContainsFunc(p.servers, func(s gatewayServer) bool { return s.of.Namespace != namespace }))
}

// endsTLS reports whether the gateway ends the TLS of connections to a server.
func (s gatewayServer) endsTLS() bool {
	switch s.GetTls().GetMode() {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return false
	}
	return s.GetTls() != nil && s.protocol.IsTLS()
}

// serverNames returns the SNI by which connections to a server are told; nil for any.
func (s gatewayServer) serverNames() (names []string) {
	for _, text := range s.GetHosts() {
		_, host := splitHost(text)
		if host == "*" {
			return nil
		}
		if !slices.Contains(names, string(host)) {
			names = append(names, string(host))
		}
	}
	return names
}

// splitHost splits a host of a server: namespace/host, where the namespace may be missing.
func splitHost(text string) (namespace string, host service.Hostname) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		return "*", service.Hostname(strings.ToLower(text))
	}
	return namespace, service.Hostname(strings.ToLower(name))
}

func (b *gatewayBuilder) addListener(port *gatewayPort, out *sink) {
	binds := wildcards(b.view.Families())
	if port.bind != "" {
		binds = []string{port.bind}
	}
	var chains []*chain
	// Connections without TLS are of HTTP or not, as the oldest server says that takes them.
	plain, opaque := false, false
	for _, s := range port.servers {
		switch {
		case s.protocol.IsHTTP():
			plain = !opaque
		case s.endsTLS() && s.protocol == service.HTTPS:
			chains = append(chains, b.httpsChain(port, s))
		case s.endsTLS():
			// A TLSRoute says by the SNI which connections it takes, also where their TLS ends; Istio's own API does not.
			named := b.serverNameRoutes(port, s, func(vs *push.VirtualService) bool { return vs.GatewayAPI })
			others := b.tcpChains(port, s)
			for _, c := range others {
				c.serverNames = s.serverNames()
			}
			for _, c := range append(named, others...) {
				c.tls, c.transport = downstreamTLS(b.view, s.GetTls(), false), "tls"
				chains = append(chains, c)
			}
		case s.autoPassthrough():
			chains = append(chains, b.serverNameChains(s)...)
		case s.protocol.IsTLS():
			chains = append(chains, b.passthroughChains(port, s)...)
		case !plain:
			opaque = true
			chains = append(chains, b.tcpChains(port, s)...)
		}
	}
	if plain {
		c := &chain{filters: []*listenerv3.Filter{b.manager(binds[0], port, port.routes())}}
		if len(chains) > 0 {
			c.transport = "raw_buffer"
		}
		chains = append(chains, c)
	}
	if len(chains) == 0 {
		return
	}
	chains = distinct(chains)
	m := &listenerv3.Listener{Name: listenerName(binds[0], port.target), TrafficDirection: corev3.TrafficDirection_OUTBOUND}
	setAddresses(m, binds, port.target)
	if b.topology().GetProxyProtocol() != nil {
		m.ListenerFilters = append(m.ListenerFilters, proxyProtocolFilter())
	}
	inspects(m, chains)
	setChains(m, chains, nil)
	b.logUnmatched(m)
	m.PerConnectionBufferLimitBytes = atLeastZero(b.connectionSettings(gateway).GetListenerPerConnectionBufferLimitBytes())
	out.add(xds.ListenerType, m.Name, m)
}

// manager returns the HTTP connection manager of a port.
func (b *gatewayBuilder) manager(bind string, port *gatewayPort, routes string) *listenerv3.Filter {
	m := manager{
		statPrefix: "outbound_" + listenerName(bind, port.target) + ";", direction: gateway, protocol: service.HTTP,
		routes: routes, hops: b.topology().GetNumTrustedProxies(), guard: b.guard,
	}
	if b.dynamic {
		m.dynamic = b.view
	}
	return b.httpManager(m)
}

// httpsChain returns the chain of a server of HTTPS.
func (b *gatewayBuilder) httpsChain(port *gatewayPort, s gatewayServer) *chain {
	bind := first(nil, b.view.Families())
	if port.bind != "" {
		bind = port.bind
	}
	return &chain{
		serverNames: s.serverNames(), transport: "tls", tls: downstreamTLS(b.view, s.GetTls(), true), origin: s.of.Origin(),
		filters: []*listenerv3.Filter{b.manager(bind, port, port.httpsRoutes(s))},
	}
}

// passthroughChains returns the chains of connections whose TLS the gateway does not end: by the SNI
// of the TLS routes.
func (b *gatewayBuilder) passthroughChains(port *gatewayPort, s gatewayServer) []*chain {
	if out := b.serverNameRoutes(port, s, func(*push.VirtualService) bool { return true }); len(out) > 0 {
		return out
	}
	return b.tcpChains(port, s)
}

// serverNameRoutes returns the chains of the TLS routes of some VirtualServices, by their SNI.
func (b *gatewayBuilder) serverNameRoutes(port *gatewayPort, s gatewayServer, of func(*push.VirtualService) bool) (out []*chain) {
	ls := b.outbound()
	for _, vs := range b.virtualServices(s) {
		if !of(vs) {
			continue
		}
		for _, route := range vs.Rule.GetTls() {
			for _, m := range route.GetMatch() {
				if !b.applies(m.GetPort(), m.GetGateways(), m.GetSourceNamespace(), port, s) {
					continue
				}
				c := &chain{serverNames: m.GetSniHosts(), prefixes: m.GetDestinationSubnets(), transport: "tls", origin: vs.Meta.Key}
				c.filters = b.guard.beforeTCP(ls.tcpRoute(vs, route.GetRoute(), service.Port{Number: port.number})...)
				out = append(out, c)
			}
		}
	}
	return out
}

// tcpChains returns the chains of plain connections.
func (b *gatewayBuilder) tcpChains(port *gatewayPort, s gatewayServer) (out []*chain) {
	ls := b.outbound()
	for _, vs := range b.virtualServices(s) {
		for _, route := range vs.Rule.GetTcp() {
			matches := route.GetMatch()
			if len(matches) == 0 {
				matches = []*networking.L4MatchAttributes{{}}
			}
			for _, m := range matches {
				if !b.applies(m.GetPort(), m.GetGateways(), m.GetSourceNamespace(), port, s) {
					continue
				}
				out = append(out, &chain{
					prefixes: m.GetDestinationSubnets(), origin: vs.Meta.Key,
					filters: b.guard.beforeTCP(ls.tcpRoute(vs, route.GetRoute(), service.Port{Number: port.number})...),
				})
			}
		}
	}
	return out
}

// outbound returns a builder of what a gateway has in common with a sidecar.
func (b *gatewayBuilder) outbound() *outboundListeners {
	return &outboundListeners{Generator: b.Generator, view: b.view, lookup: b.lookup, families: b.view.Families()}
}

func (b *gatewayBuilder) lookup(host service.Hostname) *service.Service {
	return b.snap.Service(b.view.Namespace(), host)
}

func (b *gatewayBuilder) applies(port uint32, gateways []string, namespace string, of *gatewayPort, s gatewayServer) bool {
	return (port == 0 || port == of.number) && (len(gateways) == 0 || slices.Contains(gateways, s.of.Ref())) &&
		(namespace == "" || namespace == b.view.Namespace())
}

// virtualServices returns the VirtualServices of the server's gateway that have a host of the server.
func (b *gatewayBuilder) virtualServices(s gatewayServer) (out []*push.VirtualService) {
	for _, vs := range b.snap.VirtualServices(s.of.Ref(), b.view.Namespace()) {
		if len(commonHosts(s, vs)) > 0 {
			out = append(out, vs)
		}
	}
	return out
}

// commonHosts returns the hosts that a server and a VirtualService have in common, in the narrower of
// their forms.
func commonHosts(s gatewayServer, vs *push.VirtualService) (hosts []service.Hostname) {
	for _, host := range vs.Hosts {
		for _, text := range s.GetHosts() {
			namespace, of := splitHost(text)
			if namespace == "." {
				namespace = s.of.Namespace
			}
			if namespace != "*" && namespace != vs.Namespace {
				continue
			}
			if narrow, ok := host.Narrower(of); ok && !slices.Contains(hosts, narrow) {
				hosts = append(hosts, narrow)
			}
		}
	}
	return hosts
}

// addRoutes adds the routes of servers that share a port.
func (b *gatewayBuilder) addRoutes(name string, port *gatewayPort, servers []gatewayServer, tls bool, out *sink) {
	byHost := make(map[service.Hostname]*routev3.VirtualHost)
	var order []*routev3.VirtualHost
	hostFor := func(host service.Hostname) *routev3.VirtualHost {
		vh := byHost[host]
		if vh == nil {
			vh = &routev3.VirtualHost{
				Name: string(host) + ":" + strconv.Itoa(int(port.number)), Domains: []string{string(host)}, IncludeRequestAttemptCount: b.countsAttempts(),
			}
			byHost[host] = vh
			order = append(order, vh)
		}
		return vh
	}
	owners := oldest(servers)
	redirects := func(s gatewayServer, host service.Hostname) bool {
		if !s.GetTls().GetHttpsRedirect() {
			return false
		}
		if owner := owners[host]; owner != nil {
			return owner == s.of
		}
		return slices.ContainsFunc(s.GetHosts(), func(text string) bool { // within a wildcard
			_, of := splitHost(text)
			return host.SubsetOf(of) && owners[of] == s.of
		})
	}
	for _, s := range servers {
		r := &routing{Generator: b.Generator, view: b.view, gateways: []string{s.of.Ref()}, port: port.number, tls: tls, lookup: b.lookup}
		for _, vs := range b.virtualServices(s) {
			routes := r.routesOf(vs)
			for _, host := range commonHosts(s, vs) {
				if len(routes) == 0 && !s.GetTls().GetHttpsRedirect() {
					continue
				}
				vh := hostFor(host)
				vh.Routes = append(vh.Routes, routes...)
				if redirects(s, host) {
					vh.RequireTls = routev3.VirtualHost_ALL
				}
			}
		}
		if s.GetTls().GetHttpsRedirect() {
			for _, text := range s.GetHosts() {
				if _, host := splitHost(text); redirects(s, host) {
					hostFor(host).RequireTls = routev3.VirtualHost_ALL
				}
			}
		}
	}
	for _, vh := range order {
		// A route that takes every request comes after the routes of the other VirtualServices.
		slices.SortStableFunc(vh.Routes, func(a, b *routev3.Route) int { return last(a) - last(b) })
	}
	slices.SortFunc(order, func(a, b *routev3.VirtualHost) int { return cmp.Compare(a.Name, b.Name) })
	if len(order) == 0 {
		order = []*routev3.VirtualHost{{Name: "blackhole:" + strconv.Itoa(int(port.number)), Domains: []string{"*"}}}
	}
	// Istio names the routes of HTTP by the port on which the proxy listens.
	out.addAs(xds.RouteType, name, strings.Replace(name, "http."+strconv.Itoa(int(port.number)), "http."+strconv.Itoa(int(port.target)), 1), routeConfiguration(name, order))
}

// oldest returns the oldest Gateway of each host of some servers, as it is written: it says whether requests in plaintext are redirected.
func oldest(servers []gatewayServer) map[service.Hostname]*push.GatewayConfig {
	of := make(map[service.Hostname]*push.GatewayConfig)
	for _, s := range servers {
		for _, text := range s.GetHosts() {
			if _, host := splitHost(text); of[host] == nil {
				of[host] = s.of
			}
		}
	}
	return of
}

func last(r *routev3.Route) int {
	if takesAll(r.GetMatch()) {
		return 1
	}
	return 0
}

// topology is what stands before the gateways.
func (b *gatewayBuilder) topology() *meshv1alpha1.Topology {
	return b.config().GetGatewayTopology()
}

// gatewayServices returns the services to which the gateways of a proxy send requests, those that its guard asks, and
// those that collect telemetry.
func (g *Generator) gatewayServices(v *proxy.View) []*service.Service {
	seen := make(map[service.Hostname]bool)
	var out []*service.Service
	for _, svc := range append(g.guardServices(v), g.snap.Collectors(v.Namespace())...) {
		if !seen[svc.Hostname] {
			seen[svc.Hostname] = true
			out = append(out, svc)
		}
	}
	for _, gw := range g.snap.Gateways(v) {
		for _, vs := range g.snap.VirtualServices(gw.Ref(), v.Namespace()) {
			for host := range push.Destinations(vs.Rule) {
				svc := g.snap.Service(v.Namespace(), service.Hostname(host))
				if svc != nil && !seen[svc.Hostname] {
					seen[svc.Hostname] = true
					out = append(out, svc)
				}
			}
		}
	}
	return out
}
