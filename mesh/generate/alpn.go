package generate

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	statev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"

	"github.com/holdfast-xds/holdfast/mesh/service"
)

// The protocols that clients of mesh TLS announce (ALPN), as Istio's. By them servers tell mesh TLS from
// TLS of the application, and on ports whose protocol is detected HTTP from other protocols.
var (
	meshHTTPALPN    = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"}
	meshTCPALPN     = []string{"istio-peer-exchange", "istio"}
	inboundMeshALPN = slices.Concat(meshTCPALPN, meshHTTPALPN)
)

// meshALPNOf returns what a cluster announces. On a port whose protocol is detected it announces HTTP,
// which a client of another protocol replaces (withMeshALPN).
func meshALPNOf(p service.Protocol, http2 bool) []string {
	switch {
	case p == service.Unsupported && http2:
		return []string{"istio-h2", "istio", "h2"}
	case p == service.Unsupported:
		return []string{"istio-http/1.1", "istio"}
	case http2:
		return []string{"istio", "h2"}
	}
	return []string{"istio"}
}

// meshTLSApplications returns the protocols of mesh TLS that a chain of a port takes; nil for any.
// detected says that it is the chain of HTTP of a port whose protocol is detected, permissive that there
// may be other TLS.
func meshTLSApplications(p service.Protocol, detected, permissive bool) []string {
	switch {
	case detected:
		return meshHTTPALPN
	case !permissive:
		return nil
	case p == service.Unsupported:
		return meshTCPALPN
	}
	return inboundMeshALPN
}

// byTransport returns the chains of a port so that each connection finds its own. Envoy looks for the
// transport protocol first and never goes back: once a chain is for TLS, one for any protocol is not
// tried for TLS any more. So the latter becomes two. Of chains with the same match the first counts.
func byTransport(chains []*chain) (out []*chain) {
	split := slices.ContainsFunc(chains, func(c *chain) bool { return c.transport != "" })
	for _, c := range chains {
		if c.transport != "" || !split {
			out = append(out, c)
			continue
		}
		for _, transport := range []string{"raw_buffer", "tls"} {
			one := *c
			one.transport = transport
			out = append(out, &one)
		}
	}
	return distinct(out)
}

const (
	setStateFilter = "envoy.filters.network.set_filter_state"
	// protocolsKey is the key by which Envoy lets a connection choose what is announced upstream.
	protocolsKey = "envoy.network.application_protocols"
)

// withMeshALPN makes connections that are not HTTP announce that to clusters of ports whose protocol is
// detected, which would announce HTTP. It does nothing for other clusters.
func (ls *outboundListeners) withMeshALPN(filters []*listenerv3.Filter, clusters ...string) []*listenerv3.Filter {
	detected := false
	for _, name := range clusters {
		number, _, host, ok := ParseClusterName(name)
		if !ok {
			return filters
		}
		svc := ls.lookup(host)
		if svc == nil || svc.MeshExternal {
			return filters
		}
		port, ok := svc.Port(number)
		detected = detected || ok && port.Protocol == service.Unsupported
	}
	if !detected || !ls.view.MeshTLS() {
		return filters
	}
	return append([]*listenerv3.Filter{networkFilter(setStateFilter, &setstatev3.Config{OnNewConnection: []*statev3.FilterStateValue{{
		Key: &statev3.FilterStateValue_ObjectKey{ObjectKey: protocolsKey},
		Value: &statev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: "istio"},
			}},
		}},
	}}})}, filters...)
}
