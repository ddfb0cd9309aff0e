package config

import (
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// validateMeshNetworks checks the networks of the mesh.
func validateMeshNetworks(k *checker, spec *meshv1alpha1.MeshNetworks) {
	for _, name := range sortedKeys(spec.GetNetworks()) {
		at, network := (*path)(nil).field("networks").field(name), spec.Networks[name]
		if !isLabelValue(name) || name == "" {
			k.errorf(at, "%q is no name of a network: it is the value of a label", name)
		}
		for i, endpoints := range network.GetEndpoints() {
			at := at.field("endpoints").at(i)
			switch ne := endpoints.GetNe().(type) {
			case *meshv1alpha1.Network_NetworkEndpoints_FromCidr:
				k.report(at.field("fromCidr"), ne.FromCidr, prefixProblem(ne.FromCidr))
			case *meshv1alpha1.Network_NetworkEndpoints_FromRegistry:
				if !isDNSLabel(ne.FromRegistry) {
					k.errorf(at.field("fromRegistry"), "%q is no name of a cluster: use letters, digits and '-'", ne.FromRegistry)
				}
			default:
				k.warnf(NetworkIncomplete, at, "it says nothing: write fromCidr or fromRegistry")
			}
		}
		for i, gateway := range network.GetGateways() {
			at := at.field("gateways").at(i)
			k.port(at.field("port"), int64(gateway.GetPort()))
			switch gw := gateway.GetGw().(type) {
			case *meshv1alpha1.Network_IstioNetworkGateway_Address:
				k.gatewayAddress(at.field("address"), gw.Address)
			case *meshv1alpha1.Network_IstioNetworkGateway_RegistryServiceName:
				k.report(at.field("registryServiceName"), gw.RegistryServiceName, hostProblem(gw.RegistryServiceName))
			default:
				k.warnf(NetworkIncomplete, at, "it says nothing: write address or registryServiceName")
			}
		}
	}
}

// gatewayAddress checks the address of a gateway of a network.
func (k *checker) gatewayAddress(at *path, address string) {
	switch {
	case isIP(address):
	case hostProblem(address) != "":
		k.errorf(at, "%q is neither an IP address nor a host", address)
	default:
		k.warnf(NetworkIncomplete, at, "only proxies resolve names: the gateway is used for services with the resolution DNS, and not for those whose endpoints have IP addresses")
	}
}
