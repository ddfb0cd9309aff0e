package generate

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// patchedMesh returns a generator of the documents of testdata/envoyfilter, and a sidecar from its Node.
func patchedMesh(t *testing.T, text string) (*Generator, *proxy.Proxy) {
	t.Helper()
	documents, err := os.ReadFile("testdata/envoyfilter/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := load(t, documents)
	return New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards), m.proxy(t, node(t, []byte(text)))
}

// What the golden file shows is left out is told, once for each resource.
func TestPatchesThatAreLeftOutAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := patchedMesh(t, "id: \"sidecar~10.1.2.3~web.shop~shop.svc.cluster.local\"\nmetadata: {LABELS: {app: web}}")
		out, in := g.Outbound(proxy.NewView(p)), g.Inbound(proxy.NewView(p))
		var got []string
		for _, f := range slices.Concat(out.Failures, in.Failures) {
			got = append(got, xds.Short(f.TypeURL)+" "+f.String())
		}
		slices.Sort(got)
		const wrong = ": a envoy.extensions.filters.http.lua.v3.Lua cannot be merged into a envoy.extensions.filters.http.router.v3.Router"
		want := []string{
			"CDS EnvoyFilter shop/broken spec.configPatches[1] is left out of PassthroughCluster: there is another one of this name",
			"LDS EnvoyFilter shop/broken spec.configPatches[0] is left out of 0.0.0.0_80" + wrong,
			"LDS EnvoyFilter shop/broken spec.configPatches[0] is left out of virtualInbound" + wrong,
			"LDS EnvoyFilter shop/broken spec.configPatches[2] is left out of taken: another listener has this address",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// A patch of routes is for the routes of a port in one piece: a sidecar with such patches does not get its
// virtual hosts one by one.
func TestPatchedRoutesAreInOnePiece(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := patchedMesh(t, "id: web\nmetadata: {NAMESPACE: shop, VHDS: 'true', INTERCEPTION_MODE: REDIRECT}")
		r := g.OutboundRoutes(proxy.NewView(p))
		rc := &routev3.RouteConfiguration{}
		if err := r.Routes["80"].Body.UnmarshalTo(rc); err != nil || len(r.VirtualHosts) > 0 || rc.Vhds != nil || rc.VirtualHosts[0].Routes[0].Name != "health" {
			t.Errorf("%d virtual hosts, routes %v, %v", len(r.VirtualHosts), rc, err)
		}
		g, p = patchedMesh(t, "id: web\nmetadata: {NAMESPACE: other, VHDS: 'true', INTERCEPTION_MODE: REDIRECT}")
		if r := g.OutboundRoutes(proxy.NewView(p)); len(r.VirtualHosts) == 0 {
			t.Error("a sidecar without patches of routes has no virtual hosts of their own")
		}
	})
}

// What a bootstrap gets is in the order of the patches, and only for the proxies that they select.
func TestPartsOfABootstrapAreForItsProxy(t *testing.T) {
	const documents = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: all, namespace: istio-system}
spec:
  priority: 5
  configPatches:
  - {applyTo: BOOTSTRAP, match: {context: GATEWAY}, patch: {operation: MERGE, value: {stats_flush_interval: 1s}}}
  - {applyTo: BOOTSTRAP, patch: {operation: ADD, value: {stats_flush_interval: 2s}}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  configPatches:
  - {applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: a}}}
  - {applyTo: BOOTSTRAP, match: {proxy: {metadata: {TEAM: red}}}, patch: {operation: MERGE, value: {stats_flush_interval: 3s}}}
`
	synctest.Test(t, func(t *testing.T) {
		m := load(t, []byte(documents))
		g := New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards)
		const all, web = "EnvoyFilter istio-system/all spec.configPatches[0]", "EnvoyFilter shop/web spec.configPatches[1]"
		for metadata, want := range map[string][]string{
			"{NAMESPACE: shop, LABELS: {app: web}, TEAM: red}":                  {"000000 " + web, "000001 " + all},
			"{NAMESPACE: shop, LABELS: {app: web}}":                             {"000000 " + all},
			"{NAMESPACE: other, LABELS: {app: web}, TEAM: red}":                 {"000000 " + all},
			"{NAMESPACE: shop, LABELS: {app: web}, TEAM: red, GENERATOR: grpc}": {},
		} {
			p := m.proxy(t, node(t, []byte("id: web\nmetadata: "+metadata)))
			parts := g.Outbound(proxy.NewView(p)).Of(xds.BootstrapType)
			if got := slices.Sorted(maps.Keys(parts)); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", metadata, got, want)
			}
		}
	})
}

// A name or an address is taken, whichever of the two halves of a sidecar has it.
func TestWhatPatchesAddTakesNothingFromTheOtherHalf(t *testing.T) {
	const documents = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: inbound, namespace: shop}
spec:
  configPatches:
  - {applyTo: CLUSTER, match: {context: SIDECAR_INBOUND}, patch: {operation: ADD, value: {name: PassthroughCluster, type: STATIC, connect_timeout: 1s}}}
  - {applyTo: LISTENER, match: {context: SIDECAR_INBOUND}, patch: {operation: ADD, value: {name: a, address: {socket_address: {address: 0.0.0.0, port_value: 15001}}, filter_chains: [{}]}}}
  - {applyTo: LISTENER, match: {context: SIDECAR_INBOUND}, patch: {operation: ADD, value: {name: c, address: {socket_address: {address: 0.0.0.0, port_value: 7001}}, filter_chains: [{}]}}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: outbound, namespace: shop}
spec:
  configPatches:
  - {applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: ADD, value: {name: InboundPassthroughCluster, type: STATIC, connect_timeout: 1s}}}
  - {applyTo: LISTENER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: ADD, value: {name: b, address: {socket_address: {address: 0.0.0.0, port_value: 15006}}, filter_chains: [{}]}}}
  - {applyTo: LISTENER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: ADD, value: {name: d, address: {socket_address: {address: 0.0.0.0, port_value: 7001}}, filter_chains: [{}]}}}
`
	synctest.Test(t, func(t *testing.T) {
		m := load(t, []byte(documents))
		g := New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards)
		view := proxy.NewView(m.proxy(t, node(t, []byte("id: web\nmetadata: {NAMESPACE: shop, INTERCEPTION_MODE: REDIRECT}"))))
		out, in := g.Outbound(view), g.Inbound(view)
		var got []string
		for _, f := range slices.Concat(in.Failures, out.Failures) {
			got = append(got, f.Resource+": "+f.Reason)
		}
		slices.Sort(got)
		want := []string{
			"InboundPassthroughCluster: there is another one of this name", "PassthroughCluster: there is another one of this name",
			"a: another listener has this address", "b: another listener has this address", "c: another listener has this address",
		}
		if !slices.Equal(got, want) || out.Listeners["d"] == nil {
			t.Errorf("left out %q, want %q", got, want)
		}
		if !g.AddsInbound(view) || g.AddsInbound(proxy.NewView(m.proxy(t, node(t, []byte("id: web\nmetadata: {NAMESPACE: other}"))))) {
			t.Error("AddsInbound is wrong")
		}
	})
}
