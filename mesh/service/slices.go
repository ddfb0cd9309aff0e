package service

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// slice is an EndpointSlice.
type slice struct {
	config    *config.Config
	spec      *discoveryv1.EndpointSlice
	service   config.Key
	endpoints []*Endpoint
	// mentions are the Pods on which the endpoints depend, also those that are not known.
	mentions []mention
}

// mention identifies Pods of a namespace by name, or else by address.
type mention struct {
	namespace, text string
	byName          bool
}

// readSlice returns what an EndpointSlice is, without its endpoints; nil if it cannot be used.
func (r *Kubernetes) readSlice(c *config.Config) *slice {
	spec, ok := c.Spec.(*discoveryv1.EndpointSlice)
	if !ok {
		r.options.reportf(c, "%T is no EndpointSlice", c.Spec)
		return nil
	}
	name := c.Labels[discoveryv1.LabelServiceName]
	if _, imported := c.Labels["multicluster.kubernetes.io/service-name"]; name == "" || imported {
		return nil // of no Service, or of a ServiceImport
	}
	if spec.AddressType == discoveryv1.AddressTypeFQDN {
		r.options.reportf(c, "address type FQDN is not supported")
		return nil
	}
	return &slice{config: c, spec: spec, service: config.Key{Kind: config.Service, Namespace: c.Namespace, Name: name}}
}

// forget removes a slice from all indexes.
func (r *Kubernetes) forget(s *slice) {
	key := s.config.Key
	delete(r.slices, key)
	take(r.byService, s.service, key)
	for _, m := range s.mentions {
		without(r.mentioned, m, key)
	}
	s.mentions = nil
}

// readEndpoints sets the endpoints of a slice again.
func (r *Kubernetes) readEndpoints(s *slice) {
	for _, m := range s.mentions {
		without(r.mentioned, m, s.config.Key)
	}
	s.endpoints, s.mentions = nil, nil
	service := r.objects[s.service]
	for _, e := range s.spec.Endpoints {
		for _, address := range e.Addresses {
			w := r.podOf(s, e, address)
			if w == nil {
				continue
			}
			at := r.placed(w, e)
			at.endpoint.Address, at.endpoint.Health = address, service.health(e.Conditions)
			for _, port := range s.spec.Ports {
				if port.Port == nil || *port.Port <= 0 {
					continue // all ports: a service has none to which that could belong
				}
				var name string
				if port.Name != nil {
					name = *port.Name
				}
				s.endpoints = append(s.endpoints, at.at(name, uint32(*port.Port)))
			}
		}
	}
	for _, m := range s.mentions {
		with(r.mentioned, m, s.config.Key)
	}
}

// isOn reports whether an endpoint is on a node, or in a zone, whose region is that of its nodes.
func (s *slice) isOn(node string) bool {
	return slices.ContainsFunc(s.spec.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.Zone != nil || e.NodeName != nil && *e.NodeName == node
	})
}

// placed returns a workload with the node and the locality that its slice knows and it does not.
func (r *Kubernetes) placed(w *workload, e discoveryv1.Endpoint) workload {
	at := *w
	var zone string
	if e.Zone != nil {
		zone = *e.Zone
	}
	if e.NodeName != nil && at.endpoint.Node == "" {
		at.endpoint.Node = *e.NodeName
	}
	at.endpoint.Locality = cmp.Or(at.endpoint.Locality, r.workloads.localityOn(at.endpoint.Node, zone))
	if at.endpoint.Node == w.endpoint.Node && at.endpoint.Locality == w.endpoint.Locality {
		return at
	}
	at.endpoint.Labels = r.workloads.augment(at.endpoint.Labels, at.endpoint.Locality, at.endpoint.Network, at.endpoint.Node)
	return at
}

// podOf returns the Pod behind an endpoint: the one that the slice names, or the first that has its
// address. It returns nil if the one that is named is not known, and a workload without properties
// if there is none.
func (r *Kubernetes) podOf(s *slice, e discoveryv1.Endpoint, address string) *workload {
	namespace := s.config.Namespace
	pods := r.workloads.byNamespace[namespace]
	if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
		s.mentions = append(s.mentions, mention{namespace, e.TargetRef.Name, true})
		return pods[config.Key{Kind: config.Pod, Namespace: namespace, Name: e.TargetRef.Name}]
	}
	s.mentions = append(s.mentions, mention{namespace, address, false})
	var found config.Key
	for key := range r.pods[address] {
		if key.Namespace == namespace && (found == config.Key{} || key.Name < found.Name) {
			found = key
		}
	}
	if w := pods[found]; w != nil {
		return w
	}
	network := r.workloads.network(namespace, nil)
	return &workload{endpoint: Endpoint{
		Network: network, Cluster: r.options.Cluster, Namespace: namespace, Labels: r.workloads.augment(nil, "", network, ""),
	}}
}
