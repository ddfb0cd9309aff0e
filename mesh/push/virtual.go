package push

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// MeshGateway is the name by which a VirtualService means all sidecars.
const MeshGateway = "mesh"

// VirtualService is a VirtualService with full host names, and with its delegates in it.
type VirtualService struct {
	*config.Config
	Rule     *networking.VirtualService
	Hosts    []service.Hostname
	Gateways []string // MeshGateway, or namespace/name
	ExportTo map[string]bool
	// Ingress says that it was made of Kubernetes Ingresses: a path is the prefix of whole segments.
	Ingress bool
	// GatewayAPI says that it was made of documents of the Gateway API: a path is the prefix of whole segments, and a request whose
	// destination does not exist gets 500.
	GatewayAPI bool
	// Delegates are the documents whose routes are in Rule.
	Delegates []config.Key
	// origins are the documents of the routes of HTTP in Rule; nil if all are of Config.
	origins []config.Key
	// makes is how many routes and filter chains it makes for each of its hosts.
	makes int

	delegateConfigs []*config.Config // nil for one that does not exist
}

// virtualIndex has the VirtualServices, oldest first.
type virtualIndex struct {
	all       []*VirtualService
	byConfig  map[*config.Config]*VirtualService
	byGateway map[string][]*VirtualService
	// limited has what proxies of other namespaces have of those of whose hosts the mesh configuration names other owners; nil for nothing.
	limited map[*VirtualService]*VirtualService
}

// indexVirtual indexes documents and what was made of the Gateway API.
func (s *Snapshot) indexVirtual(list []*config.Config, api []*VirtualService, before *virtualIndex) *virtualIndex {
	idx := &virtualIndex{byConfig: make(map[*config.Config]*VirtualService, len(list)), byGateway: make(map[string][]*VirtualService), limited: make(map[*VirtualService]*VirtualService)}
	byKey := make(map[config.Key]*config.Config)
	roots := make([]*config.Config, 0, len(list))
	for _, c := range list {
		rule, ok := c.Spec.(*networking.VirtualService)
		if !ok {
			continue
		}
		byKey[c.Meta.Key] = c
		if len(rule.GetHosts()) > 0 {
			roots = append(roots, c) // without hosts it is a delegate only
		}
	}
	converted := make(map[*config.Config]*VirtualService, len(api))
	for _, vs := range api {
		roots = append(roots, vs.Config)
		converted[vs.Config] = vs
	}
	slices.SortStableFunc(roots, config.Older)
	for _, c := range roots {
		vs := converted[c]
		if vs == nil {
			vs = before.get(c)
		}
		if vs == nil || !vs.upToDate(byKey) {
			vs = s.resolve(c, byKey)
		}
		idx.all = append(idx.all, vs)
		idx.byConfig[c] = vs
		if len(s.owners) > 0 {
			if of, known := before.limitedOf(vs); known {
				idx.limited[vs] = of
			} else if of := s.limited(vs); of != vs {
				idx.limited[vs] = of
			}
		}
		for _, gateway := range vs.Gateways {
			idx.byGateway[gateway] = append(idx.byGateway[gateway], vs)
		}
	}
	return idx
}

func (idx *virtualIndex) get(c *config.Config) *VirtualService {
	if idx == nil {
		return nil
	}
	return idx.byConfig[c]
}

// limitedOf returns what limited has of a VirtualService.
func (idx *virtualIndex) limitedOf(vs *VirtualService) (of *VirtualService, known bool) {
	if idx == nil {
		return nil, false
	}
	of, known = idx.limited[vs]
	return of, known
}

// onlyHTTP reports whether the VirtualServices that another index does not have, have routes of HTTP only.
func (idx *virtualIndex) onlyHTTP(other *virtualIndex) bool {
	for c, vs := range idx.byConfig {
		if other.byConfig[c] != vs && len(vs.Rule.GetTls())+len(vs.Rule.GetTcp()) > 0 {
			return false
		}
	}
	return true
}

// upToDate reports whether the delegates are those that were merged.
func (vs *VirtualService) upToDate(byKey map[config.Key]*config.Config) bool {
	for i, key := range vs.Delegates {
		if byKey[key] != vs.delegateConfigs[i] {
			return false
		}
	}
	return true
}

// resolve returns a document with full names. The document itself is not changed.
func (s *Snapshot) resolve(c *config.Config, byKey map[config.Key]*config.Config) *VirtualService {
	rule := proto.CloneOf(c.Spec.(*networking.VirtualService))
	vs := &VirtualService{Config: c, Rule: rule, ExportTo: config.ExportedTo(rule.GetExportTo(), s.Mesh.GetDefaultVirtualServiceExportTo(), c.Namespace)}
	for i, host := range rule.Hosts {
		name := s.fqdn(host, c.Namespace)
		rule.Hosts[i] = string(name)
		vs.Hosts = append(vs.Hosts, name)
	}
	resolveGateways(rule.Gateways, c.Namespace)
	vs.Gateways = rule.Gateways
	if len(vs.Gateways) == 0 {
		vs.Gateways = []string{MeshGateway}
	}
	for _, route := range rule.Http {
		s.resolveHTTP(route, c.Namespace)
	}
	for _, route := range rule.Tls {
		for _, m := range route.Match {
			resolveGateways(m.Gateways, c.Namespace)
		}
		s.resolveWeighted(route.Route, c.Namespace)
	}
	for _, route := range rule.Tcp {
		for _, m := range route.Match {
			resolveGateways(m.Gateways, c.Namespace)
		}
		s.resolveWeighted(route.Route, c.Namespace)
	}
	s.mergeDelegates(vs, byKey)
	return vs.measured()
}

// Origin returns the document of a route of HTTP in Rule.
func (vs *VirtualService) Origin(route int) config.Key {
	if vs.origins == nil {
		return vs.Meta.Key
	}
	return vs.origins[route]
}

// resolveGateways gives the names of gateways in a document their namespace.
func resolveGateways(names []string, namespace string) {
	for i, name := range names {
		if name != MeshGateway && !strings.Contains(name, "/") {
			names[i] = namespace + "/" + name
		}
	}
}

// resolveHTTP gives the names in a route of a document of a namespace their full form.
func (s *Snapshot) resolveHTTP(route *networking.HTTPRoute, namespace string) {
	for _, m := range route.Match {
		resolveGateways(m.Gateways, namespace)
	}
	destination := func(d *networking.Destination) {
		if d != nil {
			d.Host = string(s.fqdn(d.Host, namespace))
		}
	}
	for _, to := range route.Route {
		destination(to.Destination)
	}
	destination(route.Mirror)
	for _, mirror := range route.Mirrors {
		destination(mirror.Destination)
	}
}

func (s *Snapshot) resolveWeighted(routes []*networking.RouteDestination, namespace string) {
	for _, to := range routes {
		if to.Destination != nil {
			to.Destination.Host = string(s.fqdn(to.Destination.Host, namespace))
		}
	}
}

// mergeDelegates puts the routes of delegates in the place of the routes that refer to them. Names in a
// delegate are meant in its own namespace, as in Istio. A route whose delegate does not exist, or is not
// visible from here, is left out, and so is one of a delegate for which there is no room (config.Delegation).
func (s *Snapshot) mergeDelegates(vs *VirtualService, byKey map[config.Key]*config.Config) {
	var merged []*networking.HTTPRoute
	var origins []config.Key
	room := config.NewDelegation(vs.Rule)
	for _, root := range vs.Rule.Http {
		if root.Delegate == nil {
			merged, origins = append(merged, root), append(origins, vs.Meta.Key)
			continue
		}
		key := config.Key{
			Kind: config.VirtualService, Name: root.Delegate.Name,
			Namespace: cmp.Or(root.Delegate.Namespace, vs.Namespace),
		}
		c := byKey[key]
		vs.Delegates = append(vs.Delegates, key)
		vs.delegateConfigs = append(vs.delegateConfigs, c)
		if c == nil {
			continue
		}
		rule := c.Spec.(*networking.VirtualService)
		if len(rule.Hosts) > 0 || !exportedTo(config.ExportedTo(rule.ExportTo, s.Mesh.GetDefaultVirtualServiceExportTo(), key.Namespace), vs.Namespace) {
			continue
		}
		for _, delegate := range rule.Http {
			if delegate.Delegate != nil || !room.Takes(root, delegate) {
				continue
			}
			resolved := proto.CloneOf(delegate)
			s.resolveHTTP(resolved, key.Namespace)
			if route := mergeRoute(root, resolved); route != nil {
				merged, origins = append(merged, route), append(origins, key)
			}
		}
	}
	vs.Rule.Http = merged
	if len(vs.Delegates) > 0 {
		vs.origins = origins
	}
}

// mergeRoute returns the route of a delegate with what the root sets and the delegate does not; nil
// if the delegate has a match that is within none of the root's: as with istiod, the delegate then asks for what it was not given.
func mergeRoute(root, delegate *networking.HTTPRoute) *networking.HTTPRoute {
	out := proto.CloneOf(delegate)
	switch {
	case len(root.Match) == 0:
	case len(delegate.Match) == 0:
		out.Match = proto.CloneOf(root).Match
	default:
		out.Match = nil
		for _, d := range delegate.Match {
			before := len(out.Match)
			for _, r := range root.Match {
				if m := mergeMatch(r, d); m != nil {
					out.Match = append(out.Match, m)
				}
			}
			if len(out.Match) == before {
				return nil
			}
		}
	}
	if root.Name != "" && delegate.Name != "" {
		out.Name = root.Name + "-" + delegate.Name
	} else {
		out.Name = root.Name + delegate.Name
	}
	from := root.ProtoReflect()
	to := out.ProtoReflect()
	for _, name := range []string{
		"rewrite", "timeout", "retries", "fault", "mirror", "mirror_percent", "mirror_percentage", "cors_policy", "headers", "mirrors",
	} {
		field := from.Descriptor().Fields().ByTextName(name)
		if !to.Has(field) && from.Has(field) {
			to.Set(field, proto.Clone(root).ProtoReflect().Get(field))
		}
	}
	return out
}

// mergeMatch returns the match of requests that match both; nil if there are none, which is decided
// as Istio decides it: the paths must be one within the other, and what both say of anything else
// must be the same.
func mergeMatch(root, delegate *networking.HTTPMatchRequest) *networking.HTTPMatchRequest {
	path, ok := mergePath(root.Uri, delegate.Uri)
	if !ok {
		return nil // most are not within one another: nothing is copied for them
	}
	out := proto.CloneOf(delegate)
	out.Uri = path
	from, to := proto.CloneOf(root).ProtoReflect(), out.ProtoReflect()
	for _, name := range []string{"scheme", "method", "authority", "port", "source_namespace", "stat_prefix", "gateways"} {
		field := from.Descriptor().Fields().ByTextName(name)
		switch {
		case !from.Has(field):
		case !to.Has(field):
			to.Set(field, from.Get(field))
		case !from.Get(field).Equal(to.Get(field)):
			return nil
		}
	}
	if !mergeMap(&out.Headers, root.Headers) || !mergeMap(&out.WithoutHeaders, root.WithoutHeaders) || !mergeMap(&out.QueryParams, root.QueryParams) {
		return nil
	}
	if out.SourceLabels == nil {
		out.SourceLabels = make(map[string]string)
	}
	for key, value := range root.SourceLabels {
		if has, is := out.SourceLabels[key]; is && has != value {
			return nil
		}
		out.SourceLabels[key] = value
	}
	out.IgnoreUriCase = root.IgnoreUriCase || delegate.IgnoreUriCase
	out.Name = strings.Trim(root.Name+"-"+delegate.Name, "-")
	return out
}

func mergeMap(into *map[string]*networking.StringMatch, from map[string]*networking.StringMatch) bool {
	for name, match := range from {
		if *into == nil {
			*into = make(map[string]*networking.StringMatch)
		}
		if has, is := (*into)[name]; is && !proto.Equal(has, match) {
			return false
		}
		(*into)[name] = match
	}
	return true
}

// mergePath returns the narrower of two paths.
func mergePath(root, delegate *networking.StringMatch) (merged *networking.StringMatch, ok bool) {
	switch {
	case root == nil:
		return delegate, true
	case delegate == nil:
		return root, true
	case root.GetRegex() != "" || delegate.GetRegex() != "":
		return nil, false
	case root.GetExact() != "":
		return delegate, delegate.GetExact() == root.GetExact()
	case delegate.GetExact() != "":
		return delegate, strings.HasPrefix(delegate.GetExact(), root.GetPrefix())
	}
	return delegate, strings.HasPrefix(delegate.GetPrefix(), root.GetPrefix())
}

// VirtualServices returns the VirtualServices of a gateway, or of MeshGateway, that proxies of a
// namespace see: first those of their namespace alone, then routes of the Gateway API in it, then the others, the oldest first.
func (s *Snapshot) VirtualServices(gateway, namespace string) []*VirtualService {
	if gateway == ingressGateway {
		return s.ingress.virtual
	}
	var own, converted, others []*VirtualService
	for _, vs := range s.virtual.byGateway[gateway] {
		whole := vs
		if of, limited := s.virtual.limited[vs]; limited && vs.Namespace != namespace {
			if vs = of; vs == nil {
				continue
			}
		}
		if n := s.hostsAt(gateway, whole); n < len(whole.Hosts) {
			if vs = vs.only(whole.Hosts[:n]); vs == nil {
				continue
			}
		}
		switch {
		case !exportedTo(vs.ExportTo, namespace):
		case vs.Namespace == namespace && !vs.ExportTo["*"]:
			own = append(own, vs)
		case vs.Namespace == namespace && vs.GatewayAPI:
			converted = append(converted, vs)
		default:
			others = append(others, vs)
		}
	}
	return slices.Concat(own, converted, others)
}

func lower(s string) string     { return strings.ToLower(s) }
func containsDot(s string) bool { return strings.Contains(s, ".") }

// compareServices is the order in which services get a host that several have, unless one of them is of the client's own namespace
// (precedes): those of Kubernetes before any ServiceEntry, whose author may choose any host, and then the oldest first.
func compareServices(a, b *service.Service) int {
	if is := a.Registry == kubernetes; is != (b.Registry == kubernetes) {
		if is {
			return -1
		}
		return 1
	}
	return byAge(a, b)
}

// precedes reports whether proxies of a namespace mean a rather than b, which has the same host and comes later in the order of
// compareServices: that of their own namespace, or else the first.
func precedes(namespace string, a, b *service.Service) bool {
	return a.Namespace == namespace || b.Namespace != namespace
}

// sortFor sorts services in the order in which they get an address and a port, or a name, that several have at proxies of a namespace: those
// of the namespace itself, then those of Kubernetes, then the oldest. The endpoints of a headless Service, which its author names, are such
// addresses, too: they come after the virtual addresses of the services that are older. So a headless Service comes among the ServiceEntries
// by its age if one of these is older and has an address and a port for which the two may contend; the endpoints are not known here. So does
// a Service of Kubernetes with an address from the range of those that services without one are given: no cluster gives it such an address.
func sortFor(namespace string, list []*service.Service) {
	oldest := make(map[uint32]config.Age) // of the ServiceEntries with an address, by their ports
	for _, svc := range list {
		if svc.Registry == kubernetes || len(svc.Addresses)+len(svc.AutoAddresses) == 0 {
			continue
		}
		for _, port := range svc.Ports {
			if age, has := oldest[port.Number]; !port.Protocol.IsHTTP() && (!has || svc.Age.Compare(age) < 0) {
				oldest[port.Number] = svc.Age
			}
		}
	}
	late := func(svc *service.Service) bool {
		return slices.ContainsFunc(svc.Addresses, config.InAutomaticRange) || svc.Headless && slices.ContainsFunc(svc.Ports, func(port service.Port) bool {
			age, has := oldest[port.Number]
			return has && !port.Protocol.IsHTTP() && age.Compare(svc.Age) < 0
		})
	}
	ranks := make(map[*service.Service]int, len(list))
	for _, svc := range list {
		if svc.Namespace != namespace {
			ranks[svc] += 2
		}
		if svc.Registry != kubernetes || late(svc) {
			ranks[svc]++
		}
	}
	slices.SortFunc(list, func(a, b *service.Service) int { return cmp.Or(cmp.Compare(ranks[a], ranks[b]), byAge(a, b)) })
}

func byAge(a, b *service.Service) int {
	return cmp.Or(a.Age.Compare(b.Age), cmp.Compare(a.Hostname, b.Hostname), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.To, b.To))
}
