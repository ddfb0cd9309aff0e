package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
)

// validateWorkloadEntry checks a WorkloadEntry.
func validateWorkloadEntry(k *checker, spec *networking.WorkloadEntry) {
	k.workload(&path{name: "spec"}, spec, true, true)
}

// workload checks a WorkloadEntry, or an endpoint of a ServiceEntry. host and unix say that its
// address may be a DNS name and a Unix socket.
func (k *checker) workload(at *path, entry *networking.WorkloadEntry, host, unix bool) {
	address := entry.GetAddress()
	switch socket, isUnix := strings.CutPrefix(address, unixPrefix); {
	case address == "" && (entry.GetNetwork() == "" || !unix):
		k.errorf(at.field("address"), "it is missing")
	case address == "":
		k.warnf(NoAddress, at.field("address"), "it is missing: the workload is reached through the gateways of its network only")
	case isUnix && !unix:
		k.errorf(at.field("address"), "a Unix socket needs the resolution STATIC")
	case isUnix:
		k.report(at.field("address"), address, unixProblem(socket))
		if len(entry.GetPorts()) > 0 {
			k.errorf(at.field("ports"), "a Unix socket has no ports")
		}
	case isIP(address):
	case !host:
		k.report(at.field("address"), address, ipProblem(address))
	case hostProblem(address) != "":
		k.errorf(at.field("address"), "%q is neither an IP address nor a host", address)
	}
	k.workloadFields(at, entry)
}

// workloadFields checks what a WorkloadEntry and the template of a WorkloadGroup have in common.
func (k *checker) workloadFields(at *path, entry *networking.WorkloadEntry) {
	for _, name := range sortedKeys(entry.GetPorts()) {
		k.portName(at.field("ports").field(name), name)
		k.port(at.field("ports").field(name), int64(entry.Ports[name]))
	}
	k.labels(at.field("labels"), entry.GetLabels())
	if locality := entry.GetLocality(); locality != "" && (strings.Contains(locality, "//") || strings.Count(locality, "/") > 2 || strings.HasPrefix(locality, "/")) {
		k.warnf(LocalityIncomplete, at.field("locality"), "%q is no locality as in region/zone/subzone", locality)
	}
}

// validatePeerAuthentication checks a PeerAuthentication.
func validatePeerAuthentication(k *checker, spec *security.PeerAuthentication) {
	root := &path{name: "spec"}
	if spec.Selector != nil {
		k.selector(root.field("selector"), spec.Selector.MatchLabels)
	}
	ports := root.field("portLevelMtls")
	switch {
	case len(spec.PortLevelMtls) == 0:
		if spec.PortLevelMtls != nil {
			k.errorf(ports, "must not be empty")
		}
	case len(spec.Selector.GetMatchLabels()) == 0:
		k.errorf(ports, "needs a selector: modes of ports are for selected workloads")
	}
	for _, port := range slices.Sorted(maps.Keys(spec.PortLevelMtls)) {
		if port < 1 || port > 65535 {
			k.errorf(ports.field(strconv.FormatUint(uint64(port), 10)), "must be a port from 1 to 65535")
		}
	}
}
