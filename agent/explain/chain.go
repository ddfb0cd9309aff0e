package explain

import (
	"fmt"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/holdfast-xds/holdfast/internal/routing"
)

// filterChain returns the filter chain that takes a request's connection, and what was assumed. Like Envoy it
// compares one criterion after the other, and for each keeps the chains that are the most specific: the port, the
// server name, and whether the connection has TLS. Addresses, sources and ALPN are not known: a chain without such
// criteria is preferred, because it takes most connections.
func filterChain(l *listenerv3.Listener, r Request) (chain *listenerv3.FilterChain, conditions []string) {
	chains := slices.Clone(l.GetFilterChains())
	keep := func(rank func(m *listenerv3.FilterChainMatch) int) {
		best, kept := 0, []*listenerv3.FilterChain(nil)
		for _, c := range chains {
			switch n := rank(c.GetFilterChainMatch()); {
			case n <= 0 || n < best:
			case n > best:
				best, kept = n, []*listenerv3.FilterChain{c}
			default:
				kept = append(kept, c)
			}
		}
		chains = kept
	}
	keep(func(m *listenerv3.FilterChainMatch) int {
		switch {
		case m.GetDestinationPort() == nil:
			return 1
		case m.GetDestinationPort().GetValue() == r.Port:
			return 2
		}
		return 0
	})
	keep(func(m *listenerv3.FilterChainMatch) int { return serverName(m.GetServerNames(), r) })
	keep(func(m *listenerv3.FilterChainMatch) int {
		switch protocol := m.GetTransportProtocol(); {
		case protocol == "":
			return 1
		case (protocol == "tls") == (r.Scheme == "https"):
			return 2
		}
		return 0
	})
	keep(func(m *listenerv3.FilterChainMatch) int { return 100 - len(unknown(m)) })
	if len(chains) == 0 {
		if l.GetDefaultFilterChain() != nil {
			return l.GetDefaultFilterChain(), []string{"the default one"}
		}
		return nil, nil
	}
	for _, criterion := range unknown(chains[0].GetFilterChainMatch()) {
		conditions = append(conditions, "if "+criterion)
	}
	return chains[0], conditions
}

// takesTLS reports whether a filter chain ends TLS; known is false for transport sockets of other kinds.
func takesTLS(c *listenerv3.FilterChain) (tls, known bool) {
	if c.GetTransportSocket() == nil {
		return false, true
	}
	tls = unpack(c.GetTransportSocket().GetTypedConfig(), &tlsv3.DownstreamTlsContext{})
	return tls, tls
}

// onlyTLS reports whether all filter chains of a listener end TLS.
func onlyTLS(l *listenerv3.Listener) bool {
	all := slices.Clone(l.GetFilterChains())
	if l.GetDefaultFilterChain() != nil {
		all = append(all, l.GetDefaultFilterChain())
	}
	return len(all) > 0 && !slices.ContainsFunc(all, func(c *listenerv3.FilterChain) bool {
		tls, _ := takesTLS(c)
		return !tls
	})
}

// isHTTP reports whether a filter chain has an HTTP connection manager: TLS passes through the TCP proxy.
func isHTTP(c *listenerv3.FilterChain) bool {
	return slices.ContainsFunc(c.GetFilters(), func(f *listenerv3.Filter) bool {
		return unpack(f.GetTypedConfig(), &hcmv3.HttpConnectionManager{})
	})
}

// serverName returns how specifically server names have the host of a request: 0 if they do not, 1 if there are none, and
// more the more of the host they have.
func serverName(names []string, r Request) int {
	if len(names) == 0 {
		return 1
	}
	best, host := 0, ""
	if r.Scheme == "https" {
		host = strings.ToLower(routing.WithoutPort(r.Host))
	}
	for _, name := range names {
		suffix, wildcard := strings.CutPrefix(name, "*")
		switch {
		case !wildcard && name == host:
			best = 1 << 20
		case wildcard && host != "" && strings.HasSuffix(host, suffix) && len(host) > len(suffix):
			best = max(best, 2+len(suffix))
		}
	}
	return best
}

// unknown returns the criteria of a filter chain that a request does not tell.
func unknown(m *listenerv3.FilterChainMatch) (criteria []string) {
	if ranges := m.GetPrefixRanges(); len(ranges) > 0 {
		criteria = append(criteria, "the destination address is in "+words(ranges[0]))
	}
	if len(m.GetSourcePrefixRanges())+len(m.GetDirectSourcePrefixRanges())+len(m.GetSourcePorts()) > 0 {
		criteria = append(criteria, "the source address and port are those of the chain")
	}
	if m.GetSourceType() != listenerv3.FilterChainMatch_ANY {
		criteria = append(criteria, fmt.Sprintf("the source is %s", m.GetSourceType()))
	}
	if protocols := m.GetApplicationProtocols(); len(protocols) > 0 {
		criteria = append(criteria, "the client speaks "+strings.Join(protocols, " or "))
	}
	return criteria
}
