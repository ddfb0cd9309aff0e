package generate

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	hashv3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// The names of the listeners to which iptables sends all connections.
const (
	virtualOutbound = "virtualOutbound"
	virtualInbound  = "virtualInbound"
)

// firstUnprivileged is the first port that a process needs no privilege for.
const firstUnprivileged = 1024

// outboundListeners makes the listeners for outbound connections of a sidecar.
type outboundListeners struct {
	*Generator
	view      *proxy.View
	scope     *push.Scope // nil for a gateway
	lookup    func(service.Hostname) *service.Service
	families  proxy.Families
	captured  bool // the connections come with their original destination
	listeners map[string]*outboundListener
	// requests are the first services that have an address or, for requests, an address and a port; nil before it is asked for.
	requests map[string]*service.Service
}

// outboundListener is a listener that is being made.
type outboundListener struct {
	binds    []string
	port     uint32
	bound    bool // it has a socket of its own
	protocol listenerProtocol
	chains   []*chain
	// locked: a Sidecar lists what is reached through it, and nothing is added.
	locked bool
	// alone is set while it is that of one TCP port of a service, of which no VirtualService says anything; nil for others.
	alone *servicePort
}

// servicePort is a port of a service.
type servicePort struct {
	*service.Service
	service.Port
}

// listenerProtocol is what connections a listener takes.
type listenerProtocol int

const (
	tcpOnly  listenerProtocol = iota
	httpOnly                  // HTTP, whatever else comes
	detected                  // HTTP is told from TCP by the first bytes
)

// addOutboundListeners adds the listeners for outbound connections of a sidecar.
func (g *Generator) addOutboundListeners(v *proxy.View, scope *push.Scope, out *sink) {
	ls := &outboundListeners{
		Generator: g, view: v, scope: scope, lookup: scope.Service, families: v.Families(),
		captured: v.Capture() != proxy.None, listeners: make(map[string]*outboundListener),
	}
	for _, e := range scope.Egress {
		ls.addEgress(e)
	}
	for name, l := range ls.listeners {
		switch {
		case listenerName(l.binds[0], l.port) != name: // it is there under each of its addresses
		case l.alone != nil && out.patches == nil:
			out.Listeners[name] = ls.piece(l)
		default:
			out.add(xds.ListenerType, name, ls.message(l))
		}
	}
	if ls.captured {
		out.add(xds.ListenerType, virtualOutbound, ls.virtual())
	}
	if port := cmp.Or(v.HTTPProxyPort(), uint32(g.snap.Mesh.GetProxyHttpPort())); port != 0 {
		m := ls.message(&outboundListener{
			binds: locals(ls.families), port: port, bound: true, protocol: httpOnly,
			chains: []*chain{{filters: []*listenerv3.Filter{ls.httpManagerOf(listenerName(locals(ls.families)[0], port), httpProxyRoutes, service.HTTP)}}},
		})
		out.add(xds.ListenerType, m.Name, m)
	}
}

// httpProxyRoutes is the name of the routes of the HTTP proxy.
const httpProxyRoutes = "http_proxy"

// addEgress adds the listeners of what one egress listener of the scope reaches.
func (ls *outboundListeners) addEgress(e *push.Egress) {
	bound := !ls.captured || e.Listener.GetCaptureMode() == networking.CaptureMode_NONE || strings.HasPrefix(e.Listener.GetBind(), "unix://")
	var binds []string
	switch {
	case e.Listener.GetBind() != "":
		binds = []string{e.Listener.GetBind()}
	case bound:
		binds = locals(ls.families)
	}
	if own := e.Listener.GetPort(); own != nil {
		port := service.Port{Name: own.GetName(), Number: own.GetNumber(), Protocol: service.ParseProtocol(own.GetProtocol())}
		for _, svc := range e.Services {
			ls.add(e, svc, port, binds, bound)
		}
		return
	}
	for _, l := range ls.listeners {
		l.locked = true
	}
	ls.requests = nil
	for _, svc := range e.Services {
		for _, port := range svc.Ports {
			if svc.Resolution == service.Alias && !port.Protocol.IsHTTP() {
				continue // its clients connect to the addresses of the service that it is a name of
			}
			if port.Protocol == service.UDP || bound && ls.view.Unprivileged() && port.Number < firstUnprivileged {
				continue
			}
			if len(binds) == 0 && svc.Headless && !port.Protocol.IsHTTP() {
				ls.addHeadless(e, svc, port)
				continue
			}
			ls.add(e, svc, port, binds, bound)
		}
	}
}

// addHeadless adds a listener for each endpoint of a service without a virtual address: clients
// connect to the endpoints' addresses.
func (ls *outboundListeners) addHeadless(e *push.Egress, svc *service.Service, port service.Port) {
	for _, ep := range ls.endpoints.Endpoints(svc.Key()) {
		ip, err := netip.ParseAddr(ep.Address)
		if err == nil && ep.PortName == port.Name && ep.Health == service.Healthy && !slices.Contains(ls.view.IPs(), ip) && !ls.isOthers(e, svc, ep.Address, port.Number) {
			ls.add(e, svc, port, []string{ep.Address}, false)
		}
	}
}

func first(binds []string, f proxy.Families) string {
	if len(binds) > 0 {
		return binds[0]
	}
	return wildcards(f)[0]
}

// add adds what a port of a service needs: a filter chain in the listener of its address, or of all
// addresses.
func (ls *outboundListeners) add(e *push.Egress, svc *service.Service, port service.Port, binds []string, bound bool) {
	wildcard := wildcards(ls.families)
	if port.Protocol.IsHTTP() {
		if len(binds) == 0 {
			binds = wildcard
		}
		c := ls.httpChain(binds[0], port, strconv.Itoa(int(port.Number)))
		kind := httpOnly
		if binds[0] == wildcard[0] {
			// Connections to hosts that no service has come here, too: those that are not HTTP are
			// passed through.
			c.applications, c.transport, kind = plaintextHTTP, "raw_buffer", detected
		}
		ls.addListener(binds, port.Number, bound, kind, []*chain{c})
		return
	}
	var prefixes []string
	if len(binds) == 0 {
		binds, prefixes = ls.addressesOf(svc)
		some := len(binds) > 0
		binds = slices.DeleteFunc(binds, func(address string) bool { return ls.isOthers(e, svc, address, port.Number) })
		switch {
		case len(binds) > 0:
		case some:
			return // of each of its addresses an older service has the port
		default:
			binds = wildcard
		}
	}
	var chains []*chain
	var alone *servicePort
	if port.Protocol.IsTLS() {
		chains = ls.tlsChains(e, svc, port, prefixes, binds[0] == wildcard[0])
	} else if chains = ls.tcpChains(e, svc, port, prefixes); len(chains) == 0 {
		chains = []*chain{{prefixes: prefixes, later: func() []*listenerv3.Filter { return ls.toService(svc, port) }}}
		if len(prefixes) == 0 && port.Protocol != service.Unsupported && ls.lookup(svc.Hostname) == svc {
			alone = &servicePort{svc, port}
		}
	}
	kind := tcpOnly
	if port.Protocol == service.Unsupported {
		routes := strconv.Itoa(int(port.Number))
		if binds[0] != wildcard[0] {
			routes = string(svc.Hostname) + ":" + routes // routes for this service alone
		}
		c := ls.httpChain(binds[0], port, routes)
		c.applications, c.transport, kind = plaintextHTTP, "raw_buffer", detected
		chains = append(chains, c)
	}
	if l := ls.addListener(binds, port.Number, bound, kind, chains); l != nil {
		l.alone = alone
	}
}

// isOthers reports whether a service that comes before another one has its address: a Service of Kubernetes, whatever its ports are, or a
// ServiceEntry with the port for requests, whose listener is that of all addresses. A listener of the address alone would take them.
func (ls *outboundListeners) isOthers(e *push.Egress, svc *service.Service, address string, port uint32) bool {
	if svc.Registry != service.External && !svc.Headless {
		return false // nobody chooses the address of a Service of Kubernetes twice
	}
	if ls.requests == nil {
		ls.requests = make(map[string]*service.Service)
		have := func(at string, one *service.Service) {
			if ls.requests[at] == nil {
				ls.requests[at] = one
			}
		}
		for _, one := range e.Services {
			for _, at := range virtualAddresses(ls.view, one) {
				if one.Registry != service.External {
					have(at, one)
				}
				for _, p := range one.Ports {
					if p.Protocol.IsHTTP() {
						have(listenerName(at, p.Number), one)
					}
				}
			}
		}
	}
	first := func(of *service.Service) bool {
		return of != nil && of != svc && slices.Index(e.Services, of) < slices.Index(e.Services, svc)
	}
	return first(ls.requests[address]) || first(ls.requests[listenerName(address, port)])
}

// addressesOf returns the virtual addresses of a service that the proxy has a family for: those to
// listen on, or the prefixes to tell connections by.
func (ls *outboundListeners) addressesOf(svc *service.Service) (binds, prefixes []string) {
	for _, address := range virtualAddresses(ls.view, svc) {
		p, err := parsePrefix(address)
		switch {
		case err != nil || isNoAddress(p) || p.Bits() == 0:
		case p.Addr().Is4() && ls.families&proxy.IPv4 == 0 || p.Addr().Is6() && ls.families&proxy.IPv6 == 0:
		case p.IsSingleIP():
			binds = append(binds, p.Addr().String())
		default:
			prefixes = append(prefixes, p.String())
		}
	}
	if len(prefixes) > 0 {
		return nil, append(prefixes, binds...)
	}
	return binds, nil
}

// addListener adds a listener, or merges its chains with those of the one that has the same addresses. Of an address that an older
// service has beside others, the younger service gets nothing there, and the rest elsewhere: Envoy rejects a listener with an address that
// another one has. It returns the listener that it added; nil for none.
func (ls *outboundListeners) addListener(binds []string, port uint32, bound bool, protocol listenerProtocol, chains []*chain) *outboundListener {
	if len(binds) == 0 {
		binds = wildcards(ls.families)
	}
	var free []string
	merged := make(map[*outboundListener]bool)
	for _, bind := range binds {
		l := ls.listeners[listenerName(bind, port)]
		switch {
		case ls.isProxys(ls.view, bind, port, ls.captured), listensInbound(ls.view, ls.scope, bind, port):
		case l == nil:
			free = append(free, bind)
		case !bound && !l.bound && l.isWhole() && !isUnspecified(bind): // the address is the older one's
		case !merged[l] && !slices.ContainsFunc(l.binds, func(has string) bool { return !slices.Contains(binds, has) }):
			merged[l] = true
			l.merge(protocol, copied(chains))
		}
	}
	if len(free) == 0 {
		return nil
	}
	l := &outboundListener{binds: free, port: port, bound: bound, protocol: protocol, chains: copied(chains)}
	for _, bind := range free {
		ls.listeners[listenerName(bind, port)] = l
	}
	return l
}

// isProxys reports whether an address is one at which a proxy listens whatever the documents say: for the connections that are redirected to
// it, and for readiness and metrics. Envoy rejects a second listener there, or the one that comes first is all that it has (istio#41239).
func (g *Generator) isProxys(v *proxy.View, bind string, port uint32, captured bool) bool {
	if !isUnspecified(bind) {
		return false
	}
	return captured && g.isCapturePort(port) || v.HasPort(port)
}

// isCapturePort reports whether connections are redirected to a port of each sidecar.
func (g *Generator) isCapturePort(port uint32) bool {
	return port == uint32(g.snap.Mesh.GetProxyListenPort()) || port == uint32(g.snap.Mesh.GetProxyInboundListenPort()) //nolint:gosec // ports are validated
}

// isWhole reports whether a service has all connections of the listener.
func (l *outboundListener) isWhole() bool {
	return slices.ContainsFunc(l.chains, func(c *chain) bool { return !c.takesSome() && len(c.prefixes) == 0 })
}

func isUnspecified(bind string) bool {
	a, err := netip.ParseAddr(bind)
	return err == nil && a.IsUnspecified()
}

func copied(chains []*chain) []*chain {
	out := make([]*chain, len(chains))
	for i, c := range chains {
		one := *c
		out[i] = &one
	}
	return out
}

// merge adds the chains of a younger service. A listener of both HTTP and TCP tells them apart by their first bytes. What takes the same
// connections as what is there already is left out later: the older service has the port.
func (l *outboundListener) merge(protocol listenerProtocol, chains []*chain) {
	if l.locked {
		return
	}
	l.alone = nil
	switch {
	case l.protocol == httpOnly && protocol == tcpOnly:
		// TCP comes to a port of HTTP: the HTTP chain takes what looks like HTTP.
		for _, c := range l.chains {
			c.applications, c.transport = plaintextHTTP, "raw_buffer"
		}
	case l.protocol == tcpOnly && protocol == httpOnly:
		for _, c := range chains {
			c.applications, c.transport = plaintextHTTP, "raw_buffer"
		}
	}
	for _, c := range chains {
		if !c.takesTheSame(l.chains[0]) { // as the services of a shared port of HTTP do: of all but the first nothing would be left
			l.chains = append(l.chains, c)
		}
	}
	if l.protocol != protocol {
		l.protocol = detected
	}
}

// piece returns the listener of a port that has it for itself.
func (ls *outboundListeners) piece(l *outboundListener) *xds.Resource {
	svc, port := l.alone.Service, l.alone.Port
	t := Target{svc, ls.snap.DestinationRule(ls.view, svc)}
	key := listenerPiece{t, port.Number, strings.Join(l.binds, ","), l.bound, ls.unknownCluster()}
	return ls.pieces.listeners.get(key, ls.view, func(v *proxy.View) *xds.Resource {
		alone := &outboundListeners{Generator: ls.pieceOf(v, t), view: v, scope: ls.scope, lookup: ls.lookup}
		l.chains = []*chain{{filters: alone.toService(svc, port)}}
		m := alone.message(l)
		return resource(xds.ListenerType, m.Name, m)
	})
}

// message returns the listener.
func (ls *outboundListeners) message(l *outboundListener) *listenerv3.Listener {
	m := &listenerv3.Listener{
		Name: listenerName(l.binds[0], l.port), TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		ContinueOnListenerFiltersTimeout: true, ListenerFiltersTimeout: seconds(0),
	}
	setAddresses(m, l.binds, l.port)
	if !l.bound {
		m.BindToPort = truth(false)
	}
	l.chains = distinct(l.chains)
	inspects(m, l.chains)
	if l.protocol == detected {
		m.ListenerFiltersTimeout = ls.snap.Mesh.GetProtocolDetectionTimeout()
	}
	setChains(m, l.chains, []*listenerv3.Filter{ls.tcpProxy(ls.unknownCluster())})
	return m
}

// unknownCluster is the cluster of connections that no service has.
func (ls *outboundListeners) unknownCluster() string {
	if !ls.scope.OutboundAny {
		return blackHole
	}
	if to := ls.scope.Sidecar.GetOutboundTrafficPolicy().GetEgressProxy(); to != nil {
		return ClusterName(to.GetPort().GetNumber(), to.GetSubset(), service.Hostname(to.GetHost()))
	}
	return passthrough
}

// virtual returns the listener to which iptables sends outbound connections.
func (ls *outboundListeners) virtual() *listenerv3.Listener {
	port := uint32(ls.snap.Mesh.GetProxyListenPort())
	m := &listenerv3.Listener{
		Name: virtualOutbound, UseOriginalDst: truth(true), TrafficDirection: corev3.TrafficDirection_OUTBOUND,
	}
	if ls.view.Capture() == proxy.TProxy {
		m.Transparent = truth(true)
	}
	setAddresses(m, wildcards(ls.families), port)
	// A connection to the listener itself would be passed to itself without end.
	chains := []*chain{{name: "virtualOutbound-blackhole", port: port, filters: []*listenerv3.Filter{ls.tcpProxy(blackHole)}}}
	if ls.scope.OutboundDynamic {
		chains = append(chains, ls.dynamicChain())
		inspects(m, chains)
	}
	chains = append(chains, &chain{name: "virtualOutbound-catchall-tcp", filters: []*listenerv3.Filter{ls.tcpProxy(ls.unknownCluster())}})
	setChains(m, chains, nil)
	ls.logUnmatched(m)
	return m
}

func (ls *outboundListeners) httpChain(bind string, port service.Port, routes string) *chain {
	name := listenerName(bind, port.Number)
	return &chain{later: func() []*listenerv3.Filter {
		return []*listenerv3.Filter{ls.httpManagerOf(name, routes, port.Protocol)}
	}}
}

func (ls *outboundListeners) httpManagerOf(listener, routes string, protocol service.Protocol) *listenerv3.Filter {
	m := manager{statPrefix: "outbound_" + listener + ";", direction: outbound, protocol: protocol, routes: routes}
	if ls.scope.ResolvesHosts {
		m.dynamic = ls.view
	}
	return ls.httpManager(m)
}

// tlsChains returns the chains of a port whose connections begin with TLS: those of the
// VirtualServices by SNI, or one to the service.
func (ls *outboundListeners) tlsChains(e *push.Egress, svc *service.Service, port service.Port, prefixes []string, wildcard bool) (out []*chain) {
	for _, vs := range e.Virtual {
		if len(vs.Rule.GetTls()) == 0 || !slices.ContainsFunc(vs.Hosts, svc.Hostname.Matches) || !ls.snap.Grants(vs, ls.view.Namespace(), svc.Hostname) {
			continue
		}
		for _, route := range vs.Rule.GetTls() {
			for _, m := range route.GetMatch() {
				if !ls.applies(m.GetPort(), m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), port.Number) {
					continue
				}
				c := &chain{serverNames: m.GetSniHosts(), prefixes: prefixes, origin: vs.Meta.Key}
				if len(m.GetDestinationSubnets()) > 0 {
					c.prefixes = m.GetDestinationSubnets()
				}
				c.filters = ls.tcpRoute(vs, route.GetRoute(), port)
				out = append(out, c)
			}
		}
	}
	if len(out) > 0 {
		return distinct(out)
	}
	c := &chain{prefixes: prefixes, filters: ls.toService(svc, port)}
	if svc.Resolution == service.DynamicDNS {
		c.filters = append([]*listenerv3.Filter{sniForwardProxy(ls.view, port.Number)}, c.filters...)
	}
	if wildcard || len(prefixes) > 0 || svc.Hostname.IsWildcard() && svc.Resolution == service.DynamicDNS {
		// Only the SNI tells the services of one address apart.
		c.serverNames = []string{string(svc.Hostname)}
	}
	return []*chain{c}
}

// tcpChains returns the chains of a port of plain TCP: those of the VirtualServices, and one to the
// service for what these leave; none if none of them is about the port.
func (ls *outboundListeners) tcpChains(e *push.Egress, svc *service.Service, port service.Port, prefixes []string) (out []*chain) {
	for _, vs := range e.Virtual {
		if len(vs.Rule.GetTcp()) == 0 {
			continue
		}
		if !slices.ContainsFunc(vs.Hosts, svc.Hostname.Matches) || !ls.snap.Grants(vs, ls.view.Namespace(), svc.Hostname) {
			continue
		}
		for _, route := range vs.Rule.GetTcp() {
			var subnets []string
			matched := len(route.GetMatch()) == 0
			all := matched
			for _, m := range route.GetMatch() {
				if ls.applies(m.GetPort(), m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), port.Number) {
					matched = true
					all = all || len(m.GetDestinationSubnets()) == 0
					subnets = append(subnets, m.GetDestinationSubnets()...)
				}
			}
			if !matched {
				continue
			}
			c := &chain{prefixes: prefixes, origin: vs.Meta.Key, filters: ls.tcpRoute(vs, route.GetRoute(), port)}
			if all {
				return append(out, c)
			}
			c.prefixes = subnets
			out = append(out, c)
		}
	}
	if len(out) > 0 {
		out = append(out, &chain{prefixes: prefixes, filters: ls.toService(svc, port)})
	}
	return out
}

// applies reports whether a match of a TLS or TCP route may concern connections of this proxy.
func (ls *outboundListeners) applies(port uint32, gateways []string, labels map[string]string, namespace string, of uint32) bool {
	return (port == 0 || port == of) && (len(gateways) == 0 || slices.Contains(gateways, push.MeshGateway)) &&
		ls.view.SelectedBy(labels) && (namespace == "" || namespace == ls.view.Namespace())
}

// toService forwards connections to a service.
func (ls *outboundListeners) toService(svc *service.Service, port service.Port) []*listenerv3.Filter {
	if svc.Resolution == service.Alias {
		svc = ls.lookup(svc.Hostname)
	}
	if len(svc.Ports) == 1 {
		port = svc.Ports[0]
	}
	name := ClusterName(port.Number, "", svc.Hostname)
	return ls.withMeshALPN([]*listenerv3.Filter{ls.tcpTo(name, nil, svc, nil, port)}, name)
}

// tcpRoute forwards connections to the destinations of a VirtualService.
func (ls *outboundListeners) tcpRoute(vs *push.VirtualService, routes []*networking.RouteDestination, port service.Port) []*listenerv3.Filter {
	r := &routing{Generator: ls.Generator, view: ls.view, port: port.Number, lookup: ls.lookup}
	if len(routes) == 1 {
		d := routes[0].GetDestination()
		return ls.withMeshALPN([]*listenerv3.Filter{ls.tcpTo(r.clusterOf(d), nil, r.lookup(service.Hostname(d.GetHost())), d, port)}, r.clusterOf(d))
	}
	weighted := &tcpv3.TcpProxy_WeightedCluster{}
	for _, to := range routes {
		if to.GetWeight() > 0 {
			weighted.Clusters = append(weighted.Clusters, &tcpv3.TcpProxy_WeightedCluster_ClusterWeight{
				Name: r.clusterOf(to.GetDestination()), Weight: uint32(to.GetWeight()),
			})
		}
	}
	var names []string
	for _, c := range weighted.Clusters {
		names = append(names, c.Name)
	}
	d := routes[0].GetDestination()
	return ls.withMeshALPN([]*listenerv3.Filter{ls.tcpTo(vs.Name+"."+vs.Namespace, weighted, r.lookup(service.Hostname(d.GetHost())), d, port)}, names...)
}

// tcpTo forwards connections to a cluster or to weighted ones, with the timeouts and the hashing of
// the policy of the service, if that is known.
func (ls *outboundListeners) tcpTo(name string, weighted *tcpv3.TcpProxy_WeightedCluster, svc *service.Service, d *networking.Destination, port service.Port) *listenerv3.Filter {
	tcp := &tcpv3.TcpProxy{
		StatPrefix: ls.destinationStatName(name, svc), ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: name}, AccessLog: ls.accessLogs(nil),
	}
	if weighted != nil {
		tcp.StatPrefix = name
		tcp.ClusterSpecifier = &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: weighted}
	}
	if svc != nil {
		rule := ls.ruleOf(ls.view, svc)
		var subset *networking.Subset
		for _, s := range rule.Subsets() {
			if s.GetName() == d.GetSubset() {
				subset = s
			}
		}
		policy := policyOf(rule, subset, port)
		pool := policy.GetConnectionPool().GetTcp()
		tcp.IdleTimeout, tcp.MaxDownstreamConnectionDuration = pool.GetIdleTimeout(), pool.GetMaxConnectionDuration()
		if tunnel := policy.GetTunnel(); tunnel != nil && !isServerName(name) {
			tcp.TunnelingConfig = &tcpv3.TcpProxy_TunnelingConfig{
				Hostname: net.JoinHostPort(tunnel.GetTargetHost(), strconv.Itoa(int(tunnel.GetTargetPort()))),
				UsePost:  tunnel.GetProtocol() == "POST",
			}
		}
		if policy.GetLoadBalancer().GetConsistentHash().GetUseSourceIp() {
			tcp.HashPolicy = []*hashv3.HashPolicy{{PolicySpecifier: &hashv3.HashPolicy_SourceIp_{SourceIp: &hashv3.HashPolicy_SourceIp{}}}}
		}
	}
	return networkFilter(tcpFilter, tcp)
}
