package generate

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// plaintextHTTP are the protocols that the HTTP inspector finds.
var plaintextHTTP = []string{"http/1.0", "http/1.1", "h2c"}

// chain is a filter chain that is being made: which connections it takes, and what it does.
type chain struct {
	name         string
	serverNames  []string // SNI; "*" is any
	prefixes     []string // destination addresses
	port         uint32   // destination port; 0 for any
	applications []string // ALPN, or what the HTTP inspector finds
	transport    string   // "tls" or "raw_buffer"; "" for any
	filters      []*listenerv3.Filter
	// later returns the filters if filters is nil: most chains of a port that many services have are
	// left out.
	later  func() []*listenerv3.Filter
	tls    *tlsv3.DownstreamTlsContext
	origin config.Key
}

// takesAll reports whether the chain takes every connection.
func (c *chain) takesAll() bool {
	return (len(c.serverNames) == 0 || slices.Contains(c.serverNames, "*")) && len(c.prefixRanges()) == 0 &&
		c.port == 0 && len(c.applications) == 0 && c.transport == ""
}

// takesTheSame reports whether two chains ask for the same of connections.
func (c *chain) takesTheSame(other *chain) bool {
	return c.port == other.port && c.transport == other.transport && slices.Equal(c.applications, other.applications) &&
		slices.Equal(c.serverNames, other.serverNames) && slices.Equal(c.prefixes, other.prefixes)
}

// ranges returns the ranges of addresses, each once and in order: documents may have one in several spellings. None is every address.
func (c *chain) ranges() (out []netip.Prefix) {
	seen := make(map[netip.Prefix]bool, len(c.prefixes))
	for _, text := range c.prefixes {
		switch prefix, err := parsePrefix(text); {
		case err != nil || isNoAddress(prefix):
		case prefix.Bits() == 0:
			return nil
		case !seen[prefix]:
			seen[prefix] = true
			out = append(out, prefix)
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// isNoAddress reports whether a prefix is 0.0.0.0 or ::, which nobody has.
func isNoAddress(p netip.Prefix) bool { return p.IsSingleIP() && p.Addr().IsUnspecified() }

func (c *chain) prefixRanges() (out []*corev3.CidrRange) {
	for _, p := range c.ranges() {
		out = append(out, &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: u32(uint32(p.Bits()))}) //nolint:gosec // at most 128
	}
	return out
}

// parsePrefix reads an address or a prefix.
func parsePrefix(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		return p.Masked(), err
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return a.Prefix(a.BitLen())
}

// match returns which connections the chain takes; nil for all.
func (c *chain) match() *listenerv3.FilterChainMatch {
	if c.takesAll() {
		return nil
	}
	m := &listenerv3.FilterChainMatch{
		PrefixRanges: c.prefixRanges(), ApplicationProtocols: c.applications, TransportProtocol: c.transport,
	}
	if !slices.Contains(c.serverNames, "*") {
		for _, name := range c.serverNames { // Envoy compares them with the SNI in lower case
			if !isPartialWildcard(name) {
				m.ServerNames = append(m.ServerNames, strings.ToLower(name))
			}
		}
		slices.Sort(m.ServerNames)
		m.ServerNames = slices.Compact(m.ServerNames)
	}
	if c.port != 0 {
		m.DestinationPort = u32(c.port)
	}
	return m
}

// point is one kind of connections that a filter chain takes. Envoy rejects a listener in which two chains take the same.
type point struct {
	port                           uint32
	prefix, name, application, via string // "" is any; via is the transport
}

// distinct returns the chains with what no chain before them takes: of those that overlap the first has what both ask for, and the others
// live on with the rest. A chain of which nothing is left is left out.
//
// Envoy looks at the address first, and never goes back from the longest range to a wider one: a chain has what it asks for in the ranges of
// the others within its own, too, unless one has all connections there: an older one or, for a chain that has all of its own, any other.
func distinct(chains []*chain) (out []*chain) {
	chains = slices.DeleteFunc(slices.Clone(chains), func(c *chain) bool {
		return len(c.serverNames) > 0 && !slices.ContainsFunc(c.serverNames, func(name string) bool { return !isPartialWildcard(name) })
	})
	r := newRanges(chains)
	taken := make(map[point]bool, len(r.chains))
	for i, c := range r.chains {
		out = append(out, c.besides(taken)...)
		if c.takesAll() {
			continue // it has what no other takes, wherever that is
		}
		if inner := r.within(i); inner != nil {
			out = append(out, inner.besides(taken)...)
		}
	}
	return out
}

// isPartialWildcard reports whether "*" in a name is a part of a label. Envoy rejects a listener with such a name, and no connection has one.
func isPartialWildcard(name string) bool {
	return strings.Contains(name, "*") && name != "*" && !strings.HasPrefix(name, "*.")
}

// takesSome reports whether the chain asks for more than addresses and a port.
func (c *chain) takesSome() bool {
	return len(c.serverNames) > 0 && !slices.Contains(c.serverNames, "*") || len(c.applications) > 0 || c.transport != ""
}

// maxInner bounds how many ranges the chains of a listener get because of others. A younger chain whose ranges would cost the older ones more is
// left out.
const maxInner = 100_000

// ranges are the ranges of the chains of a listener.
type ranges struct {
	chains []*chain
	own    [][]netip.Prefix // of each chain
	at     map[netip.Prefix]*holders
	sorted []netip.Prefix // those that a younger chain has first
	left   int            // of maxInner, for those of older chains
}

// holders are the chains of a range, by their places: the last one, and the first that has all its connections.
type holders struct{ last, whole int }

func newRanges(chains []*chain) *ranges {
	r := &ranges{at: make(map[netip.Prefix]*holders), left: maxInner}
	open, cost := 0, 0
	for _, c := range chains {
		own := c.ranges()
		if more := open * len(own); more > 0 {
			if cost+more > maxInner {
				continue
			}
			cost += more
		}
		i := len(r.chains)
		r.chains, r.own = append(r.chains, c), append(r.own, own)
		if !c.takesAll() {
			open++
		}
		for _, p := range own {
			h := r.at[p]
			if h == nil {
				h = &holders{whole: math.MaxInt}
				r.at[p] = h
				r.sorted = append(r.sorted, p)
			}
			h.last = i
			if !c.takesSome() {
				h.whole = min(h.whole, i)
			}
		}
	}
	slices.SortFunc(r.sorted, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(r.at[b].last, r.at[a].last), strings.Compare(a.String(), b.String()))
	})
	return r
}

// within returns a chain for the ranges of others that are within its own; nil if there are none.
func (r *ranges) within(i int) *chain {
	c, own := r.chains[i], make(map[netip.Prefix]bool, len(r.own[i]))
	for _, p := range r.own[i] {
		own[p] = true
	}
	var inner []string
	for _, p := range r.sorted {
		h := r.at[p]
		if own[p] {
			continue
		}
		if h.last <= i { // only older chains have it, and those that follow
			if r.left--; r.left < 0 {
				break
			}
		}
		mine := 0 // the length of the longest of its own ranges that has this one within
		if len(own) > 0 {
			mine = longestOf(p, func(wider netip.Prefix) bool { return own[wider] })
		}
		switch {
		case mine < 0:
		case c.takesSome() && h.whole < i:
		case !c.takesSome() && longestOf(p, func(wider netip.Prefix) bool { return r.at[wider] != nil && r.at[wider].whole < math.MaxInt }) > mine:
		default:
			inner = append(inner, p.String())
		}
	}
	if len(inner) == 0 {
		return nil
	}
	slices.Sort(inner)
	out := *c
	out.prefixes = inner
	if out.name != "" {
		out.name += "~within"
	}
	return &out
}

// longestOf returns the length of the longest range that another one is within, or is, and of which is says yes; -1 for none.
func longestOf(p netip.Prefix, is func(netip.Prefix) bool) int {
	for bits := p.Bits(); bits >= 0; bits-- {
		if wider, err := p.Addr().Prefix(bits); err == nil && is(wider) {
			return bits
		}
	}
	return -1
}

// besides returns the chain without the points that are taken, and takes the others. What is left of one may be several chains.
func (c *chain) besides(taken map[point]bool) []*chain {
	m := c.match()
	orAny := func(list []string) []string {
		if len(list) == 0 {
			return []string{""}
		}
		return list
	}
	var ranges []string
	for _, r := range m.GetPrefixRanges() {
		ranges = append(ranges, r.GetAddressPrefix()+"/"+strconv.Itoa(int(r.GetPrefixLen().GetValue())))
	}
	names, ranges, applications := orAny(m.GetServerNames()), orAny(slices.Compact(ranges)), orAny(m.GetApplicationProtocols())
	// left has the applications that are left of each name and range; rest joins the names and ranges of which the same is left.
	var rest []*chain
	whole, same := true, make(map[string]*chain)
	for _, name := range names {
		byApplications := make(map[string]*chain) // of this name
		var order []string
		for _, prefix := range ranges {
			var left []string
			for _, application := range applications {
				p := point{c.port, prefix, name, application, c.transport}
				if !taken[p] {
					taken[p] = true
					left = append(left, application)
				}
			}
			whole = whole && len(left) == len(applications)
			if len(left) == 0 {
				continue
			}
			key := strings.Join(left, ",")
			if byApplications[key] == nil {
				part := *c
				part.serverNames, part.prefixes, part.applications = known(name), nil, slices.DeleteFunc(left, func(s string) bool { return s == "" })
				byApplications[key] = &part
				order = append(order, key)
			}
			byApplications[key].prefixes = append(byApplications[key].prefixes, known(prefix)...)
		}
		for _, key := range order {
			part := byApplications[key]
			key += "|" + strings.Join(part.prefixes, ",")
			if of := same[key]; of != nil {
				of.serverNames = append(of.serverNames, part.serverNames...)
				continue
			}
			same[key] = part
			rest = append(rest, part)
		}
	}
	if whole {
		return []*chain{c}
	}
	for i, part := range rest {
		if part.name != "" && i > 0 {
			part.name += "~" + strconv.Itoa(i)
		}
	}
	return rest
}

// known returns a list of a text; an empty one for "", which is any.
func known(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

func (c *chain) message() *listenerv3.FilterChain {
	filters := c.filters
	if filters == nil {
		filters = c.later()
	}
	out := &listenerv3.FilterChain{Name: c.name, Filters: filters, FilterChainMatch: c.match(), Metadata: originMetadata(c.origin)}
	if c.tls != nil {
		out.TransportSocket = &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(c.tls)}}
	}
	return out
}

// setChains puts the chains into a listener. If there are several, one that takes every connection is
// the default: a connection that begins to match another one is not lost. Without one the default is
// otherwise.
func setChains(l *listenerv3.Listener, chains []*chain, otherwise []*listenerv3.Filter) {
	for _, c := range chains {
		if c.takesAll() {
			l.DefaultFilterChain = c.message()
		} else {
			l.FilterChains = append(l.FilterChains, c.message())
		}
	}
	switch {
	case l.DefaultFilterChain != nil && len(l.FilterChains) == 0:
		l.FilterChains, l.DefaultFilterChain = []*listenerv3.FilterChain{l.DefaultFilterChain}, nil
	case l.DefaultFilterChain == nil && otherwise != nil:
		l.DefaultFilterChain = &listenerv3.FilterChain{Name: "PassthroughFilterChain", Filters: otherwise}
	}
}

// inspects adds the filters that find out what the chains ask for, in the order that they need.
func inspects(l *listenerv3.Listener, chains []*chain) {
	tls := slices.ContainsFunc(chains, func(c *chain) bool {
		return len(c.serverNames) > 0 || c.transport == "tls" || c.tls != nil && len(c.tls.GetCommonTlsContext().GetAlpnProtocols()) > 0
	})
	http := slices.ContainsFunc(chains, func(c *chain) bool { return len(c.applications) > 0 && c.transport != "tls" })
	if tls {
		l.ListenerFilters = append(l.ListenerFilters, listenerFilter("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{}))
	}
	if http {
		l.ListenerFilters = append(l.ListenerFilters, listenerFilter("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{}))
	}
}

func listenerFilter(name string, config proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{Name: name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: pack(config)}}
}

func originalDestinationFilter() *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{})
}

func proxyProtocolFilter() *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.proxy_protocol", &proxyprotocolv3.ProxyProtocol{})
}

// excludePorts disables a listener filter for destination ports: it would wait for the first bytes of
// a protocol in which the server speaks first.
func excludePorts(f *listenerv3.ListenerFilter, ports []uint32) {
	var rules []*listenerv3.ListenerFilterChainMatchPredicate
	for _, port := range ports {
		rules = append(rules, &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
			DestinationPortRange: &typev3.Int32Range{Start: int32(port), End: int32(port) + 1},
		}})
	}
	switch len(rules) {
	case 0:
	case 1:
		f.FilterDisabled = rules[0]
	default:
		f.FilterDisabled = &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
			OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules},
		}}
	}
}

// logUnmatched makes a listener log the connections that no filter chain takes, unless the mesh
// configuration disables that.
func (g *Generator) logUnmatched(l *listenerv3.Listener) {
	if !g.snap.Mesh.GetDisableEnvoyListenerLog() {
		l.AccessLog = g.accessLogs(&accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}},
		}})
	}
}

// tcpProxy returns the filter that forwards connections to a cluster.
func (g *Generator) tcpProxy(cluster string) *listenerv3.Filter {
	return g.tcpProxyNamed(cluster, cluster)
}

// tcpProxyNamed is tcpProxy with a name of its statistics.
func (g *Generator) tcpProxyNamed(stats, cluster string) *listenerv3.Filter {
	return networkFilter(tcpFilter, &tcpv3.TcpProxy{
		StatPrefix: stats, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: cluster}, AccessLog: g.accessLogs(nil),
	})
}

// listenerName returns the name of a listener of an address and a port: 0.0.0.0_80.
func listenerName(address string, port uint32) string { return address + "_" + strconv.Itoa(int(port)) }

func socketAddress(address string, port uint32) *corev3.SocketAddress {
	return &corev3.SocketAddress{Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}}
}

// addressOf returns the address of a listener: an IP address with a port, or a Unix socket.
func addressOf(address string, port uint32) *corev3.Address {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: socketAddress(address, port)}}
}

// setAddresses sets the address of a listener, and further ones of the same port.
func setAddresses(l *listenerv3.Listener, addresses []string, port uint32) {
	l.Address = addressOf(addresses[0], port)
	for _, a := range addresses[1:] {
		l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: addressOf(a, port)})
	}
}

// wildcards returns the addresses that stand for all of the proxy's address families, locals those of
// the loopback interface.
func wildcards(f proxy.Families) []string {
	return map[proxy.Families][]string{proxy.IPv4: {"0.0.0.0"}, proxy.IPv6: {"::"}, proxy.DualStack: {"0.0.0.0", "::"}}[f]
}

func locals(f proxy.Families) []string {
	return map[proxy.Families][]string{proxy.IPv4: {"127.0.0.1"}, proxy.IPv6: {"::1"}, proxy.DualStack: {"127.0.0.1", "::1"}}[f]
}
