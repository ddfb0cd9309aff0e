package service

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ProxyInstances returns the instances that a proxy stands before. If a Pod has one of its addresses,
// these are of the Services that select the Pod or, if none does, of those whose EndpointSlices have
// the address. Otherwise they are those at its addresses, and without any those of the Services that
// select the labels of the proxy, as far as their target ports are numbers.
func (r *Kubernetes) ProxyInstances(p Proxy) []Instance {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, address := range p.Addresses {
		for _, w := range r.podsAt(address) {
			if p.Namespace != "" && w.config.Namespace != p.Namespace {
				continue
			}
			if out := r.selecting(w); len(out) > 0 {
				return out
			}
		}
		if out := r.at(address, p.Namespace); len(out) > 0 {
			return out
		}
	}
	if len(p.Addresses) == 0 {
		return nil
	}
	for _, w := range r.workloads.unreadyAt(p) {
		if out := r.selecting(w); len(out) > 0 {
			return out
		}
	}
	return r.selecting(r.workloads.ofProxy(p))
}

// podsAt returns the Pods that have an address: several, if they have that of their node.
func (r *Kubernetes) podsAt(address string) []*workload {
	var out []*workload
	for _, key := range slices.SortedFunc(maps.Keys(r.pods[address]), compareDocuments) {
		out = append(out, r.workloads.byNamespace[key.Namespace][key])
	}
	return out
}

// selecting returns the instances of all Services that select a Pod. Of two ports of a Service that
// lead to one port of the Pod with the same protocol, the first counts.
func (r *Kubernetes) selecting(w *workload) []Instance {
	var out []Instance
	objects := r.inNamespace[w.config.Namespace]
	for _, key := range slices.SortedFunc(maps.Keys(objects), compareDocuments) {
		o := objects[key]
		if !selects(o.spec.Spec.Selector, w.selectable()) || !w.isPod() && !r.serves(o, w) {
			continue
		}
		s := r.services[o.key]
		targets := map[Port]struct{}{}
		for i, port := range o.spec.Spec.Ports {
			number := w.target(port)
			target := Port{Number: number, Protocol: s.Ports[i].Protocol}
			if number == 0 || member(targets, target) {
				continue
			}
			targets[target] = struct{}{}
			out = append(out, Instance{s, s.Ports[i], w.at(port.Name, number)})
		}
	}
	return out
}

// ManagementPorts returns the ports at which the Pods of an address are probed, in the order of
// their containers.
func (r *Kubernetes) ManagementPorts(address string) []Port {
	var out []Port
	r.probes(address, func(container *corev1.Container, h corev1.ProbeHandler) {
		var number uint32
		protocol := TCP
		switch {
		case h.HTTPGet != nil:
			number, protocol = probePort(container, h.HTTPGet.Port.StrVal, h.HTTPGet.Port.IntVal), HTTP
			if h.HTTPGet.Scheme == corev1.URISchemeHTTPS {
				protocol = HTTPS
			}
		case h.TCPSocket != nil:
			number = probePort(container, h.TCPSocket.Port.StrVal, h.TCPSocket.Port.IntVal)
		case h.GRPC != nil:
			number, protocol = uint32(h.GRPC.Port), GRPC
		}
		port := Port{Name: fmt.Sprintf("mgmt-%d", number), Number: number, Protocol: protocol}
		if number != 0 && !slices.ContainsFunc(out, func(o Port) bool { return o.Number == number }) {
			out = append(out, port)
		}
	})
	return out
}

// HealthChecks returns the health checks over HTTP and HTTPS of the Pods of an address, in the order
// of their containers.
func (r *Kubernetes) HealthChecks(address string) []Probe {
	var out []Probe
	r.probes(address, func(container *corev1.Container, h corev1.ProbeHandler) {
		if h.HTTPGet == nil {
			return
		}
		probe := Probe{h.HTTPGet.Path, probePort(container, h.HTTPGet.Port.StrVal, h.HTTPGet.Port.IntVal)}
		if probe.Port != 0 && !slices.Contains(out, probe) {
			out = append(out, probe)
		}
	})
	return out
}

// probes calls visit for each startup, readiness and liveness probe of the Pods of an address.
func (r *Kubernetes) probes(address string, visit func(*corev1.Container, corev1.ProbeHandler)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, w := range r.podsAt(address) {
		for _, container := range longRunning(w.config.Spec.(*corev1.Pod)) {
			for _, probe := range []*corev1.Probe{container.StartupProbe, container.ReadinessProbe, container.LivenessProbe} {
				if probe != nil {
					visit(&container, probe.ProbeHandler)
				}
			}
		}
	}
}

// probePort returns the port that a probe names, 0 if its container does not have the name.
func probePort(container *corev1.Container, name string, number int32) uint32 {
	for _, port := range container.Ports {
		if name != "" && port.Name == name {
			return uint32(port.ContainerPort)
		}
	}
	if name != "" {
		return 0
	}
	return uint32(number)
}
