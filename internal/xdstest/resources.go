package xdstest

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Loopback is the address that listeners bind to.
const Loopback = "127.0.0.1"

// ADS is the config source of all resources that this package builds.
func ADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

// Cluster builds an EDS cluster with endpoints from ADS, under the name edsService or, if that is "",
// under its own name.
func Cluster(name, edsService string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		ConnectTimeout:       durationpb.New(time.Second),
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ADS(), ServiceName: edsService},
	}
}

// StaticCluster builds a cluster that contains its endpoints, each "IP:port".
func StaticCluster(name string, endpoints ...string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(time.Second),
		LoadAssignment:       CLA(name, endpoints...),
	}
}

// AggregateCluster builds a cluster that consists of others: the first of which an endpoint is healthy is used.
func AggregateCluster(name string, clusters ...string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:     name,
		LbPolicy: clusterv3.Cluster_CLUSTER_PROVIDED,
		ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name: "envoy.clusters.aggregate", TypedConfig: Pack(&aggregatev3.ClusterConfig{Clusters: clusters}),
		}},
	}
}

// CLA builds the endpoints of a cluster, each "IP:port". It panics on another form.
func CLA(cluster string, endpoints ...string) *endpointv3.ClusterLoadAssignment {
	cla := &endpointv3.ClusterLoadAssignment{ClusterName: cluster}
	if len(endpoints) == 0 {
		return cla
	}
	locality := &endpointv3.LocalityLbEndpoints{}
	for _, endpoint := range endpoints {
		host, digits, err := net.SplitHostPort(endpoint)
		if err != nil {
			panic(fmt.Sprintf("xdstest: CLA %s: %v", cluster, err))
		}
		port, err := strconv.ParseUint(digits, 10, 16)
		if err != nil {
			panic(fmt.Sprintf("xdstest: CLA %s: endpoint %q: %v", cluster, endpoint, err))
		}
		locality.LbEndpoints = append(locality.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
				Endpoint: &endpointv3.Endpoint{Address: address(host, uint32(port))},
			},
		})
	}
	cla.Endpoints = []*endpointv3.LocalityLbEndpoints{locality}
	return cla
}

// LocalizedCLA builds endpoints as CLA does, at least one, with the locality and the weight that gRPC
// requires.
func LocalizedCLA(cluster string, endpoints ...string) *endpointv3.ClusterLoadAssignment {
	cla := CLA(cluster, endpoints...)
	cla.Endpoints[0].Locality = &corev3.Locality{Region: "here"}
	cla.Endpoints[0].LoadBalancingWeight = wrapperspb.UInt32(1)
	return cla
}

// TCPListener builds a listener on the loopback address whose connections go to a cluster.
func TCPListener(name string, port uint32, cluster string) *listenerv3.Listener {
	proxy := &tcpv3.TcpProxy{StatPrefix: name, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: cluster}}
	return &listenerv3.Listener{
		Name:    name,
		Address: address(Loopback, port),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "envoy.filters.network.tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: Pack(proxy)},
		}}}},
	}
}

// Listener builds an HTTP listener on the loopback address with the route configuration routeName from
// ADS. Its stat prefix is its name.
func Listener(name string, port uint32, routeName string) *listenerv3.Listener {
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix: name,
		CodecType:  hcmv3.HttpConnectionManager_AUTO,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{
			Rds: &hcmv3.Rds{ConfigSource: ADS(), RouteConfigName: routeName},
		},
		HttpFilters: RouterOnly(),
	}
	return &listenerv3.Listener{
		Name:    name,
		Address: address(Loopback, port),
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{
				Name:       "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: Pack(manager)},
			}},
		}},
	}
}

// RouterOnly builds the HTTP filters of a connection manager that only routes.
func RouterOnly() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{{
		Name:       "envoy.filters.http.router",
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: Pack(&routerv3.Router{})},
	}}
}

// APIListener builds the listener that a gRPC client requests by the name of a service, with the route
// configuration routeName from ADS.
func APIListener(service, routeName string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: service, ApiListener: &listenerv3.ApiListener{ApiListener: Pack(&hcmv3.HttpConnectionManager{
		StatPrefix:     service,
		HttpFilters:    RouterOnly(),
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: ADS(), RouteConfigName: routeName}},
	})}}
}

// BadListener builds a listener that Envoy NACKs because of its address, with a message that names the
// listener.
func BadListener(name string) *listenerv3.Listener {
	l := Listener(name, 0, name)
	l.Address = address("not-an-ip", 0)
	return l
}

// Route builds a route configuration that sends everything to one cluster.
func Route(name, cluster string) *routev3.RouteConfiguration {
	return routeConfiguration(name, &routev3.Route{
		Match: everyPath(),
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		}},
	})
}

// TextRoute builds a route configuration that answers every request with 200 and the text, so that a
// test can observe changes without a backend.
func TextRoute(name, text string) *routev3.RouteConfiguration {
	return routeConfiguration(name, &routev3.Route{
		Match: everyPath(),
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
			Status: 200,
			Body:   inline([]byte(text)),
		}},
	})
}

func routeConfiguration(name string, routes ...*routev3.Route) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:         name,
		VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: routes}},
	}
}

func everyPath() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// Secret builds a TLS certificate with its private key, both in PEM.
func Secret(name string, certificate, key []byte) *tlsv3.Secret {
	return &tlsv3.Secret{
		Name: name,
		Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(certificate),
			PrivateKey:       inline(key),
		}},
	}
}

// TrustBundle builds a secret with CA certificates in PEM.
func TrustBundle(name string, certificates []byte) *tlsv3.Secret {
	return &tlsv3.Secret{
		Name: name,
		Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(certificates),
		}},
	}
}

// Runtime builds a runtime layer. It panics on a value that JSON cannot represent.
func Runtime(name string, layer map[string]any) *runtimev3.Runtime {
	fields, err := structpb.NewStruct(layer)
	if err != nil {
		panic(fmt.Sprintf("xdstest: runtime layer %s: %v", name, err))
	}
	return &runtimev3.Runtime{Name: name, Layer: fields}
}

// Unknown builds a resource of a type without a descriptor: its name in field 1, then fields in forms
// that re-encoding would change (a field out of order, a varint that is longer than necessary, a
// group).
func Unknown(typeURL, name string) *anypb.Any {
	body := protowire.AppendTag(nil, 1, protowire.BytesType)
	body = protowire.AppendString(body, name)
	body = protowire.AppendTag(body, 4000, protowire.BytesType)
	body = protowire.AppendString(body, "after the fields that come before it")
	body = protowire.AppendTag(body, 7, protowire.VarintType)
	body = append(body, 0x85, 0x80, 0x00)
	body = protowire.AppendTag(body, 9, protowire.StartGroupType)
	body = protowire.AppendTag(body, 1, protowire.Fixed32Type)
	body = protowire.AppendFixed32(body, 0xdeadbeef)
	body = protowire.AppendTag(body, 9, protowire.EndGroupType)
	return &anypb.Any{TypeUrl: typeURL, Value: body}
}

// Pack returns the message as an Any with deterministic bytes; an Any is returned unchanged. It panics
// on a message that cannot be encoded.
func Pack(m proto.Message) *anypb.Any {
	if packed, ok := m.(*anypb.Any); ok {
		return packed
	}
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic(fmt.Sprintf("xdstest: packing a %s: %v", m.ProtoReflect().Descriptor().FullName(), err))
	}
	return packed
}

// Wrap returns the message as a resource of a Delta response. It panics on a message without a name.
func Wrap(m proto.Message, version string) *discoveryv3.Resource {
	body := Pack(m)
	name, err := xds.ScanName(body)
	if err != nil {
		panic(fmt.Sprintf("xdstest: wrapping a %s: %v", body.GetTypeUrl(), err))
	}
	return &discoveryv3.Resource{Name: name, Version: version, Resource: body}
}

// Resource returns the message as an xds.Resource with a version of an upstream. It panics on a message
// without a name.
func Resource(m proto.Message, upstreamVersion string) *xds.Resource {
	body := Pack(m)
	r, err := xds.FromAny(body.GetTypeUrl(), upstreamVersion, body, time.Time{})
	if err != nil {
		panic(fmt.Sprintf("xdstest: %v", err))
	}
	return r
}

func address(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}

// Unlinked returns the URL of a type that is only known by its descriptor, and checks that its package
// is not linked into the test.
func Unlinked(t testing.TB, name string) string {
	t.Helper()
	url := "type.googleapis.com/" + name
	if _, err := protoregistry.GlobalTypes.FindMessageByURL(url); err == nil {
		t.Fatalf("%s is linked: take another", name)
	}
	return url
}
