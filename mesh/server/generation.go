package server

import (
	"maps"
	"sync"

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

// assignmentClasses has the endpoints of one cluster by class of proxies.
type assignmentClasses = proxy.Classes[*xds.Resource]

// generation is what was generated from one snapshot, by class of proxies (mesh.md M5). It generates
// on demand, and each thing once.
type generation struct {
	number uint64
	*generate.Generator

	outbound, inbound part

	// mu guards assignments, and those of the generations before and after, which share classes.
	mu *sync.Mutex
	// assignments has the endpoints of clusters by host and name.
	assignments map[service.Hostname]map[string]*assignmentClasses
}

// part has the resources of one half of the configuration by class.
type part struct {
	mu       sync.Mutex
	classes  proxy.Classes[resources]
	generate func(*proxy.View) *generate.Resources
	before   *part // of the generation before; nil for none
}

// newGeneration returns the generation that follows before, which may be nil. Endpoints of which
// nothing that they depend on has changed are taken over.
func newGeneration(snap *push.Snapshot, endpoints generate.Endpoints, before *generation, r *push.Request) *generation {
	gen := &generation{
		number: 1, Generator: generate.New(snap, endpoints), mu: &sync.Mutex{},
		assignments: make(map[service.Hostname]map[string]*assignmentClasses),
	}
	gen.outbound.generate, gen.inbound.generate = gen.Outbound, gen.Inbound
	if before == nil {
		return gen
	}
	gen.number, gen.mu = before.number+1, before.mu
	gen.outbound.before, gen.inbound.before = &before.outbound, &before.inbound
	before.outbound.before, before.inbound.before = nil, nil
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
		case config.DestinationRule, config.Sidecar, config.MeshConfig:
			return true, nil // they decide about subsets, localities, and which service a host is
		}
	}
	return false, hosts
}

// of returns the resources of a proxy. Resources that are as they were in the generation before are
// the same objects, and so are whole tables.
func (p *part) of(who *proxy.Proxy) resources {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.classes.Get(who, func(v *proxy.View) resources {
		made := p.generate(v)
		var before resources
		if p.before != nil {
			p.before.mu.Lock()
			before, _ = p.before.classes.Find(who)
			p.before.mu.Unlock()
		}
		return resources{
			xds.ClusterType:  share(made.Clusters, before[xds.ClusterType]),
			xds.ListenerType: share(made.Listeners, before[xds.ListenerType]),
			xds.RouteType:    share(made.Routes, before[xds.RouteType]),
		}
	})
}

// share returns the table of a set, or the one before if that is equal.
func share(set generate.Set, before *table) *table {
	if before == nil {
		return &table{Set: set}
	}
	equal := len(set) == len(before.Set)
	for name, r := range set {
		if old := before.Set[name]; old != nil && old.Version == r.Version {
			set[name] = old
		} else {
			equal = false
		}
	}
	if equal {
		return before
	}
	return &table{Set: set}
}

// classes returns the numbers of classes of both parts.
func (gen *generation) classes() (outbound, inbound int) {
	gen.outbound.mu.Lock()
	defer gen.outbound.mu.Unlock()
	gen.inbound.mu.Lock()
	defer gen.inbound.mu.Unlock()
	return gen.outbound.classes.Len(), gen.inbound.classes.Len()
}

// assignment returns the endpoints of a cluster as a proxy gets them; nil if it has no such cluster.
func (gen *generation) assignment(who *proxy.Proxy, cluster string) *xds.Resource {
	_, _, host, ok := generate.ParseClusterName(cluster)
	if !ok {
		return nil
	}
	gen.mu.Lock()
	defer gen.mu.Unlock()
	classes := gen.assignments[host][cluster]
	if classes == nil {
		classes = &assignmentClasses{}
	}
	r := classes.Get(who, func(v *proxy.View) *xds.Resource { return gen.Assignment(v, cluster) })
	if r == nil {
		return nil // that a proxy does not have it is not remembered: its scope may grow
	}
	if gen.assignments[host] == nil {
		gen.assignments[host] = make(map[string]*assignmentClasses)
	}
	gen.assignments[host][cluster] = classes
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
