package downstream

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// protocol.md V12, 6.8.
func TestWhoEnforcesATTL(t *testing.T) {
	for _, c := range []struct {
		name string
		node *corev3.Node
		want bool
	}{
		{"Envoy, which does not say so", &corev3.Node{UserAgentName: "envoy"}, true},
		{"a client that says so", &corev3.Node{ClientFeatures: []string{"xds.config.supports-resource-ttl"}}, true},
		{"another", &corev3.Node{UserAgentName: "gRPC Go", ClientFeatures: []string{"xds.config.resource-in-sotw"}}, false},
		{"nobody", nil, false},
	} {
		if got := enforcesTTL(c.node); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
