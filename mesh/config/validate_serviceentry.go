package config

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// validateServiceEntry checks a ServiceEntry.
func validateServiceEntry(k *checker, spec *networking.ServiceEntry) {
	root := &path{name: "spec"}
	if spec.WorkloadSelector != nil {
		k.selector(root.field("workloadSelector"), spec.WorkloadSelector.Labels)
		if len(spec.Endpoints) > 0 {
			k.errorf(root.field("workloadSelector"), "only one of workloadSelector and endpoints can be set")
		}
	}
	k.serviceHosts(root.field("hosts"), spec)
	for i, address := range spec.Addresses {
		at := root.field("addresses").at(i)
		k.report(at, address, prefixProblem(address))
		if strings.Contains(address, "/") && spec.Resolution != networking.ServiceEntry_NONE && spec.Resolution != networking.ServiceEntry_STATIC {
			k.errorf(at, "a prefix needs the resolution NONE or STATIC")
		}
	}
	k.automaticRange(root.field("addresses"), spec.Addresses, "it is not this one's while an older service has it")
	k.servicePorts(root.field("ports"), spec)
	k.resolution(root, spec)
	k.exportTo(root.field("exportTo"), spec.ExportTo, true)
}

// serviceHosts checks the hosts of a ServiceEntry.
func (k *checker) serviceHosts(at *path, spec *networking.ServiceEntry) {
	if len(spec.Hosts) == 0 {
		k.errorf(at, "must have at least one host")
	}
	for i, host := range spec.Hosts {
		at := at.at(i)
		switch problem := wildcardHostProblem(host); {
		case host == "*":
			k.errorf(at, `"*" is too much: a ServiceEntry describes some hosts`)
		case problem != "":
			k.report(at, host, problem)
		case spec.Resolution != networking.ServiceEntry_DYNAMIC_DNS && partialWildcardProblem(host) != "":
			k.warnf(ComparedAsWritten, at, "%q %s", host, partialWildcardProblem(host))
		}
	}
}

// servicePorts checks the ports of a ServiceEntry.
func (k *checker) servicePorts(at *path, spec *networking.ServiceEntry) {
	names, numbers := make(map[string]int), make(map[uint32]int)
	for i, port := range spec.Ports {
		at := at.at(i)
		k.portName(at.field("name"), port.GetName())
		k.protocol(at.field("protocol"), port.GetProtocol())
		k.port(at.field("number"), int64(port.GetNumber()))
		if port.GetTargetPort() != 0 {
			k.port(at.field("targetPort"), int64(port.TargetPort))
		}
		if before, twice := names[port.GetName()]; twice {
			k.errorf(at.field("name"), "%q is the name of ports[%d] too", port.GetName(), before)
		}
		if before, twice := numbers[port.GetNumber()]; twice {
			k.errorf(at.field("number"), "%d is the number of ports[%d] too", port.GetNumber(), before)
		}
		names[port.GetName()], numbers[port.GetNumber()] = i, i
		plain := port.GetProtocol() != "" && protocolOf(port.GetProtocol()) != protocolHTTP && protocolOf(port.GetProtocol()) != protocolTLS
		if (plain || port.GetProtocol() == "") && len(spec.Hosts) > 1 && spec.Resolution != networking.ServiceEntry_NONE {
			k.errorf(at.field("protocol"), "several hosts need a protocol with names of hosts, HTTP or TLS")
		}
	}
}

// resolution checks what the resolution of a ServiceEntry needs and excludes.
func (k *checker) resolution(root *path, spec *networking.ServiceEntry) {
	at, endpoints := root.field("resolution"), root.field("endpoints")
	switch spec.Resolution {
	case networking.ServiceEntry_NONE:
		if len(spec.Endpoints) > 0 {
			k.errorf(endpoints, "the resolution NONE forwards to where the client connected: endpoints have no effect")
		}
		if spec.WorkloadSelector != nil {
			k.warnf(NoEffect, root.field("workloadSelector"), "has no effect with the resolution NONE")
		}
	case networking.ServiceEntry_STATIC:
		k.endpoints(endpoints, spec, false)
	case networking.ServiceEntry_DNS, networking.ServiceEntry_DNS_ROUND_ROBIN:
		if len(spec.Endpoints) == 0 {
			for i, host := range spec.Hosts {
				if strings.Contains(host, "*") {
					k.errorf(root.field("hosts").at(i), "%q cannot be resolved: without endpoints, the resolution %s needs a full host", host, spec.Resolution)
				}
			}
		}
		if spec.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(spec.Endpoints) > 1 {
			k.errorf(endpoints, "the resolution DNS_ROUND_ROBIN can have only one endpoint")
		}
		k.endpoints(endpoints, spec, true)
	case networking.ServiceEntry_DYNAMIC_DNS:
		k.dynamicDNS(root, spec)
	default:
		k.errorf(at, "%d is no resolution", spec.Resolution)
	}
}

// dynamicDNS checks a ServiceEntry whose hosts proxies resolve when they get a request.
func (k *checker) dynamicDNS(root *path, spec *networking.ServiceEntry) {
	for i, host := range spec.Hosts {
		if !strings.HasPrefix(host, "*") {
			k.errorf(root.field("hosts").at(i), "the resolution DYNAMIC_DNS is for hosts with \"*\"")
		}
	}
	if len(spec.Addresses) > 0 {
		k.errorf(root.field("addresses"), "must be empty with the resolution DYNAMIC_DNS")
	}
	if len(spec.Endpoints) > 0 {
		k.errorf(root.field("endpoints"), "must be empty with the resolution DYNAMIC_DNS")
	}
	for i, port := range spec.Ports {
		switch strings.ToLower(port.GetProtocol()) {
		case "http", "http2", "grpc", "tls":
		default:
			k.errorf(root.field("ports").at(i).field("protocol"), "must be HTTP, HTTP2, GRPC or TLS with the resolution DYNAMIC_DNS")
		}
	}
}

// endpoints checks the endpoints of a ServiceEntry. hosts says that their addresses may be DNS names.
func (k *checker) endpoints(at *path, spec *networking.ServiceEntry, hosts bool) {
	names := make(map[string]bool)
	for _, port := range spec.Ports {
		names[port.GetName()] = true
	}
	for i, endpoint := range spec.Endpoints {
		at := at.at(i)
		k.workload(at, endpoint, hosts, !hosts)
		for _, name := range sortedKeys(endpoint.GetPorts()) {
			if !names[name] {
				k.errorf(at.field("ports").field(name), "the ServiceEntry has no port of this name")
			}
		}
		if strings.HasPrefix(endpoint.GetAddress(), unixPrefix) && len(spec.Ports) != 1 {
			k.errorf(at.field("address"), "a Unix socket needs a ServiceEntry with one port, and this has %d", len(spec.Ports))
		}
	}
}
