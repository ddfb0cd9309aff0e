package config

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// validateService checks a Kubernetes Service as far as traffic is concerned.
func validateService(k *checker, service *corev1.Service) {
	root, spec := &path{name: "spec"}, &service.Spec
	if !isDNSLabel(k.config.Name) {
		k.errorf((&path{name: "metadata"}).field("name"), "the name of a Service must not have dots")
	}
	switch spec.Type {
	case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		if len(spec.Ports) == 0 && spec.ClusterIP != corev1.ClusterIPNone {
			k.errorf(root.field("ports"), "must have at least one port")
		}
	case corev1.ServiceTypeExternalName:
		k.report(root.field("externalName"), spec.ExternalName, hostProblem(spec.ExternalName))
	default:
		k.errorf(root.field("type"), "%q is no type: write ClusterIP, NodePort, LoadBalancer or ExternalName", spec.Type)
	}
	if spec.ClusterIP != "" && spec.ClusterIP != corev1.ClusterIPNone {
		k.report(root.field("clusterIP"), spec.ClusterIP, ipProblem(spec.ClusterIP))
	}
	for i, address := range spec.ClusterIPs {
		if address != corev1.ClusterIPNone {
			k.report(root.field("clusterIPs").at(i), address, ipProblem(address))
		}
	}
	addresses := spec.ClusterIPs
	if len(addresses) == 0 {
		addresses = []string{spec.ClusterIP}
	}
	k.automaticRange(root.field("clusterIP"), addresses, "it is not this one's while an older service has it")
	if len(spec.ClusterIPs) > 0 && spec.ClusterIP != "" && spec.ClusterIPs[0] != spec.ClusterIP {
		k.errorf(root.field("clusterIPs").at(0), "must be the clusterIP")
	}
	type transportPort struct {
		protocol corev1.Protocol
		number   int32
	}
	names, numbers := make(map[string]int), make(map[transportPort]int)
	for i, port := range spec.Ports {
		at := root.field("ports").at(i)
		k.port(at.field("port"), int64(port.Port))
		k.transport(at.field("protocol"), port.Protocol)
		k.servicePortName(at.field("name"), port.Name, i, len(spec.Ports), names)
		number := transportPort{cmp.Or(port.Protocol, corev1.ProtocolTCP), port.Port}
		if before, twice := numbers[number]; twice {
			k.errorf(at.field("port"), "%d is the port of ports[%d] too", port.Port, before)
		}
		numbers[number] = i
		if port.TargetPort.IntVal != 0 {
			k.port(at.field("targetPort"), int64(port.TargetPort.IntVal))
		}
		if port.NodePort != 0 {
			k.port(at.field("nodePort"), int64(port.NodePort))
		}
	}
	k.labels(root.field("selector"), spec.Selector)
	k.nodeSelector(service)
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		k.warnf(FieldNotSupported, root.field("sessionAffinity"), "not supported: write a DestinationRule with consistentHash")
	}
}

// servicePortName checks the name of one of several ports, of which each must have its own.
func (k *checker) servicePortName(at *path, name string, i, ports int, names map[string]int) {
	switch before, twice := names[name]; {
	case name == "" && ports > 1:
		k.errorf(at, "it is missing: each of several ports needs a name")
	case twice:
		k.errorf(at, "%q is the name of ports[%d] too", name, before)
	case name != "":
		k.portName(at, name)
	}
	names[name] = i
}

// transport checks the protocol of a port in Kubernetes; "" is TCP.
func (k *checker) transport(at *path, protocol corev1.Protocol) {
	switch protocol {
	case "", corev1.ProtocolTCP, corev1.ProtocolUDP:
	case corev1.ProtocolSCTP:
		k.warnf(ProtocolNotProxied, at, "SCTP is not proxied")
	default:
		k.errorf(at, "%q is no protocol: write TCP or UDP", protocol)
	}
}

// validateEndpointSlice checks an EndpointSlice.
func validateEndpointSlice(k *checker, slice *discoveryv1.EndpointSlice) {
	root := (*path)(nil)
	if k.config.Labels[discoveryv1.LabelServiceName] == "" {
		k.warnf(NoEffect, (&path{name: "metadata"}).field("labels"), "has no effect without the label %s", discoveryv1.LabelServiceName)
	}
	switch slice.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	default:
		k.errorf(root.field("addressType"), "must be IPv4, IPv6 or FQDN")
	}
	for i, endpoint := range slice.Endpoints {
		at := root.field("endpoints").at(i).field("addresses")
		if len(endpoint.Addresses) == 0 {
			k.errorf(at, "must have at least one address")
		}
		for j, address := range endpoint.Addresses {
			switch {
			case slice.AddressType == discoveryv1.AddressTypeFQDN:
				k.report(at.at(j), address, hostProblem(address))
			case ipProblem(address) != "":
				k.report(at.at(j), address, ipProblem(address))
			case (slice.AddressType == discoveryv1.AddressTypeIPv6) != strings.Contains(address, ":"):
				k.errorf(at.at(j), "%q is not of the addressType %s", address, slice.AddressType)
			}
		}
	}
	names := make(map[string]int)
	for i, port := range slice.Ports {
		at := root.field("ports").at(i)
		if port.Port != nil {
			k.port(at.field("port"), int64(*port.Port))
		}
		if port.Protocol != nil {
			k.transport(at.field("protocol"), *port.Protocol)
		}
		name := ""
		if port.Name != nil {
			name = *port.Name
		}
		k.servicePortName(at.field("name"), name, i, len(slice.Ports), names)
	}
}

// validatePod checks a Pod as far as its address is concerned.
func validatePod(k *checker, pod *corev1.Pod) {
	root := &path{name: "status"}
	if pod.Status.PodIP != "" {
		k.report(root.field("podIP"), pod.Status.PodIP, ipProblem(pod.Status.PodIP))
	}
	for i, address := range pod.Status.PodIPs {
		k.report(root.field("podIPs").at(i).field("ip"), address.IP, ipProblem(address.IP))
	}
}

// validateNamespace checks nothing: the labels of a Namespace are all that is read.
func validateNamespace(*checker, *corev1.Namespace) {}

// validateIngress checks an Ingress.
func validateIngress(k *checker, ingress *networkingv1.Ingress) {
	root, spec := &path{name: "spec"}, &ingress.Spec
	if spec.DefaultBackend != nil {
		k.ingressBackend(root.field("defaultBackend"), spec.DefaultBackend)
	} else if len(spec.Rules) == 0 {
		k.errorf(root, "must have rules or a defaultBackend")
	}
	for i, rule := range spec.Rules {
		at := root.field("rules").at(i)
		if rule.Host != "" {
			k.ingressHost(at.field("host"), rule.Host)
		}
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			k.ingressPath(at.fields("http.paths").at(j), &rule.HTTP.Paths[j])
		}
	}
	for i, of := range spec.TLS {
		at := root.field("tls").at(i)
		for j, host := range of.Hosts {
			k.ingressHost(at.field("hosts").at(j), host)
		}
		if of.SecretName == "" {
			k.warnf(NoCertificate, at.field("secretName"), "it is missing: there is no TLS for these hosts")
		}
	}
}

func (k *checker) ingressHost(at *path, host string) {
	problem := wildcardHostProblem(host)
	if problem == "" {
		problem = partialWildcardProblem(host)
	}
	k.report(at, host, problem)
}

// ingressPath checks a path of an Ingress.
func (k *checker) ingressPath(at *path, rule *networkingv1.HTTPIngressPath) {
	if rule.PathType == nil {
		k.errorf(at.field("pathType"), "it is missing: write Exact, Prefix or ImplementationSpecific")
	} else {
		switch *rule.PathType {
		case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
			switch {
			case !strings.HasPrefix(rule.Path, "/"):
				k.errorf(at.field("path"), `must begin with "/"`)
			case strings.ContainsAny(rule.Path, "?#"):
				k.errorf(at.field("path"), `must not have "?" and "#", which are not part of a path`)
			}
		case networkingv1.PathTypeImplementationSpecific:
		default:
			k.errorf(at.field("pathType"), "must be Exact, Prefix or ImplementationSpecific")
		}
	}
	k.ingressBackend(at.field("backend"), &rule.Backend)
}

// ingressBackend checks to which port of which service an Ingress sends requests.
func (k *checker) ingressBackend(at *path, backend *networkingv1.IngressBackend) {
	service := backend.Service
	switch {
	case backend.Resource != nil:
		k.errorf(at.field("resource"), "only services are backends")
	case service == nil:
		k.errorf(at.field("service"), "it is missing")
	default:
		at := at.field("service")
		if !isDNSLabel(service.Name) {
			k.errorf(at.field("name"), "%q is no name of a Service", service.Name)
		}
		if (service.Port.Name == "") == (service.Port.Number == 0) {
			k.errorf(at.field("port"), "must have either a name or a number")
		}
		if service.Port.Number != 0 {
			k.port(at.fields("port.number"), int64(service.Port.Number))
		}
	}
}
