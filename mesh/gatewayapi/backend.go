package gatewayapi

import (
	"fmt"
	"slices"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// hostnameKind is Istio's kind of backends that are named by their host, for ServiceEntries.
const hostnameKind = "networking.istio.io/Hostname"

// destination returns where a reference of a route leads. What it cannot have leads nowhere: to a destination that no cluster
// has. Routes of the mesh may refer to any namespace.
func (c *converter) destination(r *route, at string, ref gatewayv1.BackendObjectReference, mesh bool) (*networking.Destination, *problem) {
	out, wrong := c.referred(r, ref, mesh)
	c.warnOf(r.Meta.Key, at, wrong)
	return out, wrong
}

func (c *converter) referred(r *route, ref gatewayv1.BackendObjectReference, mesh bool) (*networking.Destination, *problem) {
	kind := string(or(ref.Group, "")) + "/" + string(or(ref.Kind, "Service"))
	namespace := string(or(ref.Namespace, gatewayv1.Namespace(r.Namespace)))
	name := string(ref.Name)
	if !mesh && !c.allowed(r.Kind, r.Namespace, kind, namespace, name) {
		return &networking.Destination{}, &problem{string(gatewayv1.RouteReasonRefNotPermitted), fmt.Sprintf(
			"backendRef %s/%s not accessible to a %s in namespace %q (missing a ReferenceGrant?)", name, namespace, r.Kind.Short(), r.Namespace)}
	}
	host, found := name, false
	switch kind {
	case "/Service":
		host, found = c.hostOf(name, namespace), c.service(name, namespace) != nil
		if !mesh {
			c.reaches(r, config.Key{Kind: config.Service, Namespace: namespace, Name: name})
		}
	case hostnameKind:
		found = c.hasHost(host, namespace)
		for _, d := range c.reader.List(config.ServiceEntry, namespace) {
			if !mesh && slices.Contains(d.Spec.(*networking.ServiceEntry).GetHosts(), host) {
				c.reaches(r, d.Meta.Key)
			}
		}
	default:
		return &networking.Destination{}, &problem{string(gatewayv1.RouteReasonInvalidKind), fmt.Sprintf(
			"referencing unsupported backendRef: group %q kind %q", or(ref.Group, ""), or(ref.Kind, "Service"))}
	}
	out := &networking.Destination{Host: host, Port: &networking.PortSelector{Number: uint32(or(ref.Port, 0))}} //nolint:gosec // ports are validated
	if !found {
		return out, &problem{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf("backend(%s) not found", host)}
	}
	return out, nil
}

// reaches notes that requests reach a backend through the Gateways of a route.
func (c *converter) reaches(r *route, backend config.Key) {
	for _, gw := range r.gateways {
		if !slices.Contains(c.ancestors[backend], gw) {
			c.ancestors[backend] = append(c.ancestors[backend], gw)
		}
	}
}

// shares returns the references that have a share of the traffic, and the shares. A single one has all.
func shares[R any](refs []R, weight func(R) *int32) (with []R, weights []int32) {
	for _, ref := range refs {
		if w := or(weight(ref), 1); w > 0 {
			with, weights = append(with, ref), append(weights, w)
		}
	}
	return with, weights
}

// streamDestinations returns where connections of a rule go. Without a backend they are closed.
func (c *converter) streamDestinations(r *route, rule streamRule, mesh bool) (out []*networking.RouteDestination, wrong *problem) {
	with, weights := shares(rule.backends, func(ref gatewayv1.BackendRef) *int32 { return ref.Weight })
	for i, ref := range with {
		d, problem := c.destination(r, ruleAt(rule.at), ref.BackendObjectReference, mesh)
		if problem != nil {
			wrong = problem
		}
		out = append(out, &networking.RouteDestination{Destination: d, Weight: weights[i]})
	}
	if len(out) == 0 {
		out = []*networking.RouteDestination{{Destination: &networking.Destination{}}}
	}
	return out, wrong
}

// httpBackend is a backend of a rule of HTTP or gRPC, with what it does to headers.
type httpBackend struct {
	gatewayv1.BackendRef
	at      string
	filters []gatewayv1.HTTPRouteFilter
}

// httpDestinations returns where requests of a rule go. unusable says why there is no route at all.
func (c *converter) httpDestinations(r *route, refs []httpBackend, mesh bool) (out []*networking.HTTPRouteDestination, wrong, unusable *problem) {
	with, weights := shares(refs, func(ref httpBackend) *int32 { return ref.Weight })
	for i, ref := range with {
		d, problem := c.destination(r, ref.at, ref.BackendObjectReference, mesh)
		if problem != nil {
			wrong = problem
		}
		to := &networking.HTTPRouteDestination{Destination: d, Weight: weights[i]}
		for _, f := range ref.filters {
			switch f.Type {
			case gatewayv1.HTTPRouteFilterRequestHeaderModifier:
				headersOf(&to.Headers).Request = headerOperations(f.RequestHeaderModifier)
			case gatewayv1.HTTPRouteFilterResponseHeaderModifier:
				headersOf(&to.Headers).Response = headerOperations(f.ResponseHeaderModifier)
			default:
				return nil, nil, unsupportedFilter(f.Type)
			}
		}
		out = append(out, to)
	}
	return out, wrong, nil
}

func unsupportedFilter(kind gatewayv1.HTTPRouteFilterType) *problem {
	return &problem{invalidFilter, fmt.Sprintf("unsupported filter type %q", kind)}
}

// invalidFilter is Istio's reason for a filter that it does not have.
const invalidFilter = "InvalidFilter"
