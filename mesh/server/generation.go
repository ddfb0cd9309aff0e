package server

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/generate"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// table has the resources of one type that a class of proxies gets. It does not change.
type table struct {
	generate.Set
	// failures says which patches of EnvoyFilters are left out of the resources, in order.
	failures []string

	indexed sync.Once
	byHost  map[service.Hostname][]string
}

// clustersOf returns the names of the clusters of a host whose endpoints are sent apart (EDS), of a
// table of clusters.
func (t *table) clustersOf(host service.Hostname) []string {
	t.indexed.Do(func() {
		t.byHost = make(map[service.Hostname][]string)
		for name, r := range t.Set {
			if _, _, host, ok := generate.ParseClusterName(name); ok && r.EDSName != "" {
				t.byHost[host] = append(t.byHost[host], name)
			}
		}
	})
	return t.byHost[host]
}

// resources are the tables of a class, by type URL.
type resources map[string]*table

// assignments has the endpoints of one cluster: by class what proxies mean by it, and for all that mean the same, the
// endpoints by what else decides. Otherwise they would be generated for each namespace, which knows its own services.
type assignments struct {
	meanings proxy.Classes[meaning]
	byTarget map[generate.Target]*proxy.Classes[*xds.Resource]
}

// meaning is what a proxy means by a cluster, and the endpoints for those that mean that; classes is nil if the proxy
// does not have the cluster.
type meaning struct {
	generate.Target
	classes *proxy.Classes[*xds.Resource]
}

func newAssignments() *assignments {
	return &assignments{byTarget: make(map[generate.Target]*proxy.Classes[*xds.Resource])}
}

// of returns the endpoints of the cluster as a proxy gets them; nil if it does not have the cluster.
func (a *assignments) of(g *generate.Generator, who *proxy.Proxy, cluster string) *xds.Resource {
	m := a.meanings.Get(who, func(v *proxy.View) (m meaning) {
		target, ok := g.Target(v, cluster)
		if !ok {
			return m
		}
		if a.byTarget[target] == nil {
			a.byTarget[target] = &proxy.Classes[*xds.Resource]{}
		}
		return meaning{target, a.byTarget[target]}
	})
	if m.classes == nil {
		if _, has := g.Target(proxy.NewView(who), cluster); !has {
			return nil
		}
		// The scope of its class has grown since, which a change of a VirtualService may do.
		*a = *newAssignments()
		return a.of(g, who, cluster)
	}
	return m.classes.Get(who, func(v *proxy.View) *xds.Resource { return g.AssignmentOf(v, cluster, m.Target) })
}

// generation is what was generated from one snapshot, by class of proxies (mesh.md M5). It generates
// on demand, and each thing once.
type generation struct {
	number uint64
	*generate.Generator

	clusters, listeners, routes, inbound part

	// mu guards assignments, and those of the generations before and after, which share classes.
	mu *sync.Mutex
	// assignments has the endpoints of clusters by host and name.
	assignments map[service.Hostname]map[string]*assignments
}

// part has the resources of one part of the configuration by class.
type part struct {
	types    []string
	mu       sync.Mutex
	classes  proxy.Classes[resources]
	generate func(*proxy.View) *generate.Resources
	looked   func(generated time.Duration)
	failed   func([]generate.Failure)
	// keeps reports that the resources of a proxy are those of the generation before; nil for never.
	keeps  func(*proxy.Proxy) bool
	before *part // of the generation before; nil for none
	// latest has what was generated last, for any class: classes have most resources in common.
	latest resources
}

// newGeneration returns the generation that follows before, which may be nil. Endpoints of which
// nothing that they depend on has changed are taken over. failed is told of the patches of EnvoyFilters that
// are left out of what is generated.
func newGeneration(snap *push.Snapshot, endpoints generate.Endpoints, before *generation, r *push.Request, m *Metrics, failed func([]generate.Failure)) *generation {
	gen := &generation{
		number: 1, Generator: generate.New(snap, endpoints), mu: &sync.Mutex{},
		assignments: make(map[service.Hostname]map[string]*assignments),
	}
	gen.clusters.generate, gen.listeners.generate, gen.routes.generate, gen.inbound.generate = gen.OutboundClusters, gen.OutboundListeners, gen.OutboundRoutes, gen.Inbound
	for i, p := range gen.parts() {
		p.types, p.looked = parts[i].types, func(d time.Duration) { m.looked(parts[i].name, d) }
		p.failed = failed
	}
	if before == nil {
		return gen
	}
	gen.number, gen.mu = before.number+1, before.mu
	for i, p := range gen.parts() {
		p.before = before.parts()[i]
		p.before.mu.Lock()
		p.before.before, p.before.keeps = nil, nil // it may be in use for long
		p.before.mu.Unlock()
	}
	if !r.Everything() && len(r.Services) == 0 {
		gen.keep(before)
	}
	if all, hosts := affectedHosts(r); !all {
		gen.mu.Lock()
		defer gen.mu.Unlock()
		for host, clusters := range before.assignments {
			if !hosts[host] {
				gen.assignments[host] = maps.Clone(clusters)
			}
		}
	}
	return gen
}

// parts are the parts of a generation in their order, with the types of their resources.
var parts = [...]struct {
	name  string
	types []string
}{
	{"clusters", []string{xds.ClusterType}}, {"listeners", []string{xds.ListenerType, xds.ExtensionConfigType, xds.BootstrapType}},
	{"routes", []string{xds.RouteType, xds.VirtualHostType}}, {"inbound", []string{xds.ClusterType, xds.ListenerType}},
}

func (gen *generation) parts() [len(parts)]*part {
	return [...]*part{&gen.clusters, &gen.listeners, &gen.routes, &gen.inbound}
}

// keep lets the generation keep what a change of VirtualServices, policies or Secrets alone does not concern. The
// services have not changed, nor have endpoints that are part of clusters or listeners.
func (gen *generation) keep(before *generation) {
	now, then := gen.Snapshot(), before.Snapshot()
	differs := now.Since(then)
	if differs&push.Anything != 0 {
		return
	}
	isSidecar := func(who *proxy.Proxy) bool { return who.Type == proxy.Sidecar }
	// With other VirtualServices a sidecar may reach other services, and a gateway does.
	sameServices := func(who *proxy.Proxy) bool {
		return isSidecar(who) && now.Scope(proxy.NewView(who)).SameServices(then.Scope(proxy.NewView(who)))
	}
	routes := differs&(push.HTTPRoutes|push.Routes) != 0
	policies := differs&push.Policies != 0       // they concern connections to the workload, and those to a gateway
	telemetries := differs&push.Telemetries != 0 // they are part of listeners
	gen.clusters.keeps = func(who *proxy.Proxy) bool { return (!routes || sameServices(who)) && (!policies || isSidecar(who)) }
	gen.listeners.keeps = func(who *proxy.Proxy) bool {
		return differs&push.Routes == 0 && !telemetries && (!routes || sameServices(who)) && (!policies || isSidecar(who))
	}
	gen.routes.keeps = func(*proxy.Proxy) bool { return !routes }
	gen.inbound.keeps = func(who *proxy.Proxy) bool {
		if gen.AddsInbound(proxy.NewView(who)) {
			return false
		}
		return !policies && !telemetries && (!routes || !isSidecar(who) || sameServices(who)) // which collectors it reaches
	}
}

// outboundOf returns the resources of a proxy for connections that it opens.
func (gen *generation) outboundOf(who *proxy.Proxy) resources {
	all := make(resources)
	for _, p := range []*part{&gen.clusters, &gen.listeners, &gen.routes} {
		maps.Copy(all, p.of(who))
	}
	return all
}

// affectedHosts returns the hosts whose endpoints a request may concern; all says that it may be any.
func affectedHosts(r *push.Request) (all bool, hosts map[service.Hostname]bool) {
	if r.Everything() {
		return true, nil
	}
	hosts = make(map[service.Hostname]bool)
	for key := range r.Services {
		hosts[key.Hostname] = true
	}
	for key := range r.Configs {
		switch key.Kind {
		case config.DestinationRule, config.BackendTLSPolicy, config.Sidecar, config.MeshConfig, config.Namespace, config.PeerAuthentication, push.AuthStep:
			return true, nil // they decide about subsets, localities, mutual TLS, and which service a host is
		}
	}
	return false, hosts
}

// of returns the resources of a proxy. Resources that are as they were in the generation before, or as
// another class has them, are the same objects, and so are whole tables.
func (p *part) of(who *proxy.Proxy) resources {
	p.mu.Lock()
	defer p.mu.Unlock()
	var generated time.Duration
	defer func() { p.looked(generated) }()
	if kept, ok := p.keep(who); ok {
		return kept
	}
	return p.classes.Get(who, func(v *proxy.View) resources {
		began := time.Now()
		made := p.generate(v)
		generated = time.Since(began)
		if len(made.Failures) > 0 {
			p.failed(made.Failures)
		}
		latest := p.latest
		var before resources
		if p.before != nil {
			p.before.mu.Lock()
			before, _ = p.before.classes.Find(who)
			p.before.mu.Unlock()
		}
		p.latest = resources{}
		for _, typeURL := range p.types {
			p.latest[typeURL] = share(&table{Set: made.Of(typeURL), failures: failuresOf(made.Failures, typeURL)}, before[typeURL], latest[typeURL])
		}
		return p.latest
	})
}

// keep returns the resources of a proxy in the generation before, if they have not changed.
func (p *part) keep(who *proxy.Proxy) (resources, bool) {
	if _, known := p.classes.Find(who); known || p.before == nil || p.keeps == nil || !p.keeps(who) {
		return nil, false
	}
	p.before.mu.Lock()
	defer p.before.mu.Unlock()
	return p.classes.Adopt(who, &p.before.classes)
}

// share returns a table, or one of the others if it is equal. A resource that is equal to one of the
// others is replaced by the first such. The others may be nil.
func share(made *table, others ...*table) *table {
	set := made.Set
	shared := make(map[string]bool, len(set))
	for _, other := range others {
		if other == nil {
			continue
		}
		equal := len(set) == len(other.Set) && slices.Equal(made.failures, other.failures)
		for name, r := range set {
			if same := other.Set[name]; same != nil && same.Version == r.Version && !shared[name] {
				set[name], shared[name] = same, true
			}
			equal = equal && set[name] == other.Set[name]
		}
		if equal {
			return other
		}
	}
	return made
}

// assignment returns the endpoints of a cluster as a proxy gets them; nil if it has no such cluster.
func (gen *generation) assignment(who *proxy.Proxy, cluster string) *xds.Resource {
	_, _, host, ok := generate.ParseClusterName(cluster)
	if !ok {
		return nil
	}
	gen.mu.Lock()
	defer gen.mu.Unlock()
	known := gen.assignments[host][cluster]
	if known == nil {
		known = newAssignments()
	}
	r := known.of(gen.Generator, who, cluster)
	if r == nil {
		return nil
	}
	if gen.assignments[host] == nil {
		gen.assignments[host] = make(map[string]*assignments)
	}
	gen.assignments[host][cluster] = known
	return r
}

// forgetEndpoints makes the endpoints of services be generated again.
func (gen *generation) forgetEndpoints(services map[service.Key]struct{}) {
	gen.mu.Lock()
	defer gen.mu.Unlock()
	for key := range services {
		delete(gen.assignments, key.Hostname)
	}
}
