package generate

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// maxDirectResponse is how long the body of a direct response may be, in bytes.
const maxDirectResponse = 1 << 20

// hosts collects the virtual hosts of one route configuration. Envoy rejects two with one name, or
// with one domain: the first has it.
type hosts struct {
	routing
	scope     *push.Scope
	egress    *push.Egress
	out       []*routev3.VirtualHost
	names     map[string]bool
	domains   map[string]bool
	full      map[service.Hostname]*service.Service // by their full names, which no short name may take
	wildcards map[string]string                     // the namespaces of domains with a wildcard
	addressed map[string]*service.Service           // by their virtual addresses; nil before it is asked for
	// anyProtocol says that ports are taken whatever their protocol is.
	anyProtocol bool
	// inPieces says that what virtual hosts of services have in common is encoded already: it is among their unknown fields.
	inPieces bool
	// aliases has the other names of services by the services' own.
	aliases map[service.Hostname][]*service.Service
}

// addOutboundRoutes adds the routes of each HTTP port of a sidecar.
func (g *Generator) addOutboundRoutes(v *proxy.View, scope *push.Scope, out *sink) {
	catchAll := scope.Egress[len(scope.Egress)-1]
	for _, e := range scope.Egress {
		if own := e.Listener.GetPort(); own != nil {
			name := strconv.Itoa(int(own.GetNumber()))
			if own.GetNumber() == 0 {
				name = e.Listener.GetBind()
			}
			protocol := service.ParseProtocol(own.GetProtocol())
			if protocol.IsHTTP() {
				port := own.GetNumber()
				if strings.EqualFold(own.GetProtocol(), "http_proxy") {
					port = 0
				}
				g.addRoutes(v, scope, e, name, port, out)
			}
		}
	}
	if catchAll.Listener.GetPort() != nil {
		return
	}
	for _, port := range httpPorts(catchAll.Services) {
		name := strconv.Itoa(int(port))
		if out.Routes[name] == nil {
			g.addRoutes(v, scope, catchAll, name, port, out)
		}
	}
	for _, svc := range catchAll.Services {
		for _, port := range svc.Ports {
			if port.Protocol == service.Unsupported && svc.Resolution != service.Alias {
				g.addOwnRoutes(v, scope, catchAll, svc, port, out)
			}
		}
	}
	if cmp.Or(v.HTTPProxyPort(), uint32(g.snap.Mesh.GetProxyHttpPort())) != 0 {
		g.addRoutes(v, scope, catchAll, httpProxyRoutes, 0, out)
	}
}

// httpPorts returns the ports of services on which HTTP may come, in order.
func httpPorts(services []*service.Service) (ports []uint32) {
	for _, svc := range services {
		for _, port := range svc.Ports {
			if (port.Protocol.IsHTTP() || port.Protocol == service.Unsupported) && !slices.Contains(ports, port.Number) {
				ports = append(ports, port.Number)
			}
		}
	}
	slices.Sort(ports)
	return ports
}

func (g *Generator) newHosts(v *proxy.View, scope *push.Scope, e *push.Egress, port uint32) *hosts {
	return &hosts{
		routing: routing{Generator: g, view: v, gateways: []string{push.MeshGateway}, port: port, lookup: scope.Service},
		scope:   scope, egress: e, names: make(map[string]bool), domains: make(map[string]bool), full: make(map[service.Hostname]*service.Service), wildcards: make(map[string]string),
		aliases: make(map[service.Hostname][]*service.Service),
	}
}

// addRoutes adds the routes of a port, or of all ports for 0, under a name. The virtual host of unknown
// hosts is always part of them. Patches of EnvoyFilters are for routes in one piece.
func (g *Generator) addRoutes(v *proxy.View, scope *push.Scope, e *push.Egress, name string, port uint32, out *sink) {
	h := g.newHosts(v, scope, e, port)
	h.inPieces = out.patches == nil
	h.addAll()
	h.withhold()
	if out.patches == nil && v.VirtualHosts() {
		for _, host := range h.out {
			out.add(xds.VirtualHostType, name+"/"+host.Name, host)
		}
		routes := routeConfiguration(name, []*routev3.VirtualHost{h.unknownHost()})
		routes.Vhds = &routev3.Vhds{ConfigSource: ads()}
		out.add(xds.RouteType, name, routes)
		return
	}
	slices.SortFunc(h.out, func(a, b *routev3.VirtualHost) int { return cmp.Compare(a.Name, b.Name) })
	h.out = append(h.out, h.unknownHost())
	out.add(xds.RouteType, name, routeConfiguration(name, h.out))
}

// addOwnRoutes adds the routes of one service and port, for the listener of its address.
func (g *Generator) addOwnRoutes(v *proxy.View, scope *push.Scope, e *push.Egress, svc *service.Service, port service.Port, out *sink) {
	h := g.newHosts(v, scope, e, port.Number)
	h.addAll()
	name := string(svc.Hostname) + ":" + strconv.Itoa(int(port.Number))
	i := slices.IndexFunc(h.out, func(vh *routev3.VirtualHost) bool { return slices.Contains(vh.Domains, string(svc.Hostname)) })
	if i < 0 {
		return
	}
	h.out[i].Domains = []string{"*"} // whatever host the client names, it is this service
	out.add(xds.RouteType, name, routeConfiguration(name, h.out[i:i+1]))
}

func routeConfiguration(name string, hosts []*routev3.VirtualHost) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name: name, VirtualHosts: hosts, ValidateClusters: truth(false), IgnorePortInHostMatching: name != httpProxyRoutes,
		MaxDirectResponseBodySizeBytes: u32(maxDirectResponse),
	}
}

// servicesOnPort returns the services of the listener by name, with the port.
func (h *hosts) servicesOnPort() []*service.Service {
	var on []*service.Service
	for _, svc := range h.egress.Services {
		if _, has := svc.Port(h.port); has || h.port == 0 {
			on = append(on, svc)
		}
	}
	return on
}

// addAll adds the virtual hosts of the VirtualServices, and then those of the services that none of
// them is about.
func (h *hosts) addAll() {
	services := h.servicesOnPort()
	byName := make(map[service.Hostname]*service.Service, len(services))
	for _, svc := range services {
		if !h.isOthers(string(svc.Hostname), svc) {
			byName[svc.Hostname] = svc
			h.full[svc.Hostname] = svc
		}
		if svc.Resolution == service.Alias {
			h.aliases[svc.ExternalName] = append(h.aliases[svc.ExternalName], svc)
		}
	}
	taken := make(map[service.Hostname]bool)
	specific := h.mostSpecific(services)
	for _, vs := range h.egress.Virtual {
		h.addVirtual(vs, byName, specific, taken)
	}
	for _, svc := range services {
		if taken[svc.Hostname] {
			continue
		}
		for _, port := range svc.Ports {
			if (port.Number == h.port || h.port == 0) && h.takes(port.Protocol) {
				h.addService(svc, port)
			}
		}
	}
}

// aliasOf returns the service of which a host, which may have a dot at the end, is another name: a short name by which the proxy's workload means
// a Service of Kubernetes, one of a single endpoint of a headless Service, or an address. It is nil for other hosts.
func (h *hosts) aliasOf(host string) *service.Service {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return h.addressee(host)
	}
	own, suffix, ok := strings.Cut(h.view.DNSDomain(), ".svc.")
	if !ok || strings.HasPrefix(host, "*") {
		return nil
	}
	kubernetes := func(host string) *service.Service {
		base := strings.TrimSuffix(strings.TrimSuffix(host, "."+suffix), ".svc")
		switch strings.Count(base, ".") {
		case 0:
			base += "." + own
		case 1:
		default:
			return nil
		}
		if svc := h.lookup(service.Hostname(base + ".svc." + suffix)); svc != nil && svc.Registry != service.External {
			return svc
		}
		return nil
	}
	if svc := kubernetes(host); svc != nil && string(svc.Hostname) != host {
		return svc
	}
	if _, parent, ok := strings.Cut(host, "."); ok {
		if svc := kubernetes(parent); svc != nil && svc.Headless {
			return svc
		}
	}
	return nil
}

// addressee returns the first service that has an address, as it is in a Host header; nil if none has it.
func (h *hosts) addressee(address string) *service.Service {
	if h.addressed == nil {
		h.addressed = make(map[string]*service.Service)
		for _, svc := range h.egress.Services {
			for _, at := range singleAddresses(h.view, svc) {
				if h.addressed[at] == nil {
					h.addressed[at] = svc
				}
			}
		}
	}
	return h.addressed[address]
}

// isOthers reports whether a name is another service's and not that of a given one. Whoever writes a ServiceEntry takes no name and no address
// from a service that comes first, but for proxies of his own namespace.
func (h *hosts) isOthers(name string, svc *service.Service) bool {
	if svc.Registry != service.External {
		return false
	}
	of := h.aliasOf(name)
	return of != nil && of != svc && (svc.Namespace != h.view.Namespace() || of.Namespace == svc.Namespace)
}

// withhold adds a virtual host for the hosts that have an owner and that nobody serves, but for a wider wildcard of another namespace, which does
// not stand for them: they are unknown hosts.
func (h *hosts) withhold() {
	var withheld []string
	for host, owner := range h.snap.OwnedHosts() {
		if h.domains[host] {
			continue
		}
		widest := ""
		for domain := range h.wildcards {
			if service.Hostname(host).SubsetOf(service.Hostname(domain)) && len(domain) > len(widest) {
				widest = domain
			}
		}
		if of := h.wildcards[widest]; widest != "" && of != owner && of != h.view.Namespace() {
			withheld = append(withheld, h.withPort(host, 80)...)
		}
	}
	if len(withheld) == 0 {
		return
	}
	slices.Sort(withheld)
	vh := h.unknownHost()
	vh.Name, vh.Domains = "withheld", withheld
	h.out = append(h.out, vh)
}

// addService adds the virtual host of a port of a service that no VirtualService is about.
func (h *hosts) addService(svc *service.Service, port service.Port) {
	if !h.inPieces || svc.Resolution == service.Alias {
		h.add(svc.Hostname, svc, svc.Namespace, port.Number, []*routev3.Route{h.toService(svc, port)})
		return
	}
	vh := h.add(svc.Hostname, svc, svc.Namespace, port.Number, nil)
	if vh == nil {
		return
	}
	// All fields of a virtual host but its name and its domains are encoded behind these.
	key := hostPiece{Target{svc, h.snap.DestinationRule(h.view, svc)}, port.Number}
	vh.IncludeRequestAttemptCount = false
	vh.ProtoReflect().SetUnknown(h.pieces.hostsRoutes.get(key, h.view, func(v *proxy.View) []byte {
		one := *h
		one.Generator, one.view = h.pieceOf(v, key.Target), v
		return pack(&routev3.VirtualHost{Routes: []*routev3.Route{one.toService(svc, port)}, IncludeRequestAttemptCount: one.countsAttempts()}).Value
	}))
}

// takes reports whether requests may come to ports of a protocol.
func (h *hosts) takes(p service.Protocol) bool {
	return h.anyProtocol && p != service.UDP || p.IsHTTP() || p == service.Unsupported
}

// mostSpecific returns for each service the VirtualService with the most specific host that it has: its
// own name, or else the longest wildcard; an older one for equals.
func (h *hosts) mostSpecific(services []*service.Service) map[service.Hostname]*push.VirtualService {
	best := make(map[service.Hostname]*push.VirtualService)
	length := make(map[service.Hostname]int)
	for _, vs := range h.egress.Virtual {
		for _, host := range vs.Hosts {
			if !host.IsWildcard() {
				if length[host] != math.MaxInt {
					best[host], length[host] = vs, math.MaxInt
				}
				continue
			}
			for _, svc := range services {
				if svc.Hostname.SubsetOf(host) && len(host) > length[svc.Hostname] && h.snap.Grants(vs, h.view.Namespace(), svc.Hostname) {
					best[svc.Hostname], length[svc.Hostname] = vs, len(host)
				}
			}
		}
	}
	return best
}

// addVirtual adds the virtual hosts of a VirtualService: one for each of its services, and one for each
// of its hosts that is no service.
func (h *hosts) addVirtual(vs *push.VirtualService, byName map[service.Hostname]*service.Service, specific map[service.Hostname]*push.VirtualService, taken map[service.Hostname]bool) {
	var services []*service.Service
	var others []service.Hostname
	for _, host := range vs.Hosts {
		if !host.IsWildcard() {
			if svc := byName[host]; svc != nil {
				services = append(services, svc)
			} else {
				others = append(others, host)
			}
			continue
		}
		found := false
		for _, name := range sortedHosts(byName) {
			if name.SubsetOf(host) {
				found = true
				if specific[name] == vs {
					services = append(services, byName[name])
				}
			}
		}
		if !found {
			others = append(others, host)
		}
	}
	if len(services) == 0 && h.port != 80 && h.port != 0 {
		return // hosts without a service are reached on the port of HTTP
	}
	routes := h.routesOf(vs)
	if len(routes) == 0 {
		return
	}
	for _, svc := range services {
		for _, alias := range h.aliases[svc.Hostname] {
			if specific[alias.Hostname] == nil { // which no VirtualService names itself
				services = append(services, alias)
			}
		}
	}
	for _, host := range others {
		if of := h.aliasOf(string(host)); of == nil || vs.Namespace == of.Namespace || vs.Namespace == h.view.Namespace() {
			h.add(host, nil, vs.Namespace, h.port, routes)
		}
	}
	for _, svc := range services {
		if taken[svc.Hostname] {
			continue
		}
		for _, port := range svc.Ports {
			if (port.Number == h.port || h.port == 0) && h.takes(port.Protocol) {
				taken[svc.Hostname] = true
				h.add(svc.Hostname, svc, svc.Namespace, port.Number, routes)
			}
		}
	}
}

func sortedHosts(byName map[service.Hostname]*service.Service) []service.Hostname {
	names := make([]service.Hostname, 0, len(byName))
	for name := range byName {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// add adds a virtual host for a name, of a service or of a VirtualService alone, of a namespace, and returns it; nil if others have the name or all of its domains.
func (h *hosts) add(name service.Hostname, svc *service.Service, namespace string, port uint32, routes []*routev3.Route) *routev3.VirtualHost {
	label := string(name) + ":" + strconv.Itoa(int(port))
	if h.names[label] {
		return nil
	}
	candidates := []string{string(name)}
	if svc != nil {
		candidates = append(candidates, h.domainsOf(svc)...)
	}
	var domains []string
	for _, candidate := range candidates {
		if candidate != string(name) && h.full[service.Hostname(candidate)] != nil {
			continue
		}
		if svc != nil && h.isOthers(candidate, svc) {
			continue
		}
		for _, d := range h.withPort(candidate, port) {
			if key := strings.ToLower(d); !h.domains[key] { // Envoy takes no domain twice, whatever its case
				h.domains[key] = true
				domains = append(domains, d)
				if strings.HasPrefix(key, "*") {
					h.wildcards[key] = namespace
				}
			}
		}
	}
	if len(domains) == 0 {
		return nil
	}
	h.names[label] = true
	vh := &routev3.VirtualHost{Name: label, Domains: domains, Routes: routes, IncludeRequestAttemptCount: h.countsAttempts()}
	h.out = append(h.out, vh)
	return vh
}

// withPort returns the forms of a domain in a Host header. They have a port only for the HTTP proxy, where it
// tells the ports of a service apart: port 80 is meant without one, and with one that the service does not
// have, as with istiod.
func (h *hosts) withPort(domain string, port uint32) []string {
	if h.port != 0 {
		return []string{domain}
	}
	forms := []string{domain + ":" + strconv.Itoa(int(port))}
	if port != 80 {
		return forms
	}
	if !strings.HasPrefix(domain, "*") {
		forms = append(forms, domain+":*")
	}
	return append(forms, domain)
}

// domainsOf returns the other names of a service: with a dot at the end, short names within the
// proxy's domain, those of single endpoints of a headless service, and its addresses.
func (h *hosts) domainsOf(svc *service.Service) []string {
	full := string(svc.Hostname)
	domains := []string{full + "."}
	short := shortNames(full, h.view.DNSDomain())
	domains = append(domains, short...)
	if svc.Headless {
		domains = append(domains, "*."+full)
		for _, name := range short {
			domains = append(domains, "*."+name)
		}
	}
	return append(domains, singleAddresses(h.view, svc)...)
}

// singleAddresses returns the virtual addresses of a service that are no ranges, as they are in a Host header.
func singleAddresses(v *proxy.View, svc *service.Service) (out []string) {
	for _, address := range virtualAddresses(v, svc) {
		if p, err := parsePrefix(address); err == nil && p.IsSingleIP() && !p.Addr().IsUnspecified() {
			out = append(out, bracketed(p.Addr().String()))
		}
	}
	return out
}

// bracketed returns an address as it is in a Host header.
func bracketed(address string) string {
	if strings.Contains(address, ":") {
		return "[" + address + "]"
	}
	return address
}

// shortNames returns the names by which a workload of a domain means a host:
// a, a.b, a.b.svc for a.b.svc.cluster.local in the namespace b.
func shortNames(host, domain string) []string {
	own, suffix, ok := strings.Cut(domain, ".svc.")
	if !ok {
		return withinDomain(host, domain)
	}
	base, rest, ok := strings.Cut(host, ".svc.")
	if !ok || rest != suffix {
		return nil
	}
	name, namespace, ok := strings.Cut(base, ".")
	if !ok {
		return nil
	}
	names := []string{base, base + ".svc"}
	if namespace == own {
		names = append([]string{name}, names...)
	}
	return names
}

// withinDomain returns the names of a host without the end that it shares with a domain.
func withinDomain(host, domain string) []string {
	parts, of := strings.Split(host, "."), strings.Split(domain, ".")
	shared := 0
	for shared < min(len(parts), len(of)) && parts[len(parts)-1-shared] == of[len(of)-1-shared] {
		shared++
	}
	if shared == 0 || shared == len(parts) {
		return nil
	}
	unique := strings.Join(parts[:len(parts)-shared], ".")
	names := []string{unique}
	if len(parts)-shared == 2 {
		names = append(names, unique+"."+parts[len(parts)-shared])
	}
	return names
}

// toService returns the route of all requests to a service.
func (h *hosts) toService(svc *service.Service, port service.Port) *routev3.Route {
	if svc.Resolution == service.Alias {
		svc = h.lookup(svc.Hostname)
	}
	cluster := ClusterName(port.Number, "", svc.Hostname)
	action := &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}
	setTimeout(action, nil)
	action.HashPolicy = hashPolicy(policyOf(h.ruleOf(h.view, svc), nil, port))
	action.RetryPolicy = retryPolicy(h.snap.Mesh.GetDefaultHttpRetryPolicy(), len(action.HashPolicy) > 0)
	return &routev3.Route{
		Name: "default", Match: routeMatch(nil, false), Action: &routev3.Route_Route{Route: action},
		Decorator: &routev3.Decorator{Operation: string(svc.Hostname) + ":" + strconv.Itoa(int(port.Number)) + "/*"},
	}
}

// unknownHost returns the virtual host of requests to hosts that no service has.
func (h *hosts) unknownHost() *routev3.VirtualHost {
	vh := &routev3.VirtualHost{Name: "allow_any", Domains: []string{"*"}, IncludeRequestAttemptCount: h.countsAttempts()}
	if h.scope.OutboundDynamic {
		return h.dynamicHostOf()
	}
	if !h.scope.OutboundAny {
		vh.Name = "block_all"
		vh.Routes = []*routev3.Route{{
			Name: "block_all", Match: routeMatch(nil, false),
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 502}},
		}}
		return vh
	}
	ls := &outboundListeners{Generator: h.Generator, scope: h.scope}
	action := &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: ls.unknownCluster()}}
	setTimeout(action, nil)
	vh.Routes = []*routev3.Route{{Name: "allow_any", Match: routeMatch(nil, false), Action: &routev3.Route_Route{Route: action}}}
	return vh
}
