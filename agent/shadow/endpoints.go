package shadow

import (
	"cmp"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// defaultOverprovisioning is Envoy's overprovisioning factor, in percent, of endpoints that have none.
const defaultOverprovisioning = 140

// asDumped returns endpoints in the form in which Envoy shows them: it does not keep the message, but shows its hosts
// (measured with Envoy 1.36 and 1.40). Weights and the overprovisioning factor are there also as their defaults; a second
// endpoint of an address in a priority is not used; of the health there are three states. Fields of which
// Envoy shows nothing are left out. The result is sorted.
func asDumped(a *endpointv3.ClusterLoadAssignment) *endpointv3.ClusterLoadAssignment {
	factor := a.GetPolicy().GetOverprovisioningFactor()
	if factor == nil {
		factor = wrapperspb.UInt32(defaultOverprovisioning)
	}
	out := &endpointv3.ClusterLoadAssignment{
		ClusterName: a.GetClusterName(), Policy: &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: factor},
	}
	type place struct {
		priority uint32
		address  string
	}
	type group struct {
		priority uint32
		locality string
	}
	seen := make(map[place]bool)
	groups := make(map[group]*endpointv3.LocalityLbEndpoints)
	for _, in := range a.GetEndpoints() {
		locality, weight := in.GetLocality(), in.GetLoadBalancingWeight().GetValue()
		if locality == nil {
			locality, weight = &corev3.Locality{}, 0 // Envoy ignores a weight without a locality
		}
		of := group{in.GetPriority(), key(locality)}
		for _, e := range in.GetLbEndpoints() {
			at := place{in.GetPriority(), key(e.GetEndpoint().GetAddress())}
			if seen[at] {
				continue
			}
			seen[at] = true
			if groups[of] == nil { // the first one decides about the weight
				groups[of] = &endpointv3.LocalityLbEndpoints{
					Locality: locality, Priority: in.GetPriority(), LoadBalancingWeight: wrapperspb.UInt32(weight),
				}
				out.Endpoints = append(out.Endpoints, groups[of])
			}
			groups[of].LbEndpoints = append(groups[of].LbEndpoints, endpointAsDumped(e))
		}
	}
	for _, l := range out.Endpoints {
		slices.SortFunc(l.LbEndpoints, func(x, y *endpointv3.LbEndpoint) int { return cmp.Compare(key(x), key(y)) })
	}
	slices.SortFunc(out.Endpoints, func(x, y *endpointv3.LocalityLbEndpoints) int {
		return cmp.Or(cmp.Compare(x.GetPriority(), y.GetPriority()), cmp.Compare(key(x.GetLocality()), key(y.GetLocality())))
	})
	return out
}

func endpointAsDumped(e *endpointv3.LbEndpoint) *endpointv3.LbEndpoint {
	from := e.GetEndpoint()
	check := from.GetHealthCheckConfig()
	if check == nil {
		check = &endpointv3.Endpoint_HealthCheckConfig{}
	}
	weight := max(1, e.GetLoadBalancingWeight().GetValue())
	metadata := e.GetMetadata()
	if proto.Size(metadata) == 0 {
		metadata = nil
	}
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: from.GetAddress(), Hostname: from.GetHostname(),
			HealthCheckConfig: &endpointv3.Endpoint_HealthCheckConfig{PortValue: check.GetPortValue(), Hostname: check.GetHostname()},
		}},
		HealthStatus: health(e.GetHealthStatus()), Metadata: metadata, LoadBalancingWeight: wrapperspb.UInt32(weight),
	}
}

// health returns the state that Envoy shows.
func health(s corev3.HealthStatus) corev3.HealthStatus {
	switch s {
	case corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_HEALTHY:
		return corev3.HealthStatus_HEALTHY
	case corev3.HealthStatus_DEGRADED:
		return corev3.HealthStatus_DEGRADED
	}
	return corev3.HealthStatus_UNHEALTHY // DRAINING and TIMEOUT, too
}

// key returns a text by which messages are sorted and compared. A process marshals equal messages equally.
func key(m proto.Message) string {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err.Error() // of text that is no UTF-8, with which no response is decoded
	}
	return string(data)
}

// onlyHealth reports whether endpoints that Envoy has differ from those that it would be served only in what Envoy itself
// finds out: an endpoint that fails its checks is unhealthy, and one that was removed is kept while it passes them. checked says
// that Envoy checks these.
func onlyHealth(has, would proto.Message, checked bool) bool {
	in, ok := has.(*endpointv3.ClusterLoadAssignment)
	served, also := would.(*endpointv3.ClusterLoadAssignment)
	if !ok || !also || !checked {
		return false
	}
	in, served = asDumped(in), asDumped(served)
	states := make(map[string]corev3.HealthStatus)
	for _, l := range served.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			states[place(l, e)] = e.GetHealthStatus()
		}
	}
	for _, l := range in.GetEndpoints() {
		l.LbEndpoints = slices.DeleteFunc(l.GetLbEndpoints(), func(e *endpointv3.LbEndpoint) bool {
			state, there := states[place(l, e)]
			if there && state == corev3.HealthStatus_HEALTHY {
				e.HealthStatus = state
			}
			return !there
		})
	}
	in.Endpoints = slices.DeleteFunc(in.GetEndpoints(), func(l *endpointv3.LocalityLbEndpoints) bool { return len(l.GetLbEndpoints()) == 0 })
	for _, a := range []*endpointv3.ClusterLoadAssignment{in, served} { // which the health was part of
		for _, l := range a.GetEndpoints() {
			slices.SortFunc(l.LbEndpoints, func(x, y *endpointv3.LbEndpoint) int { return cmp.Compare(key(x), key(y)) })
		}
	}
	return proto.Equal(in, served)
}

// place names an endpoint of a locality.
func place(l *endpointv3.LocalityLbEndpoints, e *endpointv3.LbEndpoint) string {
	return key(&endpointv3.LocalityLbEndpoints{
		Priority: l.GetPriority(), Locality: l.GetLocality(),
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: e.GetEndpoint().GetAddress()}}}},
	})
}
