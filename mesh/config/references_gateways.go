package config

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// gatewayPorts warns of servers of Gateways at a port that no Service of the same proxies has. It says nothing if no Service selects them
// for sure: by labels that the Gateway names, too.
func (x *references) gatewayPorts() {
	for _, c := range x.reader.List(Gateway, "") {
		spec := c.Spec.(*networking.Gateway)
		var names []string
		numbers, unknown := make(map[uint32]bool), false
		for _, service := range x.reader.List(Service, "") {
			of := service.Spec.(*corev1.Service).Spec
			if len(of.Selector) == 0 || !hasLabels(spec.Selector, of.Selector) {
				continue
			}
			names = append(names, service.Meta.Key.String())
			for _, port := range of.Ports {
				unknown = unknown || port.TargetPort.Type == intstr.String
				numbers[uint32(port.Port)], numbers[uint32(port.TargetPort.IntVal)] = true, true //nolint:gosec // ports are validated
			}
		}
		if len(names) == 0 || unknown {
			continue
		}
		slices.Sort(names)
		for i, server := range spec.Servers {
			if number := server.GetPort().GetNumber(); number != 0 && !numbers[number] {
				x.warn(GatewayPortWithoutService, c, (&path{name: "spec"}).field("servers").at(i).fields("port.number"), "no Service of these proxies has the port %d: %s", number, strings.Join(names, ", "))
			}
		}
	}
}

// gatewayHosts warns of a Gateway of a VirtualService of which no server has any of its hosts, and of a host that none of its Gateways has. A
// host may be for one of them, or for the mesh, alone.
func (x *references) gatewayHosts(c *Config) {
	spec, root := c.Spec.(*networking.VirtualService), &path{name: "spec"}
	served := make([]bool, len(spec.Hosts)) // somewhere, or it is not known
	for i, name := range spec.Gateways {
		var gateway *Config
		if name != meshGateway {
			gateway = x.reader.Get(gatewayKey(name, c.Namespace))
		}
		if gateway != nil && tooManyPairs(gateway.Spec.(*networking.Gateway), len(spec.Hosts)) {
			gateway = nil // together warns
		}
		some := false
		for j, host := range spec.Hosts {
			host = x.resolve(host, c.Namespace)
			if gateway == nil || slices.ContainsFunc(gateway.Spec.(*networking.Gateway).Servers, func(s *networking.Server) bool { return serves(s, gateway.Namespace, host, c.Namespace) }) {
				served[j], some = true, true
			}
		}
		if !some && len(spec.Hosts) > 0 {
			x.warn(HostNotInGateway, c, root.field("gateways").at(i), "no server of %s has a host of this document for documents of the namespace %s", gateway.Meta.Key, c.Namespace)
		}
	}
	for j, host := range spec.Hosts {
		if !served[j] && slices.Contains(served, true) { // else the Gateways are named
			x.warn(HostNotInGateway, c, root.field("hosts").at(j), "no server of its Gateways has the host %q for documents of the namespace %s", host, c.Namespace)
		}
	}
}

// serves reports whether a server of a Gateway takes requests for a host from a VirtualService of a namespace.
func serves(server *networking.Server, of, host, namespace string) bool {
	return slices.ContainsFunc(server.GetHosts(), func(text string) bool {
		if from, _, limited := strings.Cut(text, "/"); limited && from != "*" && from != namespace && (from != "." || of != namespace) {
			return false
		}
		own := hostOf(text)
		return own == "*" || hostWithin(host, own) || hostWithin(own, host)
	})
}

// gatewayKey returns the Gateway that a document of a namespace names.
func gatewayKey(text, namespace string) Key {
	key := Key{Gateway, namespace, text}
	if of, name, found := strings.Cut(text, "/"); found {
		key.Namespace, key.Name = of, name
	} else if labels := strings.Split(text, "."); len(labels) > 1 {
		key.Namespace, key.Name = labels[1], labels[0]
	}
	return key
}
