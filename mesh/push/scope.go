package push

import (
	"maps"
	"slices"
	"strings"
	"sync"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Scope is what a sidecar may reach: Pilot's SidecarScope.
type Scope struct {
	// Config is the Sidecar document; nil for the default scope, and Sidecar then too.
	Config  *config.Config
	Sidecar *networking.Sidecar
	// Egress are the listeners for outbound connections. Exactly one, the last, has no Listener.Port
	// if there is such a one: it has the ports that no other one has.
	Egress []*Egress
	// Services are those of all Egress together, in the order in which they get an address (sortFor), and instead of aliases the
	// services that these are names of.
	Services []*service.Service
	// OutboundAny says that requests to unknown hosts are forwarded.
	OutboundAny bool
	// OutboundDynamic says that they are forwarded to the addresses of these hosts' names, instead of
	// the addresses to which the workload connected.
	OutboundDynamic bool
	// ResolvesHosts says that this, or a service, makes the proxy resolve the hosts of requests.
	ResolvesHosts bool

	byHost map[service.Hostname]*service.Service
}

// Egress is a listener for outbound connections with what is reached through it.
type Egress struct {
	Listener *networking.IstioEgressListener // nil in the default scope
	// Services are those that clients may name, in the order in which they get an address (sortFor). Destinations are those that they reach only
	// because a VirtualService sends requests to them.
	Services, Destinations []*service.Service
	Virtual                []*VirtualService
}

// Service returns the service of a name in the scope, which may be that of an alias; nil for none.
func (sc *Scope) Service(host service.Hostname) *service.Service { return sc.byHost[host] }

type scopeKey struct {
	namespace string
	sidecar   *config.Config
}

// sidecarIndex has the Sidecars by namespace, oldest first, those with a selector before those
// without.
type sidecarIndex struct{ byNamespace map[string][]*config.Config }

func indexSidecars(list []*config.Config) *sidecarIndex {
	idx := &sidecarIndex{byNamespace: make(map[string][]*config.Config)}
	sorted := slices.SortedFunc(slices.Values(list), config.Older)
	for _, selecting := range []bool{true, false} {
		for _, c := range sorted {
			spec, ok := c.Spec.(*networking.Sidecar)
			if ok && (len(spec.GetWorkloadSelector().GetLabels()) > 0) == selecting {
				idx.byNamespace[c.Namespace] = append(idx.byNamespace[c.Namespace], c)
			}
		}
	}
	return idx
}

// Scope returns the scope of a sidecar: that of the oldest Sidecar document of its namespace that
// selects it, or else of the one of its namespace, or else of the root namespace without a selector,
// or else everything that its namespace sees.
func (s *Snapshot) Scope(v *proxy.View) *Scope {
	key := scopeKey{namespace: v.Namespace()}
	for _, c := range s.sidecars.byNamespace[key.namespace] {
		if v.SelectedBy(c.Spec.(*networking.Sidecar).GetWorkloadSelector().GetLabels()) {
			key.sidecar = c
			break
		}
	}
	if key.sidecar == nil {
		for _, c := range s.sidecars.byNamespace[s.Mesh.GetRootNamespace()] {
			if len(c.Spec.(*networking.Sidecar).GetWorkloadSelector().GetLabels()) == 0 {
				key.sidecar = c
				break
			}
		}
	}
	s.mu.Lock()
	of := s.scopes[key]
	if of == nil {
		of = sync.OnceValue(func() *Scope { return s.newScope(key) })
		s.scopes[key] = of
	}
	s.mu.Unlock()
	return of()
}

// RetainScopes forgets the scopes of all namespaces but these. They are made again when they are asked for.
func (s *Snapshot) RetainScopes(namespaces map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.scopes, func(key scopeKey, _ func() *Scope) bool { return !namespaces[key.namespace] })
}

// Scopes returns the number of scopes that were made.
func (s *Snapshot) Scopes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.scopes)
}

// SameServices reports whether two scopes reach the same services by the same listeners.
func (sc *Scope) SameServices(other *Scope) bool {
	same := func(a, b *Egress) bool {
		return a.Listener == b.Listener && slices.Equal(a.Services, b.Services) && slices.Equal(a.Destinations, b.Destinations)
	}
	return sc.Config == other.Config && sc.ResolvesHosts == other.ResolvesHosts && slices.Equal(sc.Services, other.Services) &&
		slices.EqualFunc(sc.Egress, other.Egress, same)
}

func (s *Snapshot) newScope(key scopeKey) *Scope {
	sc := &Scope{Config: key.sidecar, byHost: make(map[service.Hostname]*service.Service)}
	policy := s.Mesh.GetOutboundTrafficPolicy().GetMode()
	sc.OutboundAny = policy != meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY
	sc.OutboundDynamic = policy == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS
	listeners := []*networking.IstioEgressListener{nil}
	if key.sidecar != nil {
		sc.Sidecar = key.sidecar.Spec.(*networking.Sidecar)
		if own := sc.Sidecar.GetOutboundTrafficPolicy(); own != nil {
			sc.OutboundAny, sc.OutboundDynamic = own.GetMode() == networking.OutboundTrafficPolicy_ALLOW_ANY, false
		}
		if len(sc.Sidecar.GetEgress()) > 0 {
			listeners = sc.Sidecar.GetEgress()
		}
	}
	for _, l := range listeners {
		sc.Egress = append(sc.Egress, s.newEgress(key.namespace, l))
	}
	sc.limitEgress()
	sc.addServices(s, key.namespace)
	sc.ResolvesHosts = sc.OutboundDynamic || slices.ContainsFunc(sc.Services, func(svc *service.Service) bool {
		return svc.Resolution == service.DynamicDNS
	})
	return sc
}

// addServices sets the services of all Egress together. Those by their own names come before aliases, which lead to what the proxy means
// by the name of their service.
func (sc *Scope) addServices(s *Snapshot, namespace string) {
	add := func(name service.Hostname, svc *service.Service) {
		if has := sc.byHost[svc.Hostname]; has != nil {
			svc = has
		} else {
			sc.byHost[svc.Hostname] = svc
			sc.Services = append(sc.Services, svc)
		}
		if sc.byHost[name] == nil {
			sc.byHost[name] = svc
		}
	}
	for _, aliases := range []bool{false, true} {
		for _, e := range sc.Egress {
			for _, svc := range slices.Concat(e.Services, e.Destinations) {
				switch isAlias := svc.Resolution == service.Alias; {
				case isAlias != aliases:
				case isAlias:
					add(svc.Hostname, s.aliased(namespace, svc))
				default:
					add(svc.Hostname, svc)
				}
			}
		}
	}
	sortFor(namespace, sc.Services)
}

// newEgress selects what a listener reaches. Through a listener with a port of its own that are the
// services with that port.
func (s *Snapshot) newEgress(namespace string, l *networking.IstioEgressListener) *Egress {
	e := &Egress{Listener: l}
	imports := importsOf(l, namespace)
	chosen := make(map[service.Hostname]*service.Service)
	add := func(svc *service.Service) {
		if svc.Resolution == service.Alias && s.aliased(namespace, svc) == nil {
			return // a name of a service that the proxy does not have
		}
		if has := chosen[svc.Hostname]; has == nil || !precedes(namespace, has, svc) {
			chosen[svc.Hostname] = svc
		}
	}
	for _, svc := range s.importable(imports) {
		if s.sees(namespace, svc) && imports.service(svc) && hasPort(svc, l.GetPort().GetNumber()) {
			add(svc)
		}
	}
	for _, vs := range s.VirtualServices(MeshGateway, namespace) {
		if !imports.virtual(vs) {
			continue
		}
		e.Virtual = append(e.Virtual, vs)
		if l == nil {
			continue // everything visible is there already
		}
		for host := range Destinations(vs.Rule) {
			if svc := s.Service(namespace, service.Hostname(host)); svc != nil && chosen[svc.Hostname] == nil {
				e.Destinations = append(e.Destinations, svc)
			}
		}
	}
	for _, svc := range chosen {
		e.Services = append(e.Services, svc)
	}
	sortFor(namespace, e.Services)
	return e
}

// importable returns the services that imports may concern: if they name hosts only, those hosts',
// so that a scope costs what it imports and not what the mesh has.
func (s *Snapshot) importable(im imports) (out []*service.Service) {
	for _, i := range im {
		if i.host.IsWildcard() {
			return s.services.all
		}
	}
	for _, i := range im {
		out = append(out, s.services.byHost[i.host]...)
	}
	return out
}

// hasPort reports whether a service has a port; 0 stands for any.
func hasPort(svc *service.Service, number uint32) bool {
	_, has := svc.Port(number)
	return has || number == 0
}

// imports are the hosts of a Sidecar's egress listener: namespace/name, where the namespace may be
// "*" for any, "." for the proxy's own, or "~" for none.
type imports []importedHost

type importedHost struct {
	namespace string
	host      service.Hostname
}

func importsOf(l *networking.IstioEgressListener, namespace string) imports {
	if l == nil {
		return imports{{"*", "*"}}
	}
	var out imports
	for _, text := range l.GetHosts() {
		in, host, ok := strings.Cut(text, "/")
		if !ok || in == "~" {
			continue
		}
		if in == "." {
			in = namespace
		}
		out = append(out, importedHost{in, service.Hostname(lower(host))})
	}
	return out
}

func (im imports) service(svc *service.Service) bool {
	return slices.ContainsFunc(im, func(i importedHost) bool {
		return (i.namespace == "*" || i.namespace == svc.Namespace) && svc.Hostname.SubsetOf(i.host)
	})
}

func (im imports) virtual(vs *VirtualService) bool {
	return slices.ContainsFunc(im, func(i importedHost) bool {
		return (i.namespace == "*" || i.namespace == vs.Namespace) &&
			slices.ContainsFunc(vs.Hosts, i.host.Matches)
	})
}

// Destinations yields the hosts to which a VirtualService sends requests or connections, possibly
// several times.
func Destinations(rule *networking.VirtualService) func(yield func(host string) bool) {
	return func(yield func(string) bool) {
		for _, r := range rule.GetHttp() {
			for _, to := range r.GetRoute() {
				if !yield(to.GetDestination().GetHost()) {
					return
				}
			}
			if r.GetMirror() != nil && !yield(r.GetMirror().GetHost()) {
				return
			}
			for _, m := range r.GetMirrors() {
				if !yield(m.GetDestination().GetHost()) {
					return
				}
			}
		}
		weighted := func(routes []*networking.RouteDestination) bool {
			for _, to := range routes {
				if !yield(to.GetDestination().GetHost()) {
					return false
				}
			}
			return true
		}
		for _, r := range rule.GetTls() {
			if !weighted(r.GetRoute()) {
				return
			}
		}
		for _, r := range rule.GetTcp() {
			if !weighted(r.GetRoute()) {
				return
			}
		}
	}
}
