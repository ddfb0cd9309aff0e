package push

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// NetworkGateway is a gateway through which the endpoints of a network are reached from other networks.
type NetworkGateway struct {
	Network string
	// Cluster is the id of the cluster that has its Service, "" for one that the MeshNetworks name.
	Cluster string
	Address string // an IP address or a DNS name
	Port    uint32
}

// networkIndex has the networks of the mesh. It does not change.
type networkIndex struct {
	// Resolved are the gateways that have an IP address, All also those that have a name.
	Resolved, All Networks
	prefixes      []networkPrefix
	registries    map[string]string // cluster to network
}

type networkPrefix struct {
	prefix  netip.Prefix
	network string
}

// Networks are the gateways of networks. It does not change.
type Networks struct {
	ByNetwork map[string][]NetworkGateway
	ByCluster map[NetworkCluster][]NetworkGateway
}

// NetworkCluster is the part of a network that is in a cluster.
type NetworkCluster struct{ Network, Cluster string }

// Any reports whether there is any gateway, so that the mesh has several networks.
func (n *Networks) Any() bool { return len(n.ByNetwork) > 0 }

// Gateways returns the gateways of a network, those in a cluster if it has any, in order.
func (n *Networks) Gateways(network, cluster string) []NetworkGateway {
	if own := n.ByCluster[NetworkCluster{network, cluster}]; len(own) > 0 {
		return own
	}
	return n.ByNetwork[network]
}

// indexNetworks returns the networks that the MeshNetworks, the Services of gateways and the Nodes of these say;
// before if they are the same. root is the root namespace.
func indexNetworks(src Source, domain, root string, before *networkIndex) *networkIndex {
	idx := &networkIndex{registries: make(map[string]string)}
	all := make(map[NetworkGateway]struct{})
	named := make(map[service.Hostname][]NetworkGateway) // gateways that are named by their Service
	documents, services := slices.SortedFunc(slices.Values(src.List(config.MeshNetworks, "")), config.Older), src.List(config.Service, "")
	owners := config.NetworkOwnersOf(services, documents, root, domain)
	for _, c := range documents {
		if spec, ok := c.Spec.(*meshv1alpha1.MeshNetworks); ok {
			idx.add(spec, src.Cluster(), all, named)
		}
	}
	nodes := sync.OnceValue(func() []*config.Config { return src.List(config.Node, "") })
	for _, c := range services {
		spec, ok := c.Spec.(*corev1.Service)
		if !ok {
			continue
		}
		gateways := named[service.Hostname(c.Name+"."+c.Namespace+".svc."+domain)]
		switch network := config.GatewayNetwork(c); {
		case network != "" && owners.Grants(c, network):
			gateways = []NetworkGateway{{Network: network, Port: uint32(config.NetworkGatewayPort(c.Labels))}} //nolint:gosec // it is a port of the Service
		case network == "" && c.Labels[config.NetworkLabel] != "":
			gateways = nil // it does not have the port of a gateway
		}
		for _, gw := range gateways {
			for _, at := range externalAddresses(c, spec, gw.Port, nodes) {
				gw.Cluster, gw.Address, gw.Port = src.Cluster(), at.address, at.port
				all[gw] = struct{}{}
			}
		}
	}
	slices.SortStableFunc(idx.prefixes, func(a, b networkPrefix) int { return cmp.Compare(a.prefix.Bits(), b.prefix.Bits()) }) // as with istiod, the widest counts
	idx.Resolved, idx.All = newNetworks(all, true), newNetworks(all, false)
	if reflect.DeepEqual(idx, before) {
		return before
	}
	return idx
}

// add adds what a MeshNetworks says.
func (idx *networkIndex) add(spec *meshv1alpha1.MeshNetworks, cluster string, all map[NetworkGateway]struct{}, named map[service.Hostname][]NetworkGateway) {
	for _, name := range slices.Sorted(maps.Keys(spec.GetNetworks())) {
		network := spec.Networks[name]
		here := false
		for _, endpoints := range network.GetEndpoints() {
			if prefix, err := parsePrefix(endpoints.GetFromCidr()); err == nil {
				idx.prefixes = append(idx.prefixes, networkPrefix{prefix, name})
			}
			if registry := endpoints.GetFromRegistry(); registry != "" {
				here = here || registry == cluster
				idx.registries[registry] = cmp.Or(idx.registries[registry], name)
			}
		}
		for _, gw := range network.GetGateways() {
			gateway := NetworkGateway{Network: name, Address: gw.GetAddress(), Port: gw.GetPort()}
			if gateway.Address != "" {
				all[gateway] = struct{}{}
			}
			if host := service.Hostname(gw.GetRegistryServiceName()); host != "" && here {
				named[host] = append(named[host], gateway)
			}
		}
	}
}

// parsePrefix parses a prefix or an address.
func parsePrefix(text string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

// externalAddress is where a port of a Service is reached from outside its cluster.
type externalAddress struct {
	address string
	port    uint32
}

// externalAddresses returns where a port of a Service is reached from outside its cluster: at its load balancer and its
// externalIPs or, if it has neither and selects Nodes, at these. A Service that selects Nodes is reached at its nodePort
// wherever that is, as with istiod, and nowhere if a port of it has none.
func externalAddresses(c *config.Config, spec *corev1.Service, port uint32, nodes func() []*config.Config) (out []externalAddress) {
	if spec.Spec.Type == corev1.ServiceTypeLoadBalancer {
		for _, ingress := range spec.Status.LoadBalancer.Ingress {
			if address := cmp.Or(ingress.IP, ingress.Hostname); address != "" {
				out = append(out, externalAddress{address, port})
			}
		}
	}
	selector, atNodes := config.NodeSelector(c)
	if atNodes {
		if number, ok := config.NodePort(spec, port); ok {
			port = number
		}
		if port == 0 {
			return nil
		}
	}
	for _, address := range spec.Spec.ExternalIPs {
		out = append(out, externalAddress{address, port})
	}
	if !atNodes || len(out) > 0 {
		return out
	}
	for _, node := range nodes() {
		if address := nodeAddress(node, selector); address != "" {
			out = append(out, externalAddress{address, port})
		}
	}
	return out
}

// nodeAddress returns the address of a Node if it has one and labels select it, else "". The Node may be nil.
func nodeAddress(node *config.Config, selector map[string]string) string {
	if node == nil || !config.SelectsNode(selector, node) {
		return ""
	}
	return config.NodeAddress(node)
}

// Compare orders gateways by their addresses.
func (g NetworkGateway) Compare(o NetworkGateway) int {
	return cmp.Or(cmp.Compare(g.Address, o.Address), cmp.Compare(g.Port, o.Port), cmp.Compare(g.Network, o.Network), cmp.Compare(g.Cluster, o.Cluster))
}

// newNetworks indexes gateways: all, or those with an IP address.
func newNetworks(all map[NetworkGateway]struct{}, resolved bool) Networks {
	n := Networks{ByNetwork: make(map[string][]NetworkGateway), ByCluster: make(map[NetworkCluster][]NetworkGateway)}
	sorted := slices.SortedFunc(maps.Keys(all), NetworkGateway.Compare)
	for _, gw := range sorted {
		if _, err := netip.ParseAddr(gw.Address); err != nil && resolved {
			continue
		}
		n.ByNetwork[gw.Network] = append(n.ByNetwork[gw.Network], gw)
		key := NetworkCluster{gw.Network, gw.Cluster}
		n.ByCluster[key] = append(n.ByCluster[key], gw)
	}
	return n
}

// Networks returns the gateways of networks. Clusters whose endpoints a proxy resolves by DNS (dns) may
// have gateways with names, too.
func (s *Snapshot) Networks(dns bool) *Networks {
	if dns {
		return &s.networks.All
	}
	return &s.networks.Resolved
}

// NetworkOf returns the network of an endpoint, "" for none: that of its labels, its WorkloadEntry or its
// namespace, or else the one of its cluster or of its address in the MeshNetworks.
func (s *Snapshot) NetworkOf(ep *service.Endpoint) string {
	if ep.Network != "" {
		return ep.Network
	}
	if network := s.networks.registries[ep.Cluster]; network != "" {
		return network
	}
	ip, err := netip.ParseAddr(ep.Address)
	if err != nil {
		return ""
	}
	for _, p := range s.networks.prefixes {
		if p.prefix.Contains(ip.Unmap()) {
			return p.network
		}
	}
	return ""
}

// IsNetworkGateway reports whether a Service may be the gateway of a network.
func IsNetworkGateway(c *config.Config, networks []*config.Config, domain string) bool {
	if c == nil {
		return false
	}
	if c.Labels[config.NetworkLabel] != "" {
		return true
	}
	host := c.Name + "." + c.Namespace + ".svc." + domain
	for _, n := range networks {
		spec, ok := n.Spec.(*meshv1alpha1.MeshNetworks)
		if !ok {
			continue
		}
		for _, network := range spec.GetNetworks() {
			if slices.ContainsFunc(network.GetGateways(), func(gw *meshv1alpha1.Network_IstioNetworkGateway) bool {
				return gw.GetRegistryServiceName() == host
			}) {
				return true
			}
		}
	}
	return false
}

// MovesGateways reports whether a change of a Node, from old to now, either of which may be nil, changes where the
// gateways of networks are reached that are among Services.
func MovesGateways(old, now *config.Config, services, networks []*config.Config, domain string) bool {
	return slices.ContainsFunc(services, func(c *config.Config) bool {
		selector, atNodes := config.NodeSelector(c)
		return atNodes && nodeAddress(old, selector) != nodeAddress(now, selector) && IsNetworkGateway(c, networks, domain)
	})
}
