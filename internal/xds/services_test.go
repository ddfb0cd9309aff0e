package xds

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestTheServicesOfEndpoints(t *testing.T) {
	of := func(name string, hosts ...string) *Resource {
		locality := &endpointv3.LocalityLbEndpoints{}
		for _, host := range hosts {
			locality.LbEndpoints = append(locality.LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: host}}},
			}}})
		}
		return &Resource{Type: EndpointType, Name: name, Body: packed(t, &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{locality}})}
	}
	route := func(name string) *Resource { return &Resource{Type: RouteType, Name: name} }
	bad := &Resource{Type: EndpointType, Name: "bad", Body: &anypb.Any{TypeUrl: EndpointType, Value: []byte{0x12}}}
	for _, tc := range []struct {
		name string
		list []*Resource
		want int
	}{
		{"nothing", nil, 0},
		{"three of their own", []*Resource{of("a", "1"), of("b", "2"), of("c", "3")}, 3},
		{"two subsets and the whole", []*Resource{of("v1.web", "1"), of("v2.web", "2"), of("web", "1", "2"), of("api", "3")}, 2},
		{"ports and subsets of one host in Istio", []*Resource{of("outbound|80||web.shop", "1"), of("outbound|90||web.shop", "2"), of("outbound_.80_.v1_.web.shop", "3"), of("outbound|80||api.shop", "4")}, 2},
		{"names that look alike", []*Resource{of("host web", "1"), of("outbound|80||web", "2"), of("address 1", "3")}, 3},
		{"behind one gateway", []*Resource{of("a", "1"), of("b", "1"), of("c", "1")}, 3},
		{"behind one gateway, in Istio", []*Resource{of("outbound|80||a", "1"), of("outbound|80||b", "1"), of("outbound|90||b", "1")}, 2},
		{"without addresses", []*Resource{of("a"), of("b"), bad}, 3},
		{"route configurations", []*Resource{route("80"), route("90")}, 2},
	} {
		if got := Services(tc.list); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
