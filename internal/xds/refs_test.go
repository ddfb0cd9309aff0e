package xds

import (
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func mirrored(cluster string) []*routev3.RouteAction_RequestMirrorPolicy {
	return []*routev3.RouteAction_RequestMirrorPolicy{{Cluster: cluster}}
}

// A route configuration in which every way to name a cluster is used.
func everyWay(prefix string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:                  prefix,
		RequestMirrorPolicies: mirrored(prefix + "-mirror-of-all"),
		VirtualHosts: []*routev3.VirtualHost{{
			Name: "not-a-cluster", Domains: []string{"not-a-cluster"}, RequestMirrorPolicies: mirrored(prefix + "-mirror-of-host"),
			Routes: []*routev3.Route{
				{Name: "not-a-cluster", Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier:      &routev3.RouteAction_Cluster{Cluster: prefix + "-one"},
					RequestMirrorPolicies: mirrored(prefix + "-mirror"),
				}}},
				{Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{
						Clusters: []*routev3.WeightedCluster_ClusterWeight{{Name: prefix + "-a"}, {Name: prefix + "-b"}},
					}},
				}}},
				{Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_ClusterHeader{ClusterHeader: "not-a-cluster"}}}},
				{Action: &routev3.Route_Redirect{Redirect: &routev3.RedirectAction{}}},
			},
		}},
	}
}

func clustersOf(prefix string) []string {
	return []string{prefix + "-a", prefix + "-b", prefix + "-mirror", prefix + "-mirror-of-all", prefix + "-mirror-of-host", prefix + "-one"}
}

func TestTheClustersThatAResourceLeadsTo(t *testing.T) {
	chain := func(filter string, config proto.Message) *listenerv3.FilterChain {
		return &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{Name: filter, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, config)}}}}
	}
	listener := &listenerv3.Listener{
		Name: "l",
		FilterChains: []*listenerv3.FilterChain{
			chain("http", &hcmv3.HttpConnectionManager{RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: everyWay("http")}}),
			chain("tcp", &tcpv3.TcpProxy{ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "tcp"}}),
			chain("other", &routev3.RouteAction_RequestMirrorPolicy{Cluster: "not-a-cluster"}),
		},
		DefaultFilterChain: chain("tcp", &tcpv3.TcpProxy{ClusterSpecifier: &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: &tcpv3.TcpProxy_WeightedCluster{
			Clusters: []*tcpv3.TcpProxy_WeightedCluster_ClusterWeight{{Name: "default-tcp", Weight: 1}},
		}}}),
	}
	for _, test := range []struct {
		typeURL string
		body    proto.Message
		want    []string
	}{
		{RouteType, everyWay("r"), clustersOf("r")},
		{VirtualHostType, everyWay("v").VirtualHosts[0], []string{"v-a", "v-b", "v-mirror", "v-mirror-of-host", "v-one"}},
		{ListenerType, listener, append([]string{"default-tcp"}, append(clustersOf("http"), "tcp")...)},
		{ClusterType, everyWay("c"), nil},
	} {
		r := &Resource{Type: test.typeURL, Body: packed(t, test.body)}
		var got []string
		LeadsToClusters(r, func(name string) { got = append(got, name) })
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s leads to %q, want %q", Short(test.typeURL), got, test.want)
		}
		// What is malformed is no reason to fail.
		for cut := range r.Body.Value {
			LeadsToClusters(&Resource{Type: test.typeURL, Body: &anypb.Any{Value: r.Body.Value[:cut]}}, func(string) {})
		}
	}
}
