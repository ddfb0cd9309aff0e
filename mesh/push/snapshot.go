package push

import (
	"maps"
	"slices"
	"sync"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Source is what a Snapshot is made of. Services lists the services of all registries; what it
// returns must not be changed. Cluster is the id of the cluster of the Kubernetes Services, "" for none.
type Source interface {
	config.Reader
	KeyReader
	Services() []*service.Service
	Cluster() string
}

// Snapshot is the configuration and the services at one moment. The endpoints are not part of it,
// because most of their changes concern nothing else (mesh.md M3).
type Snapshot struct {
	// Mesh is the mesh configuration with its defaults.
	Mesh *meshv1alpha1.MeshConfig
	// Domain is the DNS domain of Kubernetes Services, "cluster.local".
	Domain string

	// owners are the namespaces whose hosts are, as the mesh configuration says.
	owners         config.HostOwners
	scopesGateways bool // a Gateway selects proxies of its own namespace alone

	namespaces   *namespaceIndex
	clusterLocal []clusterLocal

	services *serviceIndex
	virtual  *virtualIndex
	rules    *ruleIndex
	sidecars *sidecarIndex
	gateways []*GatewayConfig
	auth     *peerAuth
	// authorization has the AuthorizationPolicies, tokens the RequestAuthentications.
	authorization *policyIndex[*AuthorizationPolicy]
	tokens        *policyIndex[[]TokenRule]
	networks      *networkIndex
	telemetry     *telemetryIndex
	ingress       *ingress
	filters       *filterIndex
	// api is what documents of the Gateway API say; the other indexes have it, too.
	api *gatewayAPI
	// credentials are those of the Secrets.
	credentials map[config.Key]*config.Credential

	// gatewaysByRef has the gateways by the names by which VirtualServices refer to them.
	gatewaysByRef map[string]boundedGateway

	mu     sync.Mutex
	scopes map[scopeKey]func() *Scope // what returns one makes it when it is called first
	// reaches and wide have what is left out of VirtualServices, and the services for which wildcards of DestinationRules have subsets.
	reaches map[reachKey]*reach
	wide    map[*DestinationRule]map[*service.Service]bool
	// atGateway has how many hosts gateways have of VirtualServices that may make too much there.
	atGateway map[gatewayPair]int
}

// New makes the snapshot that follows before, which may be nil, after a change of documents and
// services. It computes only what depends on the kinds of documents that changed; nil stands for
// all. servicesChanged says whether Source.Services may differ.
func New(src Source, domain string, before *Snapshot, changed map[config.Kind]bool, servicesChanged bool) *Snapshot {
	if before == nil {
		before, changed, servicesChanged = &Snapshot{}, nil, true
	}
	s := &Snapshot{Domain: domain, scopes: make(map[scopeKey]func() *Scope)}
	is := func(kind config.Kind) bool { return changed == nil || changed[kind] }
	s.Mesh = before.Mesh
	s.clusterLocal = before.clusterLocal
	s.owners, s.scopesGateways = before.owners, before.scopesGateways
	if is(config.MeshConfig) {
		s.Mesh = meshConfig(src)
		s.clusterLocal = indexClusterLocal(s.Mesh, domain)
		s.owners, s.scopesGateways = nil, false
		for _, c := range src.List(config.MeshConfig, "") {
			s.owners, s.scopesGateways = config.HostOwnersOf(c), config.ScopesGateways(c)
		}
	}
	s.namespaces = before.namespaces
	if is(config.Namespace) {
		s.namespaces = indexNamespaces(src.List(config.Namespace, ""))
	}
	// Defaults of MeshConfig are part of what the others compute.
	mesh := s.Mesh != before.Mesh
	if mesh || is(config.Namespace) && len(s.Mesh.GetDiscoverySelectors()) > 0 {
		changed, servicesChanged = nil, true
	}
	if len(s.Mesh.GetDiscoverySelectors()) > 0 {
		src = discovered{src, s}
	}
	s.services = before.services
	if servicesChanged || mesh || is(config.Namespace) && s.Mesh.GetServiceEntryVisibility().GetApplyToSidecars() {
		s.indexServices(src.Services(), before.services)
	}
	s.api = before.api
	if convertsAgain(is) || servicesChanged || mesh {
		s.api = convertGatewayAPI(src, domain, before.api)
	}
	s.virtual = before.virtual
	if is(config.VirtualService) || mesh || !slices.Equal(s.api.virtual, before.api.routes()) {
		indexed := before.virtual
		if mesh {
			indexed = nil // defaultVirtualServiceExportTo may be another
		}
		s.virtual = s.indexVirtual(src.List(config.VirtualService, ""), s.api.virtual, indexed)
	}
	s.rules = before.rules
	if s.rules == nil || is(config.DestinationRule) || mesh || !slices.Equal(s.api.rules, before.api.policies()) {
		s.rules = s.indexRules(slices.Concat(src.List(config.DestinationRule, ""), s.api.rules))
	}
	s.sidecars = before.sidecars
	if is(config.Sidecar) {
		s.sidecars = indexSidecars(src.List(config.Sidecar, ""))
	}
	s.gateways = before.gateways
	if is(config.Gateway) || s.api != before.api || mesh {
		s.gateways = s.limitGateways(gatewaysOf(src.List(config.Gateway, ""), s.api.gateways, before.gateways))
	}
	s.gatewaysByRef = before.gatewaysByRef
	if s.gatewaysByRef == nil || !slices.Equal(s.gateways, before.gateways) {
		s.gatewaysByRef = indexGateways(s.gateways)
	}
	s.auth = before.auth
	if changed[AuthStep] {
		s.auth = s.auth.advance() // before the documents are read: no proxy has had those yet
	}
	if is(config.PeerAuthentication) || mesh {
		s.auth = s.auth.next(indexAuth(src.List(config.PeerAuthentication, ""), s.Mesh.GetRootNamespace()))
	}
	s.networks = before.networks
	if is(config.MeshNetworks) || is(config.Service) || is(config.Node) || mesh {
		s.networks = indexNetworks(src, domain, s.Mesh.GetRootNamespace(), before.networks)
	}
	s.authorization = before.authorization
	if is(config.AuthorizationPolicy) || mesh {
		s.authorization = indexAuthorization(src.List(config.AuthorizationPolicy, ""), s.Mesh.GetRootNamespace())
	}
	s.tokens = before.tokens
	if is(config.RequestAuthentication) || mesh {
		s.tokens = indexTokens(src.List(config.RequestAuthentication, ""), s.Mesh.GetRootNamespace(), src, before.tokens)
	}
	s.telemetry = before.telemetry
	if is(config.Telemetry) || mesh {
		s.telemetry = indexTelemetry(src.List(config.Telemetry, ""), s.Mesh.GetRootNamespace())
	}
	s.ingress = before.ingress
	if is(config.Ingress) || servicesChanged || mesh {
		s.ingress = s.newIngress(src.List(config.Ingress, ""))
	}
	s.filters = before.filters
	if is(config.EnvoyFilter) || mesh {
		s.filters = indexFilters(src.List(config.EnvoyFilter, ""), s.Mesh.GetRootNamespace(), before.filters)
	}
	s.credentials = before.credentials
	if is(config.Secret) {
		s.credentials = make(map[config.Key]*config.Credential)
		for _, c := range src.List(config.Secret, "") {
			if secret, ok := c.Spec.(*corev1.Secret); ok {
				credential := config.CredentialOf(secret)
				s.credentials[c.Meta.Key] = &credential
			}
		}
	}
	return s
}

// Difference says in what a snapshot differs from an earlier one, as a set; 0 means in Secrets at most.
type Difference uint

const (
	// HTTPRoutes of VirtualServices differ.
	HTTPRoutes Difference = 1 << iota
	// Routes: VirtualServices differ, and not in their routes of HTTP alone.
	Routes
	// Policies of who may do what differ: AuthorizationPolicies and RequestAuthentications.
	Policies
	// Telemetries differ: what is logged and traced.
	Telemetries

	// What follows is computed of documents, and each differs if it was computed anew.

	MeshConfig
	Namespaces
	Services
	Rules // DestinationRules, and policies of the Gateway API that become some
	Sidecars
	PeerAuthentications
	NetworkGateways
	EnvoyFilters
	Gateways     // with Ingresses
	BackendRoots // the certificates by which policies of the Gateway API verify backends

	// Anything is what may concern any part of the configuration.
	Anything = MeshConfig | Namespaces | Services | Rules | Sidecars | PeerAuthentications | NetworkGateways | EnvoyFilters | Gateways | BackendRoots
)

// Since returns in what the snapshot differs from an earlier one, of which it was made. It compares
// what is shared, so that a difference is also the answer for what was computed anew with the same result.
func (s *Snapshot) Since(before *Snapshot) (d Difference) {
	for _, part := range []struct {
		is   Difference
		same bool
	}{
		{MeshConfig, s.Mesh == before.Mesh && s.Domain == before.Domain},
		{Namespaces, s.namespaces == before.namespaces},
		{Services, s.services == before.services},
		{Rules, s.rules == before.rules},
		{Sidecars, s.sidecars == before.sidecars},
		{PeerAuthentications, s.auth == before.auth},
		{NetworkGateways, s.networks == before.networks},
		{EnvoyFilters, s.filters == before.filters},
		{Gateways, s.ingress == before.ingress && slices.Equal(s.gateways, before.gateways)},
		{BackendRoots, maps.Equal(s.api.roots, before.api.roots)},
		{Policies, s.samePolicies(before)},
		{Telemetries, s.telemetry == before.telemetry},
	} {
		if !part.same {
			d |= part.is
		}
	}
	switch {
	case s.virtual == before.virtual:
	case s.virtual.onlyHTTP(before.virtual) && before.virtual.onlyHTTP(s.virtual):
		d |= HTTPRoutes
	default:
		d |= Routes
	}
	return d
}

// meshConfig returns the mesh configuration with Istio's defaults.
func meshConfig(src Source) *meshv1alpha1.MeshConfig {
	mesh := DefaultMesh()
	for _, c := range src.List(config.MeshConfig, "") {
		if own, ok := c.Spec.(*meshv1alpha1.MeshConfig); ok {
			mergeMesh(mesh, own)
		}
	}
	return mesh
}

var everywhere = config.ExportedTo(nil, nil, "")

func exportedTo(set map[string]bool, namespace string) bool { return set["*"] || set[namespace] }

// fqdn returns a host as documents mean it: a name without a dot is a Service of the document's
// namespace.
func (s *Snapshot) fqdn(host, namespace string) service.Hostname {
	if host == "" || host == "*" || containsDot(host) {
		return service.Hostname(lower(host))
	}
	return service.Hostname(lower(host) + "." + namespace + ".svc." + s.Domain)
}

// serviceIndex has the services by name.
type serviceIndex struct {
	all []*service.Service // as compareServices
	// byHost has all services of a name, of all namespaces, as compareServices.
	byHost map[service.Hostname][]*service.Service
	// ports is how many ports all of them have, mostPorts how many one has at most.
	ports, mostPorts int
	// aliases are what stands in both for Services that are another name of a service, and targets what each of them is a name of.
	aliases map[*service.Service]*service.Service
	targets map[*service.Service]aliasTarget
}

// indexServices indexes services. Of which service an alias is the name depends on who sees what, so that it needs the mesh configuration,
// the owners and the namespaces.
func (s *Snapshot) indexServices(all []*service.Service, before *serviceIndex) {
	idx := &serviceIndex{all: slices.Clone(all), byHost: make(map[service.Hostname][]*service.Service, len(all))}
	slices.SortFunc(idx.all, compareServices)
	for _, svc := range idx.all {
		idx.byHost[svc.Hostname] = append(idx.byHost[svc.Hostname], svc)
		idx.ports, idx.mostPorts = idx.ports+len(svc.Ports), max(idx.mostPorts, len(svc.Ports))
	}
	s.services = idx
	s.resolveAliases(before)
}

// Services returns all services, those of Kubernetes first, and then oldest first.
func (s *Snapshot) Services() []*service.Service { return s.services.all }

// Has reports whether a service is one of the snapshot.
func (s *Snapshot) Has(svc *service.Service) bool {
	return slices.Contains(s.services.byHost[svc.Hostname], svc)
}

// Service returns the service that a proxy of a namespace means by a name: that of its own
// namespace, or else that of Kubernetes, or else the oldest that it sees; nil for none. For an alias it is the service that they
// reach by it.
func (s *Snapshot) Service(namespace string, host service.Hostname) *service.Service {
	found := s.named(namespace, host)
	if found != nil && found.Resolution == service.Alias {
		return s.aliased(namespace, found)
	}
	return found
}

// named is Service, with aliases as they are.
func (s *Snapshot) named(namespace string, host service.Hostname) *service.Service {
	var found *service.Service
	for _, svc := range s.services.byHost[host] {
		if !s.sees(namespace, svc) {
			continue
		}
		if found == nil || !precedes(namespace, found, svc) {
			found = svc
		}
	}
	return found
}

// kubernetes is the registry of services that no ServiceEntry describes.
const kubernetes = "Kubernetes"

// sees reports whether proxies of a namespace see a service.
func (s *Snapshot) sees(namespace string, svc *service.Service) bool {
	if svc.Registry != kubernetes {
		if !s.grants(svc.Namespace, namespace, svc.Hostname) {
			return false
		}
		switch s.entryVisibility(svc.Namespace) {
		case meshv1alpha1.ServiceEntryVisibility_NONE:
			return false
		case meshv1alpha1.ServiceEntryVisibility_NAMESPACE:
			if namespace != svc.Namespace {
				return false
			}
		}
	}
	if svc.DefaultExport {
		return exportedTo(config.ExportedTo(nil, s.Mesh.GetDefaultServiceExportTo(), svc.Namespace), namespace)
	}
	return svc.VisibleFrom(namespace)
}

// GatewayConfig is a Gateway document.
type GatewayConfig struct {
	*config.Config
	Gateway *networking.Gateway

	// of is the document of the Gateway API of which it is a listener; the zero Key for a Gateway of Istio. Its selector selects
	// nothing then, and the workloads of services serve it.
	of       config.Key
	services []string
	// limited is what routers of other namespaces have of it, because the mesh configuration names the owners of some of its hosts; nil if
	// they have the whole.
	limited *networking.Gateway
}

// Ref returns the name by which VirtualServices refer to the gateway: namespace/name.
func (g *GatewayConfig) Ref() string { return g.Namespace + "/" + g.Name }

// Gateways returns the Gateways that select a router, oldest first. The last is that of the Kubernetes
// Ingresses, which is also for the routers that the mesh configuration selects for them, and the only
// one of a proxy of the type ingress.
func (s *Snapshot) Gateways(v *proxy.View) []*GatewayConfig {
	var out []*GatewayConfig
	for _, gw := range s.gateways {
		if s.scopesGateways && gw.Namespace != v.Namespace() {
			continue
		}
		if v.Type() == proxy.Router && (gw.of == config.Key{} && v.SelectedBy(gw.Gateway.GetSelector()) || gw.of != config.Key{} && gw.servedBy(v)) {
			if gw.limited != nil && gw.Namespace != v.Namespace() {
				of := *gw
				of.Gateway = gw.limited
				gw = &of
			}
			out = append(out, gw)
		}
	}
	if gw := s.ingress.gateway; gw != nil && (v.Type() == proxy.Ingress || v.SelectedBy(gw.Gateway.GetSelector())) {
		out = append(out, gw)
	}
	return out
}

// Kinds returns the kinds of a set of documents.
func Kinds(keys map[config.Key]struct{}) map[config.Kind]bool {
	kinds := make(map[config.Kind]bool)
	for key := range maps.Keys(keys) {
		kinds[key.Kind] = true
	}
	return kinds
}
