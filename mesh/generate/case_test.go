package generate

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// Names of DNS have no case: Envoy takes no domain twice, whatever its case, and compares server names with the SNI in lower
// case.
func TestNamesHaveNoCase(t *testing.T) {
	const documents = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a, namespace: shop}
spec:
  hosts: [A.test]
  ports: [{name: http, number: 80, protocol: HTTP}, {name: tls, number: 443, protocol: TLS}]
  resolution: DNS
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: shop}
spec:
  hosts: [A.test]
  http: [{directResponse: {status: 418}}]
  tls: [{match: [{port: 443, sniHosts: [A.test]}], route: [{destination: {host: A.test}}]}]
`
	synctest.Test(t, func(t *testing.T) {
		m := load(t, []byte(documents))
		g := New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards)
		out := g.Outbound(proxy.NewView(m.proxy(t, node(t, []byte("id: web\nmetadata: {NAMESPACE: shop, INTERCEPTION_MODE: REDIRECT}")))))
		rc := &routev3.RouteConfiguration{}
		if err := out.Routes["80"].Body.UnmarshalTo(rc); err != nil {
			t.Fatal(err)
		}
		var domains []string
		for _, vh := range rc.VirtualHosts {
			for _, d := range vh.Domains {
				domains = append(domains, strings.ToLower(d))
			}
		}
		slices.Sort(domains)
		if got := len(slices.Compact(slices.Clone(domains))); got != len(domains) || !slices.Contains(domains, "a.test") {
			t.Errorf("domains %q", domains)
		}
		var names []string
		for _, r := range out.Listeners {
			l := &listenerv3.Listener{}
			if err := r.Body.UnmarshalTo(l); err != nil {
				t.Fatal(err)
			}
			for _, c := range l.FilterChains {
				names = append(names, c.GetFilterChainMatch().GetServerNames()...)
			}
		}
		if !slices.Contains(names, "a.test") || slices.Contains(names, "A.test") {
			t.Errorf("server names %q", names)
		}
	})
}
