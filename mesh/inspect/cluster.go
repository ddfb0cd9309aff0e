package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// cluster adds a cluster and its endpoints. fault says why the cluster cannot be reached; "" if it can.
func (x *explainer) cluster(name, detail string) (fault string) {
	c, ok := body(x.Lookup(xds.ClusterType, name), &clusterv3.Cluster{})
	if !ok {
		x.add("cluster", name, "", "%s", strings.TrimSpace(detail+" it does not exist"))
		return missing
	}
	if custom := c.GetClusterType(); custom != nil {
		x.add("cluster", name, document(c.GetMetadata()), "%s", strings.TrimSpace(custom.GetName()+" "+detail))
		x.add("endpoint", "by DNS", "", "%s", "the addresses of the host that the request names")
		return ""
	}
	x.add("cluster", name, document(c.GetMetadata()), "%s", strings.TrimSpace(c.GetType().String()+" "+detail))
	assignment := c.GetLoadAssignment()
	if c.GetType() == clusterv3.Cluster_EDS {
		assignment, _ = body(x.Lookup(xds.EndpointType, cmp.Or(c.GetEdsClusterConfig().GetServiceName(), name)), &endpointv3.ClusterLoadAssignment{})
	}
	n := 0
	for _, l := range assignment.GetEndpoints() {
		for _, ep := range l.GetLbEndpoints() {
			n++
			address := ep.GetEndpoint().GetAddress()
			x.endpoints = append(x.endpoints, Endpoint{
				Address: address.GetSocketAddress().GetAddress(), Port: address.GetSocketAddress().GetPortValue(), MeshTLS: usesMeshTLS(c, ep),
			})
			text := fmt.Sprintf("%s:%d", address.GetSocketAddress().GetAddress(), address.GetSocketAddress().GetPortValue())
			if path := address.GetPipe().GetPath(); path != "" {
				text = path
			}
			note := ""
			if ep.GetHealthStatus() == corev3.HealthStatus_UNHEALTHY {
				note = ", not ready"
			}
			x.add("endpoint", text, "", "priority %d, weight %d%s", l.GetPriority(), cmp.Or(ep.GetLoadBalancingWeight().GetValue(), 1), note)
		}
	}
	if c.GetType() == clusterv3.Cluster_ORIGINAL_DST && x.direct && !c.GetOriginalDstLbConfig().GetUseHttpHeader() {
		x.add("endpoint", "none", "", "")
		return "sends to the original destination, which a connection to the proxy itself does not have (INTERCEPTION_MODE=NONE)"
	}
	if n == 0 && c.GetType() != clusterv3.Cluster_ORIGINAL_DST {
		x.add("endpoint", "none", "", "")
		return "has no endpoints"
	}
	return ""
}

// usesMeshTLS reports whether a cluster connects to an endpoint by mutual TLS of the mesh.
func usesMeshTLS(c *clusterv3.Cluster, ep *endpointv3.LbEndpoint) bool {
	is := func(socket *corev3.TransportSocket) bool {
		context := &tlsv3.UpstreamTlsContext{}
		return socket.GetTypedConfig().UnmarshalTo(context) == nil &&
			slices.Contains(context.GetCommonTlsContext().GetAlpnProtocols(), "istio")
	}
	labels := ep.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"].GetFields()
	for _, m := range c.GetTransportSocketMatches() {
		matches := true
		for key, value := range m.GetMatch().GetFields() {
			matches = matches && labels[key].GetStringValue() == value.GetStringValue()
		}
		if matches {
			return is(m.GetTransportSocket())
		}
	}
	return c.GetTransportSocket() != nil && is(c.GetTransportSocket())
}
