package config

import (
	"maps"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
)

// destinationRules warns of DestinationRules of hosts that there are not, of subsets that select no endpoint, and of TLS that verifies nobody.
func (x *references) destinationRules() {
	root := &path{name: "spec"}
	unverified := false
	for _, c := range x.reader.List(MeshConfig, "") {
		//lint:ignore SA1019 the deprecated field has an effect
		verify := c.Spec.(*meshv1alpha1.MeshConfig).GetVerifyCertificateAtClient()
		unverified = verify != nil && !verify.GetValue()
	}
	for _, c := range x.reader.List(DestinationRule, "") {
		spec := c.Spec.(*networking.DestinationRule)
		host := x.resolve(spec.Host, c.Namespace)
		if !x.isHost(host) {
			x.warn(UnknownRuleHost, c, root.field("host"), "there is no service %q: the rule has no effect", host)
		} else {
			x.subsetsOf(c, spec, host)
			x.portsOf(c, root.field("trafficPolicy"), spec.TrafficPolicy, host)
			for i, subset := range spec.Subsets {
				x.portsOf(c, root.field("subsets").at(i).field("trafficPolicy"), subset.GetTrafficPolicy(), host)
			}
		}
		if unverified {
			x.verifies(c, root.field("trafficPolicy"), spec.TrafficPolicy)
			for i, subset := range spec.Subsets {
				x.verifies(c, root.field("subsets").at(i).field("trafficPolicy"), subset.GetTrafficPolicy())
			}
		}
	}
}

// portsOf warns of settings of ports that a host does not have.
func (x *references) portsOf(c *Config, at *path, policy *networking.TrafficPolicy, host string) {
	of := x.hosts[host]
	if of == nil {
		return // a wildcard, or within one
	}
	for i, port := range policy.GetPortLevelSettings() {
		if _, has := of[port.GetPort().GetNumber()]; !has {
			x.warn(UnknownPort, c, at.field("portLevelSettings").at(i).fields("port.number"), "the service %q has no port %d: the settings have no effect", host, port.GetPort().GetNumber())
		}
	}
}

// sidecars warns of hosts that Sidecars reach and that there are not.
func (x *references) sidecars() {
	for _, c := range x.reader.List(Sidecar, "") {
		for i, egress := range c.Spec.(*networking.Sidecar).Egress {
			for j, text := range egress.GetHosts() {
				of, host, _ := strings.Cut(text, "/")
				if of == "~" || host == "*" || host == "" || x.isHost(strings.ToLower(host)) {
					continue
				}
				x.warn(UnknownHost, c, (&path{name: "spec"}).field("egress").at(i).field("hosts").at(j), "there is no service %q", host)
			}
		}
	}
}

// isHost reports whether there is a service with a host, or with one that has hosts in common with it.
func (x *references) isHost(host string) bool {
	if x.service(host) != nil {
		return true
	}
	if !strings.HasPrefix(host, "*") {
		return false
	}
	for of := range x.hosts {
		if hostWithin(of, host) {
			return true
		}
	}
	return false
}

// verifies warns of TLS without the CAs of the server, which a mesh that does not verify certificates by those of the system takes for a wish.
func (x *references) verifies(c *Config, at *path, policy *networking.TrafficPolicy) {
	check := func(at *path, tls *networking.ClientTLSSettings) {
		if m := tls.GetMode(); m != networking.ClientTLSSettings_SIMPLE && m != networking.ClientTLSSettings_MUTUAL {
			return
		}
		if tls.GetCaCertificates() == "" && tls.GetCredentialName() == "" && !tls.GetInsecureSkipVerify().GetValue() {
			x.warn(UnverifiedServer, c, at.field("caCertificates"), "the certificates of servers are not verified: name their CAs, or set verifyCertificateAtClient in the MeshConfig, which is false")
		}
	}
	check(at.field("tls"), policy.GetTls())
	for i, port := range policy.GetPortLevelSettings() {
		check(at.field("portLevelSettings").at(i).field("tls"), port.GetTls())
	}
}

// subsetsOf warns of subsets whose labels no endpoint of a host has. It says nothing if no document describes an endpoint with labels.
func (x *references) subsetsOf(c *Config, spec *networking.DestinationRule, host string) {
	endpoints := x.endpointsOf(host)
	if len(endpoints) == 0 {
		return
	}
	for i, subset := range spec.Subsets {
		labels := subset.GetLabels()
		// Labels of topology are added to those that documents give.
		if len(labels) == 0 || slices.ContainsFunc(slices.Collect(maps.Keys(labels)), func(key string) bool {
			return strings.HasPrefix(key, "topology.") || strings.Contains(key, "istio.io/")
		}) {
			continue
		}
		if !slices.ContainsFunc(endpoints, func(of map[string]string) bool { return hasLabels(of, labels) }) {
			x.warn(SubsetSelectsNothing, c, (&path{name: "spec"}).field("subsets").at(i).field("labels"), "none of the endpoints of %q that documents describe has these labels: requests to the subset %q get 503", host, subset.GetName())
		}
	}
}

// endpointsOf returns the labels of the endpoints of a host; nil if they are not all known.
func (x *references) endpointsOf(host string) (out []map[string]string) {
	for _, c := range x.byHost[host] {
		switch spec := c.Spec.(type) {
		case *corev1.Service:
			if len(spec.Spec.Selector) == 0 {
				return nil
			}
			out = append(out, x.selected(c.Namespace, spec.Spec.Selector)...)
		case *networking.ServiceEntry:
			selector := spec.GetWorkloadSelector().GetLabels()
			if len(selector) == 0 && len(spec.Endpoints) == 0 {
				return nil
			}
			if len(selector) > 0 {
				out = append(out, x.selected(c.Namespace, selector)...)
			}
			for _, endpoint := range spec.Endpoints {
				out = append(out, endpoint.GetLabels())
			}
		}
	}
	return out
}

// selected returns the labels of the workloads of a namespace that a selector selects.
func (x *references) selected(namespace string, selector map[string]string) (out []map[string]string) {
	for _, labels := range x.workloads()[namespace] {
		if hasLabels(labels, selector) {
			out = append(out, labels)
		}
	}
	return out
}

// workloads returns the labels of the workloads that documents describe, by namespace.
func (x *references) workloads() map[string][]map[string]string {
	if x.described != nil {
		return x.described
	}
	x.described = make(map[string][]map[string]string)
	for _, c := range slices.Concat(x.reader.List(Pod, ""), x.reader.List(WorkloadEntry, "")) {
		labels := maps.Clone(c.Labels)
		if entry, ok := c.Spec.(*networking.WorkloadEntry); ok {
			labels = maps.Clone(entry.GetLabels())
			for key, value := range c.Labels {
				if labels == nil {
					labels = make(map[string]string)
				}
				labels[key] = value
			}
		}
		x.described[c.Namespace] = append(x.described[c.Namespace], labels)
	}
	for _, c := range x.reader.List(WorkloadGroup, "") {
		x.described[c.Namespace] = append(x.described[c.Namespace], groupLabels(c.Spec.(*networking.WorkloadGroup)))
	}
	return x.described
}
