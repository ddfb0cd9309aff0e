package server

import (
	"maps"
	"runtime"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/generate"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// generation is what was generated from one snapshot, by class of proxies (mesh.md M5). It generates
// on demand, and each thing once.
type generation struct {
	number uint64
	*generate.Generator

	clusters, listeners, routes, inbound part
	// slots bounds how many classes are generated at once, also of the generations before and after.
	slots proxy.Slots

	endpoints endpoints
}

// newGeneration returns the generation that follows before, which may be nil. Endpoints of which
// nothing that they depend on has changed are taken over. failed is told of the patches of EnvoyFilters that
// are left out of what is generated.
func newGeneration(snap *push.Snapshot, endpoints generate.Endpoints, before *generation, r *push.Request, m *Metrics, failed func([]generate.Failure)) *generation {
	generator := generate.New(snap, endpoints)
	if before != nil && !r.Everything() {
		generator = generate.After(before.Generator, snap, endpoints, before.endpoints.changed(r.Services))
	}
	gen := &generation{
		number: 1, Generator: generator, slots: make(proxy.Slots, runtime.GOMAXPROCS(0)),
		endpoints: newEndpoints(),
	}
	gen.clusters.generate, gen.listeners.generate, gen.routes.generate, gen.inbound.generate = gen.OutboundClusters, gen.OutboundListeners, gen.OutboundRoutes, gen.Inbound
	for i, p := range gen.parts() {
		p.types, p.looked = parts[i].types, func(d time.Duration) { m.looked(parts[i].name, d) }
		p.failed, p.slots = failed, gen.slots
	}
	if before == nil {
		return gen
	}
	gen.number, gen.slots = before.number+1, before.slots
	var keeps keeping
	if !r.Everything() && len(r.Services) == 0 {
		keeps = gen.keep(before)
	}
	for i, p := range gen.parts() {
		p.slots = gen.slots
		p.follow(before.parts()[i], before.Snapshot(), keeps[i])
	}
	if all, hosts := affectedHosts(r); !all {
		gen.endpoints.adopt(&before.endpoints, hosts)
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

// keeping says of each part whether the resources of a proxy are those of the generation before; nil for never.
type keeping [len(parts)]func(*proxy.Proxy) bool

// keep returns what the generation keeps: what a change of VirtualServices, policies or Secrets alone does not concern. The
// services have not changed, nor have endpoints that are part of clusters or listeners.
func (gen *generation) keep(before *generation) (keeps keeping) {
	now, then := gen.Snapshot(), before.Snapshot()
	differs := now.Since(then)
	if differs&push.Anything != 0 {
		return keeps
	}
	isSidecar := func(who *proxy.Proxy) bool { return who.Type == proxy.Sidecar }
	// With other VirtualServices a sidecar may reach other services, and a gateway does.
	sameServices := func(who *proxy.Proxy) bool {
		return isSidecar(who) && now.Scope(proxy.NewView(who)).SameServices(then.Scope(proxy.NewView(who)))
	}
	routes := differs&(push.HTTPRoutes|push.Routes) != 0
	policies := differs&push.Policies != 0       // they concern connections to the workload, and those to a gateway
	telemetries := differs&push.Telemetries != 0 // they are part of listeners
	return keeping{
		func(who *proxy.Proxy) bool { return (!routes || sameServices(who)) && (!policies || isSidecar(who)) },
		func(who *proxy.Proxy) bool {
			return differs&push.Routes == 0 && !telemetries && (!routes || sameServices(who)) && (!policies || isSidecar(who))
		},
		func(*proxy.Proxy) bool { return !routes },
		func(who *proxy.Proxy) bool {
			if gen.AddsInbound(proxy.NewView(who)) {
				return false
			}
			return !policies && !telemetries && (!routes || !isSidecar(who) || sameServices(who)) // which collectors it reaches
		},
	}
}

// configuration is what a proxy gets of a generation: for connections that it opens, and for those to its workload.
type configuration struct {
	tables [2]resources
	// clusters is its class of clusters.
	clusters *class
}

// of returns the configuration of a proxy; ok is false if gone was closed while it waited for it. A nil gone is never closed.
func (gen *generation) of(who *proxy.Proxy, gone <-chan struct{}) (c configuration, ok bool) {
	c.tables[0] = make(resources)
	for _, p := range []*part{&gen.clusters, &gen.listeners, &gen.routes} {
		of, ok := p.of(who, gone)
		if !ok {
			return c, false
		}
		maps.Copy(c.tables[0], of.resources)
		if p == &gen.clusters {
			c.clusters = of
		}
	}
	inbound, ok := gen.inbound.of(who, gone)
	if !ok {
		return c, false
	}
	c.tables[1] = inbound.resources
	return c, true
}

// retain forgets what was generated for classes that none of these proxies is of: clients say who they are, so that what is kept
// would otherwise grow with each that comes and goes.
func (gen *generation) retain(proxies []*proxy.Proxy) {
	namespaces := make(map[string]bool)
	for _, who := range proxies {
		namespaces[who.Namespace] = true
	}
	gen.Snapshot().RetainScopes(namespaces)
	for _, p := range gen.parts() {
		p.retain(proxies, namespaces)
	}
	gen.endpoints.retain(proxies)
	gen.Retain(proxies)
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
