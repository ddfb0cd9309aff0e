package inspect

import (
	"cmp"
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// ExplainInbound follows a request that comes to the proxy of a workload, at a port of the workload.
func ExplainInbound(r Resources, req Request) *Explanation {
	x := newExplainer(r, req)
	l := x.inboundListener()
	if l == nil {
		x.Outcome = fmt.Sprintf("the proxy has no listener for connections to port %d of its workload: they do not come through it", x.Port)
		return x.Explanation
	}
	x.add("listener", l.GetName(), document(l.GetMetadata()), "%s", l.GetTrafficDirection())
	c := x.inboundChain(l)
	if c == nil {
		x.Outcome = "closed: the port takes mutual TLS only (STRICT), and the client has no certificate of the mesh"
		if x.Client.Principal != "" {
			x.Outcome = "closed: the port takes no mutual TLS (DISABLE)"
		}
		return x.Explanation
	}
	how := "in plaintext"
	if c.GetTransportSocket() != nil {
		how = "by mutual TLS, as " + cmp.Or(x.Client.Principal, "a client without an identity")
	}
	x.add("filter chain", cmp.Or(c.GetName(), "(without a name)"), document(c.GetMetadata()), "%s", how)
	if tls := serverTLS(c); tls != nil && x.Client.Principal != "" {
		if x.Outcome = x.handshake(tls); x.Outcome != "" {
			return x.Explanation
		}
	}
	for _, f := range c.GetFilters() {
		switch m := unpack(f).(type) {
		case *managerv3.HttpConnectionManager:
			x.Outcome = cmp.Or(x.atManager(m, c.GetTransportSocket() != nil), x.depends)
			if x.Passes = x.Outcome == ""; x.Passes {
				x.Outcome = "allowed: the request goes to the workload"
			}
			return x.Explanation
		case *tcpv3.TcpProxy:
			x.Outcome = cmp.Or(x.guardTCP(c.GetFilters()), x.depends)
			if x.Passes = x.Outcome == ""; x.Passes {
				x.Outcome = "allowed: the connection goes to the workload"
			}
			return x.Explanation
		}
	}
	x.Outcome = "closed: the filter chain does nothing with the connection"
	return x.Explanation
}

// atManager follows a request through an HTTP connection manager of the workload. denied says why it does not pass.
func (x *explainer) atManager(m *managerv3.HttpConnectionManager, tls bool) (denied string) {
	request, answer := x.requestTo(m, tls)
	if answer != "" {
		return answer
	}
	return x.guardHTTP(m, request)
}

// TakesInbound reports whether a proxy takes connections to a port of its workload.
func TakesInbound(r Resources, port uint32) bool {
	return (&explainer{Resources: r, Request: Request{Port: port}}).inboundListener() != nil
}

// inboundListener returns the listener of a port of the workload, or that of all captured connections; nil for none.
func (x *explainer) inboundListener() (found *listenerv3.Listener) {
	for _, r := range x.All(xds.ListenerType) {
		l, ok := body(r, &listenerv3.Listener{})
		if !ok || l.GetTrafficDirection() != corev3.TrafficDirection_INBOUND {
			continue
		}
		if l.GetAddress().GetSocketAddress().GetPortValue() == x.Port {
			return l
		}
		if hasOriginalDestination(l) {
			found = l
		}
	}
	return found
}

func hasOriginalDestination(l *listenerv3.Listener) bool {
	return slices.ContainsFunc(l.GetListenerFilters(), func(f *listenerv3.ListenerFilter) bool {
		return f.GetName() == "envoy.filters.listener.original_dst"
	})
}

// inboundChain returns the filter chain that takes the connection: one of its port, or else one of any port; of these one
// for mutual TLS if the client has an identity, and one of HTTP before another unless the connection is not HTTP. It is nil if none takes it.
func (x *explainer) inboundChain(l *listenerv3.Listener) *listenerv3.FilterChain {
	all := slices.Clone(l.GetFilterChains())
	if d := l.GetDefaultFilterChain(); d != nil {
		all = append(all, d)
	}
	of := func(port uint32) (chains []*listenerv3.FilterChain) {
		for _, c := range all {
			if c.GetFilterChainMatch().GetDestinationPort().GetValue() == port {
				chains = append(chains, c)
			}
		}
		return chains
	}
	chains := of(x.Port)
	if len(chains) == 0 {
		chains = of(0)
	}
	var best *listenerv3.FilterChain
	for _, c := range chains {
		ofMesh := c.GetTransportSocket() != nil
		if ofMesh != (x.Client.Principal != "") || !ofMesh && c.GetFilterChainMatch().GetTransportProtocol() == "tls" { // the application's own
			continue
		}
		if best == nil || isHTTP(c) != x.TCP && isHTTP(best) == x.TCP {
			best = c
		}
	}
	return best
}

func isHTTP(c *listenerv3.FilterChain) bool {
	return slices.ContainsFunc(c.GetFilters(), func(f *listenerv3.Filter) bool {
		_, is := unpack(f).(*managerv3.HttpConnectionManager)
		return is
	})
}
