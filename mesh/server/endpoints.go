package server

import (
	"maps"
	"slices"
	"sync"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/generate"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// endpoints has the endpoints of clusters by host. Proxies that mean the same by a cluster, of whichever class and namespace they
// are, share them by what else decides. Its methods may be called concurrently.
type endpoints struct {
	mu     sync.Mutex
	byHost map[service.Hostname]*hostEndpoints
	// forgotten are the services whose endpoints were forgotten.
	forgotten map[service.Key]struct{}
}

// hostEndpoints has the endpoints of the clusters of a host. Generations share it until something changes on which they depend.
type hostEndpoints struct {
	mu        sync.Mutex
	byMeaning map[meaning]*assignment
}

// meaning is a cluster and what a proxy means by it.
type meaning struct {
	cluster string
	generate.Target
}

// assignment has the endpoints of a meaning by class.
type assignment struct {
	meaning
	mu      sync.Mutex
	classes proxy.Classes[*xds.Resource]
}

// assigned are the assignments of the clusters of a class.
type assigned struct {
	mu        sync.Mutex
	byCluster map[string]*assignment
}

func newEndpoints() endpoints {
	return endpoints{byHost: make(map[service.Hostname]*hostEndpoints), forgotten: make(map[service.Key]struct{})}
}

// adopt takes over the endpoints of another generation but for those of some hosts.
func (e *endpoints) adopt(before *endpoints, without map[service.Hostname]bool) {
	before.mu.Lock()
	defer before.mu.Unlock()
	for host, of := range before.byHost {
		if !without[host] {
			e.byHost[host] = of
		}
	}
}

// of returns the assignment of what a cluster of a host means.
func (e *endpoints) of(host service.Hostname, m meaning) *assignment {
	e.mu.Lock()
	of := e.byHost[host]
	if of == nil {
		of = &hostEndpoints{byMeaning: make(map[meaning]*assignment)}
		e.byHost[host] = of
	}
	e.mu.Unlock()
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.byMeaning[m] == nil {
		of.byMeaning[m] = &assignment{meaning: m}
	}
	return of.byMeaning[m]
}

// all returns the assignments of a host; e.mu must be held.
func (e *endpoints) all(host service.Hostname) []*assignment {
	of := e.byHost[host]
	if of == nil {
		return nil
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	return slices.Collect(maps.Values(of.byMeaning))
}

// forget makes the endpoints of services be generated again.
func (e *endpoints) forget(services map[service.Key]struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key := range services {
		e.forgotten[key] = struct{}{}
		for _, a := range e.all(key.Hostname) {
			a.update(func(classes *proxy.Classes[*xds.Resource]) { *classes = proxy.Classes[*xds.Resource]{} })
		}
	}
}

// changed returns services, and those whose endpoints were forgotten.
func (e *endpoints) changed(services map[service.Key]struct{}) map[service.Key]struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := maps.Clone(e.forgotten)
	maps.Copy(all, services)
	return all
}

// retain forgets the classes that none of the proxies is of.
func (e *endpoints) retain(proxies []*proxy.Proxy) {
	e.mu.Lock()
	var all []*assignment
	for host := range e.byHost {
		all = append(all, e.all(host)...)
	}
	e.mu.Unlock()
	for _, a := range all {
		a.update(func(classes *proxy.Classes[*xds.Resource]) { classes.Retain(proxies) })
	}
}

// update changes the classes. It waits for what is being generated, which may be of former endpoints.
func (a *assignment) update(change func(*proxy.Classes[*xds.Resource])) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.classes)
}

// get returns the endpoints for the class of a proxy.
func (a *assignment) get(g *generate.Generator, who *proxy.Proxy) *xds.Resource {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.classes.Get(who, func(v *proxy.View) *xds.Resource { return g.AssignmentOf(v, a.cluster, a.Target) })
}

func (a *assigned) find(cluster string) *assignment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byCluster[cluster]
}

func (a *assigned) put(cluster string, to *assignment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byCluster == nil {
		a.byCluster = make(map[string]*assignment)
	}
	a.byCluster[cluster] = to
}

// assignment returns the endpoints of a cluster as a proxy gets them; nil if it has no such cluster. clusters is its class of clusters.
func (gen *generation) assignment(who *proxy.Proxy, clusters *class, cluster string) *xds.Resource {
	if a := clusters.assigned.find(cluster); a != nil {
		return a.get(gen.Generator, who)
	}
	_, _, host, ok := generate.ParseClusterName(cluster)
	if !ok {
		return nil
	}
	v := proxy.NewView(who)
	target, ok := gen.Target(v, cluster)
	if !ok {
		return nil
	}
	if clusters.resources[xds.ClusterType].Set[cluster] == nil || !v.ReadOnly(clusters.read) {
		return gen.AssignmentOf(v, cluster, target) // a client may ask for anything: nothing is kept of what its class does not have
	}
	a := gen.endpoints.of(host, meaning{cluster, target})
	clusters.assigned.put(cluster, a)
	return a.get(gen.Generator, who)
}
