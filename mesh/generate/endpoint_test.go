package generate

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

func TestAProxyGetsEndpointsOfItsAddressFamiliesOrAllIfThereAreNone(t *testing.T) {
	meta, err := structpb.NewStruct(map[string]any{"INSTANCE_IPS": "10.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.FromNode(&corev3.Node{Id: "sidecar~10.0.0.1~a.b~b.svc.cluster.local", Metadata: meta})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name            string
		addresses, want []string
	}{
		{"both families", []string{"::1", "10.0.0.2"}, []string{"10.0.0.2"}},
		{"the other family only", []string{"::1", "::2"}, []string{"::1", "::2"}},
	} {
		var endpoints []*service.Endpoint
		for _, address := range tc.addresses {
			endpoints = append(endpoints, service.NewEndpoint(service.Endpoint{Address: address, Port: 80}))
		}
		var got []string
		for _, l := range assign("c", proxy.NewView(p), endpoints, preference{}).GetEndpoints() {
			for _, ep := range l.GetLbEndpoints() {
				got = append(got, ep.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}
