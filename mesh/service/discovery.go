package service

import (
	"cmp"
	"maps"
	"slices"
)

// Instance is a port of a service at one endpoint of it.
type Instance struct {
	Service  *Service
	Port     Port
	Endpoint *Endpoint
}

// Proxy is what a proxy says of itself, as far as its services depend on it.
type Proxy struct {
	// Addresses are the IP addresses of its workload.
	Addresses []string
	Namespace string
	// Labels are those of its workload. They select its services if no Pod has one of its addresses.
	Labels map[string]string
	// Cluster is the id of its cluster; "" if it does not say so.
	Cluster string
}

// Probe is a health check of a workload over HTTP.
type Probe struct {
	Path string
	Port uint32
}

// Registry is a source of services. Its methods may be called by several goroutines at once, and
// return what must not be changed.
type Registry interface {
	// Shard is the registry's part of Shards.
	Shard() ShardKey
	// Services returns all services, Service one of them or nil, ServicesOf those of a hostname in
	// all namespaces; in the order of their keys.
	Services() []*Service
	Service(key Key) *Service
	ServicesOf(host Hostname) []*Service
	// ProxyInstances returns the instances that a proxy stands before.
	ProxyInstances(p Proxy) []Instance
}

// Prober is a Registry that knows the health checks of workloads.
type Prober interface {
	ManagementPorts(address string) []Port
	HealthChecks(address string) []Probe
}

// Discovery is all registries as one. The order of the registries decides where they contradict each
// other, except that Kubernetes takes precedence: nobody takes the hostname of a Kubernetes Service
// away with a ServiceEntry. Its methods may be called by several goroutines at once. It has no state
// but the list of registries: when that changes, another Discovery takes its place, and
// Shards.DeleteShard forgets the endpoints of a registry that is gone.
type Discovery struct {
	registries []Registry
	shards     *Shards
}

// kubernetes is the name of the registry that takes precedence.
const kubernetes = "Kubernetes"

// NewDiscovery returns the registries as one. The shards must be those that the registries fill.
func NewDiscovery(shards *Shards, registries ...Registry) *Discovery {
	d := &Discovery{slices.Clone(registries), shards}
	slices.SortStableFunc(d.registries, func(a, b Registry) int {
		rank := func(r Registry) int {
			if r.Shard().Registry == kubernetes {
				return 0
			}
			return 1
		}
		return cmp.Compare(rank(a), rank(b))
	})
	return d
}

// Services returns all services in the order of their keys. One that Kubernetes registries of
// several clusters know has the definition of the first, with the virtual addresses and service
// accounts of all.
func (d *Discovery) Services() []*Service {
	byKey := map[Key]*Service{}
	for _, r := range d.registries {
		for _, s := range r.Services() {
			byKey[s.Key()] = merged(byKey[s.Key()], s)
		}
	}
	return slices.SortedFunc(maps.Values(byKey), func(a, b *Service) int { return CompareKeys(a.Key(), b.Key()) })
}

// merged returns a service with the addresses and accounts that a later registry adds; neither is
// changed.
func merged(s, o *Service) *Service {
	if s == nil {
		return o
	}
	if s.Registry != kubernetes || o.Registry != kubernetes {
		return s
	}
	both := *s
	both.ClusterVIPs = maps.Clone(s.ClusterVIPs)
	for cluster, addresses := range o.ClusterVIPs {
		if len(both.ClusterVIPs[cluster]) == 0 {
			if both.ClusterVIPs == nil {
				both.ClusterVIPs = map[string][]string{}
			}
			both.ClusterVIPs[cluster] = addresses
		}
	}
	both.ServiceAccounts = appendNew(slices.Clone(s.ServiceAccounts), o.ServiceAccounts)
	slices.Sort(both.ServiceAccounts)
	return &both
}

// Cluster returns the id of the cluster of the first Kubernetes registry; "" for none.
func (d *Discovery) Cluster() string {
	for _, r := range d.registries {
		if shard := r.Shard(); shard.Registry == kubernetes {
			return shard.Cluster
		}
	}
	return ""
}

// Service returns the service with a key, merged as in Services; nil if no registry knows it.
func (d *Discovery) Service(key Key) *Service {
	var out *Service
	for _, r := range d.registries {
		if s := r.Service(key); s != nil {
			out = merged(out, s)
		}
	}
	return out
}

// ServiceOf returns the service of a hostname; nil if no registry knows it. If several namespaces
// have one, it is that of Kubernetes, or else the oldest.
func (d *Discovery) ServiceOf(host Hostname) *Service {
	var best *Service
	for _, r := range d.registries {
		for _, s := range r.ServicesOf(host) {
			if best == nil || s.Registry == best.Registry && s.Key() != best.Key() && s.Age.Compare(best.Age) < 0 {
				best = s
			}
		}
	}
	if best == nil {
		return nil
	}
	return d.Service(best.Key())
}

// InstancesByPort returns the instances of a port of a service whose labels have all of the given
// ones, in the order of Shards.Endpoints. It is empty if the service has no such port.
func (d *Discovery) InstancesByPort(s *Service, number uint32, labels map[string]string) []Instance {
	port, ok := s.Port(number)
	if !ok {
		return nil
	}
	var out []Instance
	for _, e := range d.shards.Endpoints(s.Key()) {
		if e.PortName == port.Name && (len(labels) == 0 || selects(labels, e.Labels)) {
			out = append(out, Instance{s, port, e})
		}
	}
	return out
}

// Instances returns the instances of all ports of a service, in the order of its ports.
func (d *Discovery) Instances(s *Service, labels map[string]string) []Instance {
	var out []Instance
	for _, port := range s.Ports {
		out = append(out, d.InstancesByPort(s, port.Number, labels)...)
	}
	return out
}

// ProxyInstances returns the instances that a proxy stands before: those at its addresses or, if
// these are not known, those of the services of its namespace that select its labels. Kubernetes
// registries of other clusters than the proxy's are not asked.
func (d *Discovery) ProxyInstances(p Proxy) []Instance {
	var out []Instance
	for _, r := range d.registries {
		shard := r.Shard()
		if shard.Registry == kubernetes && p.Cluster != "" && shard.Cluster != p.Cluster {
			continue
		}
		out = append(out, r.ProxyInstances(p)...)
	}
	return out
}

// ManagementPorts returns the ports at which the workload of an IP address is probed.
func (d *Discovery) ManagementPorts(address string) []Port {
	return probed(d, func(p Prober) []Port { return p.ManagementPorts(address) })
}

// HealthChecks returns the health checks over HTTP of the workload of an IP address.
func (d *Discovery) HealthChecks(address string) []Probe {
	return probed(d, func(p Prober) []Probe { return p.HealthChecks(address) })
}

func probed[T comparable](d *Discovery, of func(Prober) []T) []T {
	var out []T
	for _, r := range d.registries {
		if p, ok := r.(Prober); ok {
			out = append(out, of(p)...)
		}
	}
	return out
}

// ServiceAccounts returns the SPIFFE ids that the endpoints of a service may have: those that its
// definition names and those that its endpoints have, sorted.
func (d *Discovery) ServiceAccounts(s *Service) []string {
	all := map[string]struct{}{}
	for _, account := range s.ServiceAccounts {
		all[account] = struct{}{}
	}
	for _, e := range d.shards.Endpoints(s.Key()) {
		if e.ServiceAccount != "" {
			all[e.ServiceAccount] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(all))
}
