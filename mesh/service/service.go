// Package service is the model of services and of their endpoints: Pilot's Service,
// ServiceInstance, EndpointShards and ServiceDiscovery.
//
// It promises that Service and Endpoint are immutable once they were handed on, and that a registry
// that is lost takes nothing away from the others. It does not decide which proxy sees what, and
// does not validate documents: what cannot be used of one is left out and reported.
//
// Registries (Entries, Kubernetes) read the documents of a config.Cache, whose handlers one
// goroutine calls at a time. Their other methods, and those of Shards and Discovery, may be called by
// several goroutines at once.
package service

import (
	"strings"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// Hostname is the name of a service: a DNS name, or one whose first label is "*".
type Hostname string

// IsWildcard reports whether the name stands for several hosts.
func (h Hostname) IsWildcard() bool { return len(h) > 0 && h[0] == '*' }

// Matches reports whether two names have a host in common.
func (h Hostname) Matches(o Hostname) bool { return h.SubsetOf(o) || o.SubsetOf(h) }

// Narrower returns that of two hostnames which is a subset of the other; ok is false if neither is.
func (h Hostname) Narrower(o Hostname) (narrow Hostname, ok bool) {
	switch {
	case h.SubsetOf(o):
		return h, true
	case o.SubsetOf(h):
		return o, true
	}
	return "", false
}

// SubsetOf reports whether every host of h is one of o.
func (h Hostname) SubsetOf(o Hostname) bool {
	if !o.IsWildcard() {
		return h == o
	}
	suffix := string(o[1:])
	if h.IsWildcard() {
		return strings.HasSuffix(string(h[1:]), suffix)
	}
	return len(h) > len(suffix) && strings.HasSuffix(string(h), suffix) || h == o
}

// MoreSpecific orders names: exact before wildcard, longer before shorter, then by alphabet.
func MoreSpecific(a, b Hostname) int {
	switch {
	case a.IsWildcard() != b.IsWildcard():
		if b.IsWildcard() {
			return -1
		}
		return 1
	case len(a) != len(b):
		return len(b) - len(a)
	}
	return strings.Compare(string(a), string(b))
}

// Resolution is how a client finds the endpoints of a service.
type Resolution uint8

const (
	// ClientSide: the proxy chooses among the endpoints that it is sent (EDS).
	ClientSide Resolution = iota
	// DNS: the proxy resolves the endpoints' names and chooses among all addresses.
	DNS
	// DNSRoundRobin: the proxy resolves one name and takes the first address.
	DNSRoundRobin
	// Passthrough: the proxy forwards to the address that the application chose.
	Passthrough
	// DynamicDNS: the proxy resolves the host that a request or a connection names (HTTP, SNI), of those
	// that a wildcard stands for.
	DynamicDNS
	// Alias: it has no endpoints of its own: it is another name of ExternalName, a service of the mesh.
	Alias
)

// Distribution says which endpoints of a service a proxy prefers while they are healthy.
type Distribution uint8

const (
	// DistributionUnset: the namespace of the service decides, or else the mesh.
	DistributionUnset Distribution = iota
	// DistributionAny: all are the same.
	DistributionAny
	// PreferSameZone: those of the proxy's zone, then of its region, then of its network.
	PreferSameZone
	// PreferSameNode: those of the proxy's node, then of its subzone, and then as PreferSameZone.
	PreferSameNode
)

// annotationDistribution is the annotation of Services, ServiceEntries and Namespaces that says it.
const annotationDistribution = "networking.istio.io/traffic-distribution"

// ParseDistribution returns the distribution that a Service's trafficDistribution or an annotation
// names. As in Istio, one that is not known is DistributionAny.
func ParseDistribution(text string) Distribution {
	switch strings.ToLower(text) {
	case "":
		return DistributionUnset
	case "preferclose", "prefersamezone":
		return PreferSameZone
	case "prefersamenode":
		return PreferSameNode
	}
	return DistributionAny
}

// DistributionOf returns what the annotations of a Namespace say for the services in it.
func DistributionOf(annotations map[string]string) Distribution {
	return ParseDistribution(annotations[annotationDistribution])
}

// Port is a port of a service.
type Port struct {
	Name     string
	Number   uint32
	Protocol Protocol
	// TargetPort is the port to which the proxy forwards connections of a Passthrough service; 0 for
	// the same one. The endpoints of other services have their own.
	TargetPort uint32
}

// External is the name of the registry of ServiceEntries and WorkloadEntries.
const External = "External"

// Service is a service of the mesh, or one outside that a ServiceEntry describes.
type Service struct {
	Hostname  Hostname
	Namespace string
	// Name is the name of the object that describes it.
	Name  string
	Ports []Port
	// Addresses are its virtual addresses in the cluster of this control plane: IP addresses or
	// prefixes; none for a headless service. ClusterVIPs has those of a Kubernetes Service in each
	// cluster that has it, by the id of the cluster.
	Addresses   []string
	ClusterVIPs map[string][]string
	// AutoAddresses are addresses that no network has: names that have no address are resolved to them
	// in front of proxies that capture DNS, so that these tell connections to the service from others.
	// Addresses is empty if there are any.
	AutoAddresses []string
	Resolution    Resolution
	// MeshExternal: its endpoints are not part of the mesh, and have no sidecar.
	MeshExternal bool
	// Headless: a Kubernetes Service without a virtual address; clients use the endpoints' addresses.
	Headless bool
	// ExternalName is the host that a Service of the type ExternalName is another name for; "" for others.
	ExternalName Hostname
	// NodeLocal: a proxy uses the endpoints of its own node only.
	NodeLocal bool
	// Distribution says which endpoints a proxy prefers.
	Distribution Distribution
	// ExportTo lists the namespaces that see it: names, "*" for all, "~" for none. It is never
	// empty, and never has ".".
	ExportTo map[string]bool
	// DefaultExport says that it does not say itself who sees it, so that the mesh configuration may.
	DefaultExport bool
	Labels        map[string]string
	// ServiceAccounts are the SPIFFE ids that its endpoints may have, sorted.
	ServiceAccounts []string
	Age             config.Age
	To              string // that of its Key
	// Registry names the registry that knows it: "Kubernetes" or External.
	Registry string
	Origin   config.Key
}

// Port returns the port with a number.
func (s *Service) Port(number uint32) (Port, bool) {
	for _, p := range s.Ports {
		if p.Number == number {
			return p, true
		}
	}
	return Port{}, false
}

// PortByName returns the port with a name.
func (s *Service) PortByName(name string) (Port, bool) {
	for _, p := range s.Ports {
		if p.Name == name {
			return p, true
		}
	}
	return Port{}, false
}

// VisibleFrom reports whether proxies of a namespace see the service.
func (s *Service) VisibleFrom(namespace string) bool {
	return s.ExportTo["*"] || s.ExportTo[namespace]
}

// AddressesIn returns the virtual addresses of the service as proxies of a cluster see them: those of
// that cluster, or else Addresses.
func (s *Service) AddressesIn(cluster string) []string {
	if own := s.ClusterVIPs[cluster]; len(own) > 0 {
		return own
	}
	return s.Addresses
}
