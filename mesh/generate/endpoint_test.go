package generate

import (
	"math"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Envoy takes no assignment whose weights add up to more than 32 bits have.
func TestWeightsThatAreTooLargeKeepTheirProportions(t *testing.T) {
	endpoint := func(address, locality string, weight uint32) *service.Endpoint {
		return service.NewEndpoint(service.Endpoint{Address: address, Port: 80, Locality: locality, Weight: weight})
	}
	p, err := proxy.FromNode(&corev3.Node{Id: "sidecar~10.0.0.1~a.b~b.svc.cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	var total, localities uint64
	got := make(map[string]uint32)
	for _, l := range assign("c", proxy.NewView(p), []*service.Endpoint{
		endpoint("10.0.0.2", "r/z", math.MaxUint32), endpoint("10.0.0.3", "r/z", math.MaxUint32/2), endpoint("10.0.0.4", "r/y", math.MaxUint32), endpoint("10.0.0.5", "r/y", 0),
	}, preference{}).GetEndpoints() {
		localities += uint64(l.GetLoadBalancingWeight().GetValue())
		for _, ep := range l.GetLbEndpoints() {
			weight := ep.GetLoadBalancingWeight().GetValue()
			got[ep.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()], total = weight, total+uint64(max(weight, 1))
		}
	}
	if total > math.MaxUint32 || localities != total {
		t.Errorf("the weights of endpoints add up to %d, and those of localities to %d", total, localities)
	}
	if a, b, c := got["10.0.0.2"], got["10.0.0.3"], got["10.0.0.4"]; a != c || a < b*2-2 || a > b*2+2 || b < math.MaxUint32/6 {
		t.Errorf("got %v", got)
	}
}

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
