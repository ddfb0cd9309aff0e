package server

import (
	"slices"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// A VirtualService may bring a collector into the scope of a sidecar: then also what comes in is logged there.
func TestAVirtualServiceThatReachesACollectorChangesInboundListeners(t *testing.T) {
	on(t, worlds+`
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: narrow, namespace: narrow}
spec: {accessLogging: [{providers: [{name: als}]}]}
`, func(r *rig) {
		c := r.connect("n", map[string]any{"NAMESPACE": "narrow", "INTERCEPTION_MODE": "REDIRECT"})
		inbound := func() []string { return contents(c.tables[1][xds.ListenerType]) }
		before := inbound()
		r.put("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.internal], http: [{route: [{destination: {host: b.internal}}]}]}")
		r.settle()
		reached := inbound()
		if slices.Equal(before, reached) {
			t.Error("inbound listeners are as before the collector was in the scope")
		}
		r.put("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.internal], http: [{route: [{destination: {host: a.internal}}]}]}")
		r.settle()
		if !slices.Equal(before, inbound()) {
			t.Error("inbound listeners log to a collector that is out of the scope")
		}
	})
}
