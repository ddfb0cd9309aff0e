package service

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// Options configure a registry.
type Options struct {
	// Cluster is the id of the cluster whose documents the registry reads, "" for none.
	Cluster string
	// Domain is the DNS domain of Kubernetes Services, cluster.local if empty. TrustDomain is that
	// of service accounts if the mesh configuration names none, cluster.local if empty.
	Domain, TrustDomain string
	// Network is the network of workloads that name none.
	Network string
	// ExportTo lists the namespaces that see a service which does not say it, in the form of the
	// mesh configuration's defaultServiceExportTo; all namespaces if it is empty.
	ExportTo []string
	// Shards gets the endpoints. It may be shared by several registries; nil: it is not used.
	Shards *Shards
	// OnService is called after a service was added, removed, or changed its definition, and
	// OnEndpoints after endpoints of a service changed that was not removed. The endpoints are in
	// Shards before either is called. Nil: no one is told.
	OnService   func(ServiceEvent)
	OnEndpoints func(key Key, change Change)
	// Report is called for a document of which something cannot be used, with the reason. Nil: it
	// is not reported. It must not call the registry.
	Report func(c *config.Config, err error)
}

func (o *Options) domain() string      { return cmp.Or(o.Domain, "cluster.local") }
func (o *Options) trustDomain() string { return cmp.Or(o.TrustDomain, "cluster.local") }

// reportf reports what cannot be used of a document.
func (o *Options) reportf(c *config.Config, format string, args ...any) {
	if o.Report != nil {
		o.Report(c, fmt.Errorf("service: %s: "+format, append([]any{c.Key}, args...)...))
	}
}

// spiffeID returns the SPIFFE id of a service account.
func (o *Options) spiffeID(namespace, account string) string {
	return "spiffe://" + o.trustDomain() + "/ns/" + namespace + "/sa/" + account
}

// exportTo resolves the namespaces that see a service: "." is its own.
func (o *Options) exportTo(namespace string, listed []string) map[string]bool {
	return config.ExportedTo(listed, o.ExportTo, namespace)
}

// ServiceEvent is a change of a service's definition: Old is nil if it is new, New is nil if it was
// removed.
type ServiceEvent struct{ Old, New *Service }

// Key returns the key of the service that changed.
func (e ServiceEvent) Key() Key {
	if e.New != nil {
		return e.New.Key()
	}
	return e.Old.Key()
}

// registry has the services of one source with their endpoints.
type registry struct {
	options Options
	shard   ShardKey
	// trustDomain is that of the options, which holds while no mesh configuration names one.
	trustDomain string

	// mu guards what follows, and what the registry that embeds this one knows of documents.
	mu        sync.RWMutex
	services  map[Key]*Service
	endpoints map[Key][]*Endpoint
	byHost    map[Hostname]map[Key]struct{}
	// byAddress counts the endpoints of each service at an address.
	byAddress map[string]map[Key]int
}

func newRegistry(name string, options Options) registry {
	if options.Shards == nil {
		options.Shards = &Shards{}
	}
	return registry{
		options: options, shard: ShardKey{name, options.Cluster}, trustDomain: options.TrustDomain,
		services: map[Key]*Service{}, endpoints: map[Key][]*Endpoint{},
		byHost: map[Hostname]map[Key]struct{}{}, byAddress: map[string]map[Key]int{},
	}
}

// setTrustDomain takes in a change of the mesh configuration, and reports whether it has another trust
// domain. It is called with mu held for writing.
func (r *registry) setTrustDomain(e config.Event) (changed bool) {
	domain := r.trustDomain
	if e.New != nil {
		domain = cmp.Or(e.New.Spec.(*meshv1alpha1.MeshConfig).GetTrustDomain(), domain)
	}
	before := r.options.trustDomain()
	r.options.TrustDomain = domain
	return r.options.trustDomain() != before
}

// outcome is what a change of a document made of a service.
type outcome struct {
	key       Key
	event     ServiceEvent // both the same if the definition did not change
	endpoints []*Endpoint
}

// set replaces a service and its endpoints; nil removes it. It is called with mu held for writing.
func (r *registry) set(key Key, s *Service, endpoints []*Endpoint) outcome {
	old := r.services[key]
	if old != nil && s != nil && reflect.DeepEqual(old, s) {
		s = old
	}
	if s == nil {
		endpoints = nil
	}
	r.index(key, r.endpoints[key], endpoints)
	if s == nil {
		delete(r.services, key)
		delete(r.endpoints, key)
		without(r.byHost, key.Hostname, key)
	} else {
		r.services[key] = s
		r.endpoints[key] = endpoints
		with(r.byHost, key.Hostname, key)
	}
	return outcome{key, ServiceEvent{old, s}, endpoints}
}

// index replaces the addresses of the endpoints of a service. It costs what differs: endpoints that
// did not change are the same pointers, and in the same order.
func (r *registry) index(key Key, old, now []*Endpoint) {
	for len(old) > 0 && len(now) > 0 && old[0] == now[0] {
		old, now = old[1:], now[1:]
	}
	for len(old) > 0 && len(now) > 0 && old[len(old)-1] == now[len(now)-1] {
		old, now = old[:len(old)-1], now[:len(now)-1]
	}
	for _, e := range now {
		put(r.byAddress, e.Address, key, r.byAddress[e.Address][key]+1)
	}
	for _, e := range old {
		if n := r.byAddress[e.Address][key] - 1; n > 0 {
			r.byAddress[e.Address][key] = n
		} else {
			take(r.byAddress, e.Address, key)
		}
	}
}

// publish hands on what changed. It is called without mu, because handlers may read the registry.
func (r *registry) publish(outcomes []outcome) {
	for _, o := range outcomes {
		change := NoChange
		switch {
		case o.event.New != nil:
			change = r.options.Shards.Update(o.key, r.shard, o.endpoints)
		case o.event.Old != nil:
			r.options.Shards.Delete(o.key, r.shard)
		}
		if o.event.Old != o.event.New && r.options.OnService != nil {
			r.options.OnService(o.event)
		}
		if change != NoChange && r.options.OnEndpoints != nil {
			r.options.OnEndpoints(o.key, change)
		}
	}
}

// Shard returns the key of the registry's part of Shards.
func (r *registry) Shard() ShardKey { return r.shard }

// Services returns all services of the registry, in the order of their keys.
func (r *registry) Services() []*Service {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.SortedFunc(maps.Values(r.services), func(a, b *Service) int { return CompareKeys(a.Key(), b.Key()) })
}

// Service returns a service, nil if the registry does not know it.
func (r *registry) Service(key Key) *Service {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.services[key]
}

// ServicesOf returns the services of a hostname in all namespaces, in the order of their keys.
func (r *registry) ServicesOf(host Hostname) []*Service {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []*Service
	for _, key := range slices.SortedFunc(maps.Keys(r.byHost[host]), CompareKeys) {
		out = append(out, r.services[key])
	}
	return out
}

// at returns the instances at an address that services of a namespace have, or for "" all services.
// It is called with mu held.
func (r *registry) at(address, namespace string) []Instance {
	var out []Instance
	for _, key := range slices.SortedFunc(maps.Keys(r.byAddress[address]), CompareKeys) {
		if namespace != "" && key.Namespace != namespace {
			continue
		}
		here := slices.DeleteFunc(slices.Clone(r.endpoints[key]), func(e *Endpoint) bool { return e.Address != address })
		out = append(out, instancesOf(r.services[key], here)...)
	}
	return out
}

// instancesOf returns the instances of a service at endpoints, without those for ports that it does
// not have.
func instancesOf(s *Service, endpoints []*Endpoint) []Instance {
	var out []Instance
	for _, e := range endpoints {
		if port, ok := s.PortByName(e.PortName); ok {
			out = append(out, Instance{s, port, e})
		}
	}
	return out
}

// with adds a member to one of several sets, without removes it.
func with[K, M comparable](sets map[K]map[M]struct{}, key K, member M) {
	set := sets[key]
	if set == nil {
		set = map[M]struct{}{}
		sets[key] = set
	}
	set[member] = struct{}{}
}

func without[K, M comparable](sets map[K]map[M]struct{}, key K, member M) {
	if delete(sets[key], member); len(sets[key]) == 0 {
		delete(sets, key)
	}
}

// put puts a value under two keys, and take removes it.
func put[K1, K2 comparable, V any](maps map[K1]map[K2]V, k1 K1, k2 K2, v V) {
	inner := maps[k1]
	if inner == nil {
		inner = map[K2]V{}
		maps[k1] = inner
	}
	inner[k2] = v
}

func take[K1, K2 comparable, V any](maps map[K1]map[K2]V, k1 K1, k2 K2) {
	if delete(maps[k1], k2); len(maps[k1]) == 0 {
		delete(maps, k1)
	}
}

// compareDocuments orders the keys of documents by kind, namespace and name.
func compareDocuments(a, b config.Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
