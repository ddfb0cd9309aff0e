package config

import (
	"cmp"
	"fmt"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
)

// GatewayNetwork returns the network of which a Service is a gateway by its label NetworkLabel; "" for none: it does not have the label, or
// not the port of a gateway (NetworkGatewayPort).
func GatewayNetwork(c *Config) string {
	network, port := c.Labels[NetworkLabel], NetworkGatewayPort(c.Labels)
	spec, ok := c.Spec.(*corev1.Service)
	if network == "" || !ok || !slices.ContainsFunc(spec.Spec.Ports, func(p corev1.ServicePort) bool { return int64(p.Port) == port }) {
		return ""
	}
	return network
}

// NetworkOwners are the documents that say where networks are reached, by the names of these: everything that goes to a network passes its
// gateways, so that nobody adds one to the network of another namespace. The owner is the MeshNetworks, if they name a gateway of the network;
// or else the oldest Service of the root namespace that is a gateway of it by its label; or else the oldest of any namespace.
type NetworkOwners struct {
	root, domain string
	owners       map[string]*Config
	// named are the Services that MeshNetworks name, each with a network of which they make it a gateway.
	named map[namedGateway]bool
}

type namedGateway struct{ network, host string }

// NetworkOwnersOf returns the owners of the networks that Services and MeshNetworks name. root is the root namespace of the mesh, and domain
// that of Kubernetes' Services.
func NetworkOwnersOf(services, networks []*Config, root, domain string) NetworkOwners {
	out := NetworkOwners{root, domain, make(map[string]*Config), make(map[namedGateway]bool)}
	for _, c := range networks {
		spec, _ := c.Spec.(*meshv1alpha1.MeshNetworks)
		for name, network := range spec.GetNetworks() {
			for _, gw := range network.GetGateways() {
				if out.owners[name] == nil && (gw.GetAddress() != "" || gw.GetRegistryServiceName() != "") {
					out.owners[name] = c
				}
				out.named[namedGateway{name, gw.GetRegistryServiceName()}] = true
			}
		}
	}
	sorted := slices.Clone(services)
	slices.SortFunc(sorted, func(a, b *Config) int {
		elsewhere := func(c *Config) int {
			if c.Namespace == root {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(elsewhere(a), elsewhere(b)), Older(a, b))
	})
	for _, c := range sorted {
		if network := GatewayNetwork(c); network != "" && out.owners[network] == nil {
			out.owners[network] = c
		}
	}
	return out
}

// Of returns the owner of a network; nil for none.
func (o NetworkOwners) Of(network string) *Config { return o.owners[network] }

// Grants reports whether a Service may be a gateway of a network by its label: it is of the root namespace, or of that of the owner, or the
// MeshNetworks name it.
func (o NetworkOwners) Grants(c *Config, network string) bool {
	owner := o.owners[network]
	return c.Namespace == o.root || owner == nil || owner.Kind == Service && owner.Namespace == c.Namespace ||
		o.named[namedGateway{network, c.Name + "." + c.Namespace + ".svc." + o.domain}]
}

// networkGateways finds Services that are to be gateways of a network of another namespace.
func (x *contests) networkGateways() {
	services, root := x.reader.List(Service, ""), cmp.Or(x.mesh.GetRootNamespace(), RootNamespace)
	owners := NetworkOwnersOf(services, x.reader.List(MeshNetworks, ""), root, x.domain)
	for _, c := range services {
		network := GatewayNetwork(c)
		if network == "" || owners.Grants(c, network) {
			continue
		}
		owner, consequence := owners.Of(network), "it is older, and nothing goes to the network through a gateway of another namespace"
		switch {
		case owner.Kind == MeshNetworks:
			consequence = "it names its gateways, and no other Service is one but those of the namespace " + root
		case owner.Namespace == root:
			consequence = "the root namespace comes first, and nothing goes to the network through a gateway of another one"
		}
		at := (&path{name: "metadata"}).field("labels").field(NetworkLabel)
		x.add(ContestedNetwork, owner, c, at, "", fmt.Sprintf("the gateways of the network %q", network), consequence)
	}
}
