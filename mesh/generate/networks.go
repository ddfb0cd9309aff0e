package generate

import (
	"maps"
	"math"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// reach returns the endpoints of a service as a proxy reaches them: those of other networks through the
// gateways of these, and by mutual TLS or without it. HasSidecar of the result says which. tls is what
// the policy says of TLS; nil for nothing.
func (g *Generator) reach(v *proxy.View, svc *service.Service, endpoints []*service.Endpoint, tls *networking.ClientTLSSettings) []*service.Endpoint {
	networks := g.snap.Networks(svc.Resolution == service.DNS || svc.Resolution == service.DNSRoundRobin)
	if tls == nil && g.snap.DisablesMTLS() {
		endpoints = g.withoutDisabled(endpoints)
	}
	if wanted := v.NetworkView(); wanted != "" {
		endpoints = slices.DeleteFunc(endpoints, func(ep *service.Endpoint) bool {
			network := g.snap.NetworkOf(ep)
			return network != "" && !slices.Contains(strings.Split(wanted, ","), network)
		})
	}
	if networks.Any() {
		return g.acrossNetworks(v, networks, endpoints, tls)
	}
	return slices.DeleteFunc(endpoints, func(ep *service.Endpoint) bool { return ep.Address == "" })
}

// withoutDisabled returns the endpoints with plaintext for those whose workload disables mutual TLS.
func (g *Generator) withoutDisabled(endpoints []*service.Endpoint) []*service.Endpoint {
	for i, ep := range endpoints {
		if ep.HasSidecar && !g.snap.AcceptsMTLS(ep) {
			plain := *ep
			plain.HasSidecar = false
			endpoints[i] = service.NewEndpoint(plain)
		}
	}
	return endpoints
}

// speaksMTLS reports whether mutual TLS is spoken to an endpoint that reach has returned, with a policy of
// TLS, nil for none.
func speaksMTLS(ep *service.Endpoint, tls *networking.ClientTLSSettings) bool {
	return ep.HasSidecar && (tls == nil || tls.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL)
}

// onlyMTLS returns the endpoints to which mutual TLS is spoken.
func onlyMTLS(endpoints []*service.Endpoint, tls *networking.ClientTLSSettings) []*service.Endpoint {
	return slices.DeleteFunc(endpoints, func(ep *service.Endpoint) bool { return !speaksMTLS(ep, tls) })
}

// acrossNetworks puts the gateways of other networks in the place of the endpoints there, with their
// weight. A gateway chooses the endpoint by the SNI of mesh TLS: an endpoint that does not accept that is
// not reached, nor is one whose network has no gateway of an address family of the proxy. An endpoint of
// a network without any gateway is reached directly.
func (g *Generator) acrossNetworks(v *proxy.View, networks *push.Networks, endpoints []*service.Endpoint, tls *networking.ClientTLSSettings) (out []*service.Endpoint) {
	own := v.Network()
	var reached []reachedEndpoint
	for _, ep := range endpoints {
		network := g.snap.NetworkOf(ep)
		gateways := networks.Gateways(network, ep.Cluster)
		near := network == "" || own == network || own == ""
		forced := own == "" && network != "" && len(gateways) > 0
		if !forced && (near || len(gateways) == 0) {
			if ep.Address != "" {
				reached = append(reached, reachedEndpoint{ep, nil})
			}
			continue
		}
		gateways = reachableGateways(v.Families(), gateways)
		if speaksMTLS(ep, tls) && len(gateways) > 0 {
			reached = append(reached, reachedEndpoint{ep, gateways})
		}
	}
	share := sharesOf(reached)
	weights := make(map[string]map[push.NetworkGateway]uint64) // by locality
	for _, r := range reached {
		if len(r.gateways) == 0 {
			out = append(out, weighted(r.Endpoint, uint32(max(share(r), 1)))) //nolint:gosec // all of them together are less
			continue
		}
		if weights[r.Locality] == nil {
			weights[r.Locality] = make(map[push.NetworkGateway]uint64)
		}
		for _, gw := range r.gateways {
			weights[r.Locality][gw] += share(r)
		}
	}
	for _, locality := range slices.Sorted(maps.Keys(weights)) {
		of := weights[locality]
		for _, gw := range slices.SortedFunc(maps.Keys(of), push.NetworkGateway.Compare) {
			out = append(out, gatewayEndpoint(gw, locality, uint32(of[gw]))) //nolint:gosec // all of them together are less
		}
	}
	return out
}

// reachedEndpoint is an endpoint that a proxy reaches through gateways; directly without any.
type reachedEndpoint struct {
	*service.Endpoint
	gateways []push.NetworkGateway
}

// sharesOf returns what gives an endpoint, or each of the gateways through which it is reached, its weight among the endpoints: that of the
// endpoint, divided by the number of its gateways. Weights are multiplied so that no division leaves a remainder. If they would add up to
// more than Envoy takes, they are made smaller in proportion. Networks that none of the endpoints is in have no part in it.
func sharesOf(endpoints []reachedEndpoint) func(reachedEndpoint) uint64 {
	total, scale := uint64(0), uint64(1)
	for _, r := range endpoints {
		total += uint64(max(r.Weight, 1))
		if n := uint64(max(len(r.gateways), 1)); scale <= math.MaxUint32 {
			scale = scale / greatestCommonDivisor(scale, n) * n
		}
	}
	most, of := total*scale, total
	if total > math.MaxUint32 || scale > math.MaxUint32/max(total, 1) {
		places := 0 // what would be less than 1 is 1
		for _, r := range endpoints {
			places += max(len(r.gateways), 1)
		}
		most = math.MaxUint32 - min(uint64(places), math.MaxUint32/2) //nolint:gosec // it is not negative
	}
	return func(r reachedEndpoint) uint64 {
		return uint64(max(r.Weight, 1)) * most / of / uint64(max(len(r.gateways), 1))
	}
}

func greatestCommonDivisor(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// weighted returns an endpoint with a weight.
func weighted(ep *service.Endpoint, weight uint32) *service.Endpoint {
	if max(ep.Weight, 1) == weight {
		return ep
	}
	other := *ep
	other.Weight = weight
	return service.NewEndpoint(other)
}

// gatewayEndpoint returns a gateway as an endpoint.
func gatewayEndpoint(gw push.NetworkGateway, locality string, weight uint32) *service.Endpoint {
	labels := map[string]string{labelNetwork: gw.Network}
	if gw.Cluster != "" {
		labels["topology.istio.io/cluster"] = gw.Cluster
	}
	return service.NewEndpoint(service.Endpoint{
		Address: gw.Address, Port: gw.Port, Network: gw.Network, Cluster: gw.Cluster, Locality: locality, Weight: max(weight, 1),
		Labels: labels, HasSidecar: true,
	})
}

// reachableGateways returns the gateways of the address families of a proxy. A name has any.
func reachableGateways(f proxy.Families, gateways []push.NetworkGateway) []push.NetworkGateway {
	return slices.DeleteFunc(slices.Clone(gateways), func(gw push.NetworkGateway) bool { return !reachable(f, gw.Address) })
}
