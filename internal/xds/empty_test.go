package xds

import (
	"slices"
	"testing"
	"time"

	matcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	compositev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/composite/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// withList is a locality with a list of endpoints in the place of endpoints.
func withList(endpoints []*endpointv3.LbEndpoint) *endpointv3.LocalityLbEndpoints {
	list := &endpointv3.LocalityLbEndpoints_LbEndpointList{LbEndpoints: endpoints}
	//lint:ignore SA1019 a control plane may send it
	return &endpointv3.LocalityLbEndpoints{LbConfig: &endpointv3.LocalityLbEndpoints_LoadBalancerEndpoints{LoadBalancerEndpoints: list}}
}

func TestEndpointsAndRoutesThatHaveNothing(t *testing.T) {
	of := func(localities ...*endpointv3.LocalityLbEndpoints) proto.Message {
		return &endpointv3.ClusterLoadAssignment{ClusterName: "c", Endpoints: localities, Policy: &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(1)}}
	}
	sick := []*endpointv3.LbEndpoint{{HealthStatus: corev3.HealthStatus_UNHEALTHY, LoadBalancingWeight: wrapperspb.UInt32(1)}}
	for _, tc := range []struct {
		name    string
		typeURL string
		body    proto.Message
		want    bool
	}{
		{"no locality", EndpointType, of(), true},
		{"a locality without endpoints", EndpointType, of(&endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{Zone: "a"}, Priority: 1}), true},
		{"a list without endpoints", EndpointType, of(withList(nil)), true},
		{"an unhealthy endpoint", EndpointType, of(&endpointv3.LocalityLbEndpoints{}, &endpointv3.LocalityLbEndpoints{LbEndpoints: sick}), false},
		{"a list", EndpointType, of(withList(sick)), false},
		{"LEDS", EndpointType, of(&endpointv3.LocalityLbEndpoints{LbConfig: &endpointv3.LocalityLbEndpoints_LedsClusterLocalityConfig{LedsClusterLocalityConfig: &endpointv3.LedsClusterLocalityConfig{LedsCollectionName: "l"}}}), false},
		{"no virtual host", RouteType, &routev3.RouteConfiguration{Name: "r", InternalOnlyHeaders: []string{"x"}}, true},
		{"virtual hosts without routes", RouteType, &routev3.RouteConfiguration{Name: "r", VirtualHosts: []*routev3.VirtualHost{{Name: "a", Domains: []string{"*"}}, {Name: "b"}}}, true},
		{"a virtual host with a route", RouteType, &routev3.RouteConfiguration{Name: "r", VirtualHosts: []*routev3.VirtualHost{{}, {Routes: []*routev3.Route{{}}}}}, false},
		{"one with a matcher", RouteType, &routev3.RouteConfiguration{Name: "r", VirtualHosts: []*routev3.VirtualHost{{Matcher: &matcherv3.Matcher{}}}}, false},
		{"one that demands TLS", RouteType, &routev3.RouteConfiguration{Name: "r", VirtualHosts: []*routev3.VirtualHost{{RequireTls: routev3.VirtualHost_ALL}}}, false},
		{"VHDS", RouteType, &routev3.RouteConfiguration{Name: "r", Vhds: &routev3.Vhds{}}, false},
		{"a cluster", ClusterType, &clusterv3.Cluster{}, false},
	} {
		r := &Resource{Type: tc.typeURL, Body: packed(t, tc.body)}
		if got := Empty(r); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	if Empty(&Resource{Type: EndpointType, Body: &anypb.Any{Value: []byte{0x12}}}) {
		t.Error("what is malformed is empty")
	}
}

func TestTheMembersOfAClusterOfClusters(t *testing.T) {
	custom := func(config proto.Message) *clusterv3.Cluster {
		return &clusterv3.Cluster{Name: "c", ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "x", TypedConfig: packed(t, config)}}}
	}
	for _, tc := range []struct {
		name    string
		cluster *clusterv3.Cluster
		want    []string
	}{
		{"aggregate", custom(&aggregatev3.ClusterConfig{Clusters: []string{"a", "b"}}), []string{"a", "b"}},
		{"composite", custom(&compositev3.ClusterConfig{Clusters: []*compositev3.ClusterConfig_ClusterEntry{{Name: "a"}, {Name: "b"}}}), []string{"a", "b"}},
		{"another", custom(&routev3.RouteAction_RequestMirrorPolicy{Cluster: "a"}), nil},
		{"none", &clusterv3.Cluster{Name: "c", AltStatName: "a"}, nil},
	} {
		r, err := FromAny(ClusterType, "1", packed(t, tc.cluster), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		Members(r, func(name string) { got = append(got, name) })
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
