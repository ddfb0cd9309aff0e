package generate

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// BenchmarkOutbound generates what a class of sidecars needs for connections that it opens, with 1,000
// services of two ports.
func BenchmarkOutbound(b *testing.B) { benchmarkOutbound(b, "") }

// BenchmarkOutboundPatched is BenchmarkOutbound with an EnvoyFilter that is for every cluster, and for
// every listener of HTTP.
func BenchmarkOutboundPatched(b *testing.B) {
	benchmarkOutbound(b, `
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: patches}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    patch: {operation: INSERT_FIRST, value: {name: lua, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}
  - applyTo: CLUSTER
    patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 1024}}
`)
}

func benchmarkOutbound(b *testing.B, more string) {
	var documents strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&documents, `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: service-%[1]d, namespace: services}
spec:
  hosts: [service-%[1]d.mesh.internal]
  addresses: [10.100.%[2]d.%[3]d]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.1.%[2]d.%[3]d}]
`, i, i/250, i%250+1)
	}
	m := loadAnd(b, []byte(documents.String()+more), func(store *config.Memory) {
		for !store.HasSynced() {
			runtime.Gosched()
		}
	})
	p, err := proxy.FromNode(&corev3.Node{Id: "sidecar~10.9.9.9~a.default~default.svc.cluster.local"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards).Outbound(proxy.NewView(p))
	}
}
