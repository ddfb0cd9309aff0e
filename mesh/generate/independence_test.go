package generate

import (
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// had is what a proxy has of documents, by what asks for it: a cluster by its name, the routes of a host of a route configuration, the
// filters of each kind of connections to a listener, and those of the chain that takes a connection in Envoy.
func had(t testing.TB, resources []*xds.Resource) map[string]string {
	t.Helper()
	out := make(map[string]string)
	text := func(messages ...proto.Message) string {
		var b strings.Builder
		for _, m := range messages {
			b.WriteString(prototext.Format(m))
		}
		return b.String()
	}
	unpack := func(r *xds.Resource, into proto.Message) {
		if err := r.Body.UnmarshalTo(into); err != nil {
			t.Fatal(err)
		}
	}
	listeners := make(map[string]*listenerv3.Listener)
	for _, r := range resources {
		switch r.Type {
		case xds.ClusterType:
			out["cluster "+r.Name] = string(r.Body.GetValue())
		case xds.RouteType:
			rc := &routev3.RouteConfiguration{}
			unpack(r, rc)
			for _, vh := range rc.VirtualHosts {
				if len(vh.Routes) == 0 && vh.RequireTls == routev3.VirtualHost_NONE {
					continue // what no document asks for
				}
				domains := vh.Domains
				vh.Name, vh.Domains = "", nil
				for _, domain := range domains {
					out["routes of "+domain+" in "+r.Name] = text(vh)
				}
			}
		case xds.ListenerType:
			l := &listenerv3.Listener{}
			unpack(r, l)
			for _, at := range addresses(l) {
				listeners[at] = l
			}
			if c := l.DefaultFilterChain; c != nil { // it takes what no other chain does, as one alone does that has no match
				l.FilterChains = append(l.FilterChains, c)
			}
			for _, c := range l.FilterChains {
				m := c.GetFilterChainMatch()
				names, prefixes, applications := m.GetServerNames(), []string{}, m.GetApplicationProtocols()
				for _, p := range m.GetPrefixRanges() {
					prefixes = append(prefixes, fmt.Sprint(p.GetAddressPrefix(), "/", p.GetPrefixLen().GetValue()))
				}
				var socket []proto.Message
				for _, f := range c.Filters {
					socket = append(socket, f)
				}
				if c.TransportSocket != nil {
					socket = append(socket, c.TransportSocket)
				}
				for _, name := range orNone(names) {
					for _, prefix := range orNone(prefixes) {
						for _, application := range orNone(applications) {
							out[fmt.Sprintf("connections to %s: name %q, prefix %q, application %q, transport %q", l.Name, name, prefix, application, strings.TrimPrefix(m.GetTransportProtocol(), "raw_buffer"))] = text(socket...)
						}
					}
				}
			}
		}
	}
	for _, probe := range probes() {
		l := listeners[net.JoinHostPort(probe.address, probe.port)]
		if l == nil {
			l = listeners[net.JoinHostPort("0.0.0.0", probe.port)]
		}
		if c := probe.takenBy(l); c != nil && asksForSome(c) {
			var parts []proto.Message
			for _, f := range c.Filters {
				parts = append(parts, f)
			}
			if c.TransportSocket != nil {
				parts = append(parts, c.TransportSocket)
			}
			out[fmt.Sprintf("connection %+v", probe)] = text(parts...)
		}
	}
	return out
}

// addresses returns those at which a listener is.
func addresses(l *listenerv3.Listener) []string {
	at := func(a *corev3.Address) string {
		return net.JoinHostPort(a.GetSocketAddress().GetAddress(), strconv.Itoa(int(a.GetSocketAddress().GetPortValue())))
	}
	out := []string{at(l.Address)}
	for _, more := range l.AdditionalAddresses {
		out = append(out, at(more.Address))
	}
	return out
}

// probe is a connection.
type probe struct{ port, address, name, transport, application string }

func probes() (all []probe) {
	for _, port := range []string{"80", "443", "8443", "9000", "15443"} {
		for _, address := range []string{"10.1.9.9", "10.2.0.1", "10.96.0.20", "10.9.9.9"} {
			all = append(all, probe{port, address, "", "raw_buffer", "http/1.1"}, probe{port, address, "", "raw_buffer", ""})
			for _, name := range []string{"a.test", "b.test", "c.test", "db.shop.svc.cluster.local", "svc.one", "svc.two", "pay.test"} {
				all = append(all, probe{port, address, name, "tls", ""})
			}
		}
	}
	return all
}

// asksForSome reports whether a chain asks for more than addresses: one that has all connections of its addresses has what is of nobody else,
// who asks for more.
func asksForSome(c *listenerv3.FilterChain) bool {
	m := c.GetFilterChainMatch()
	return len(m.GetServerNames())+len(m.GetApplicationProtocols()) > 0 || m.GetTransportProtocol() != ""
}

// takenBy returns the filter chain that takes the connection in Envoy, which looks at the port, the address, the name, the transport and the
// application, one after the other, and never goes back; nil for none.
func (p probe) takenBy(l *listenerv3.Listener) *listenerv3.FilterChain {
	chains := l.GetFilterChains()
	only := func(rank func(m *listenerv3.FilterChainMatch) int) {
		best := -1
		for _, c := range chains {
			best = max(best, rank(c.GetFilterChainMatch()))
		}
		chains = slices.DeleteFunc(slices.Clone(chains), func(c *listenerv3.FilterChain) bool { return best < 0 || rank(c.GetFilterChainMatch()) != best })
	}
	one := func(none, has bool) int {
		switch {
		case none:
			return 0
		case has:
			return 1
		}
		return -1
	}
	only(func(m *listenerv3.FilterChainMatch) int {
		return one(m.GetDestinationPort() == nil, strconv.Itoa(int(m.GetDestinationPort().GetValue())) == p.port)
	})
	only(func(m *listenerv3.FilterChainMatch) int {
		longest := one(len(m.GetPrefixRanges()) == 0, false)
		for _, r := range m.GetPrefixRanges() {
			if netip.MustParsePrefix(fmt.Sprint(r.AddressPrefix, "/", r.PrefixLen.GetValue())).Contains(netip.MustParseAddr(p.address)) {
				longest = max(longest, 1+int(r.PrefixLen.GetValue()))
			}
		}
		return longest
	})
	only(func(m *listenerv3.FilterChainMatch) int {
		return one(len(m.GetServerNames()) == 0, slices.Contains(m.GetServerNames(), p.name))
	})
	only(func(m *listenerv3.FilterChainMatch) int {
		return one(m.GetTransportProtocol() == "", m.GetTransportProtocol() == p.transport)
	})
	only(func(m *listenerv3.FilterChainMatch) int {
		return one(len(m.GetApplicationProtocols()) == 0, slices.Contains(m.GetApplicationProtocols(), p.application))
	})
	if len(chains) > 0 {
		return chains[0]
	}
	return l.GetDefaultFilterChain()
}

func orNone(list []string) []string {
	if len(list) == 0 {
		return []string{""}
	}
	return list
}

// unclaimed reports whether something is what a proxy does with what no document asks for, and so anybody's who does.
func unclaimed(text string) bool {
	return strings.Contains(text, "PassthroughCluster") || strings.Contains(text, "BlackHoleCluster")
}

// changed returns what a proxy has of the older tenant's documents, and has no more, or has otherwise, beside those of the other one.
func changed(t *testing.T, node_, older, both string) (out []string) {
	t.Helper()
	worlds := make([]map[string]string, 2)
	for i, documents := range []string{older, both} {
		synctest.Test(t, func(t *testing.T) {
			m := load(t, []byte(documents))
			worlds[i] = had(t, m.all(m.proxy(t, node(t, []byte(node_)))))
		})
	}
	for _, what := range slices.Sorted(maps.Keys(worlds[0])) {
		if unclaimed(worlds[0][what]) {
			continue
		}
		if now, has := worlds[1][what]; !has || now != worlds[0][what] {
			out = append(out, fmt.Sprintf("%s\nwas\n%s\nis\n%s", what, worlds[0][what], now))
		}
	}
	return out
}

// owned is a mesh configuration that names the owner of all hosts that the older tenant may write.
const owned = `apiVersion: v1
kind: ConfigMap
metadata:
  name: istio
  namespace: istio-system
  annotations:
    mesh.holdfast.dev/host-owners: |
      shop: a.test b.test c.test db.shop.svc.cluster.local svc.one svc.two
`

// aloneAndBoth returns the documents of shop alone, and those of both tenants, of which shop's are older. Either the mesh configuration
// names the owner of the hosts, or the younger one writes no VirtualService, since anybody may route the host of another one that has none.
func (w *tenants) aloneAndBoth(t testing.TB, owners bool) (alone, both string) {
	// The hosts of which the older tenant writes are services: one that nobody has is anybody's who writes it.
	own := []string{`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {creationTimestamp: "2019-01-01T00:00:00Z", name: destinations, namespace: shop}
spec: {hosts: [svc.one, svc.two, a.test, b.test, c.test], ports: [{number: 80, name: p0, protocol: HTTP}, {number: 9000, name: p1, protocol: HTTP2}], resolution: STATIC, endpoints: [{address: 10.3.0.2}]}
`}
	all := slices.Clone(own)
	if owners {
		own, all = append(own, owned), append(all, owned)
	}
	for text := range strings.SplitSeq(w.documents(t), "---\n") {
		if !owners && (strings.Contains(text, "kind: VirtualService") || strings.Contains(text, "\nkind: HTTPRoute")) && strings.Contains(text, "namespace: evil}") {
			continue
		}
		year := "2021"
		of := strings.Contains(text, "namespace: shop}")
		if of {
			year = "2020"
		}
		text = strings.Replace(text, "metadata: {", "metadata: {creationTimestamp: \""+year+"-01-01T00:00:00Z\", ", 1)
		all = append(all, text)
		if of {
			own = append(own, text)
		}
	}
	return strings.Join(own, "---\n"), strings.Join(all, "---\n")
}

var independentSeeds = flag.Uint64("independent-seeds", 100, "`NUMBER` of seeds of the documents of two tenants of which the younger must change nothing of the older's")

// What clients and gateways have of the documents of a tenant does not change by what a younger one writes who knows nothing of it.
// Exceptions are what docs/mesh.md says: hosts with wildcards, which no document here has.
func TestAYoungerTenantChangesNothingOfAnOlderOne(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+*independentSeeds; seed++ {
		independent(t, seed)
	}
}

func independent(t *testing.T, seed uint64) {
	t.Helper()
	for _, owners := range []bool{false, true} {
		alone, both := newTenantsWithout(t, seed).aloneAndBoth(t, owners)
		compared(t, seed, alone, both)
	}
}

// compared compares what proxies have of documents.
func compared(t *testing.T, seed uint64, alone, both string) {
	t.Helper()
	for name, text := range map[string]string{
		"gateway":        "id: router~10.0.0.9~gw.default~default.svc.cluster.local\nmetadata: {NAMESPACE: default, LABELS: {istio: gateway}}",
		"edge":           "id: router~10.0.0.9~edge.shop~shop.svc.cluster.local\nmetadata: {NAMESPACE: shop, LABELS: {gateway.networking.k8s.io/gateway-name: edge}}",
		"client":         "id: sidecar~10.0.0.8~web.client~client.svc.cluster.local\nmetadata: {NAMESPACE: client, INTERCEPTION_MODE: REDIRECT}",
		"client of shop": "id: sidecar~10.0.0.8~web.shop~shop.svc.cluster.local\nmetadata: {NAMESPACE: shop, INTERCEPTION_MODE: REDIRECT}",
	} {
		if found := changed(t, text, alone, both); len(found) > 0 {
			t.Fatalf("seed %d, %s: %s\n\n%s", seed, name, found[0], both)
		}
	}
}

// FuzzYoungerTenant looks at documents of any seed.
func FuzzYoungerTenant(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64) { independent(t, seed) })
}
