package references

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	geoipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/geoip/v3"
	reversev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_json_reverse_transcoder/v3"
	transcoderv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_json_transcoder/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	maxmindv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/geoip_providers/maxmind/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

func TestFilesThatEnvoyReadsAreFound(t *testing.T) {
	tls, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: file("/tls/cert"), PrivateKey: file("/tls/key")}},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{
			Name: "roots", SdsConfig: &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{
				PathConfigSource: &corev3.PathConfigSource{Path: "/tls/roots.yaml"},
			}},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	body, err := anypb.New(&clusterv3.Cluster{Name: "c", TransportSocket: &corev3.TransportSocket{
		Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: tls},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(Files(body), " "); got != "/tls/cert /tls/key /tls/roots.yaml" {
		t.Errorf("found %s", got)
	}
	if got := Files(&anypb.Any{TypeUrl: "type.googleapis.com/unknown.Type", Value: []byte("x")}); got != nil {
		t.Errorf("found %v in a type that nobody knows", got)
	}
}

// Finding E7: also those that no DataSource names.
func TestFilesThatHaveFieldsOfTheirOwnAreFound(t *testing.T) {
	filter := func(config proto.Message) *hcmv3.HttpFilter {
		packed, err := anypb.New(config)
		if err != nil {
			t.Fatal(err)
		}
		return &hcmv3.HttpFilter{Name: "f", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed}}
	}
	maxmind, err := anypb.New(&maxmindv3.MaxMindConfig{CityDbPath: "/geo/city", IspDbPath: "/geo/isp"})
	if err != nil {
		t.Fatal(err)
	}
	body, err := anypb.New(&hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: &corev3.ConfigSource{
			//lint:ignore SA1019 people have it
			ConfigSourceSpecifier: &corev3.ConfigSource_Path{Path: "/routes.yaml"},
		}}},
		HttpFilters: []*hcmv3.HttpFilter{
			filter(&transcoderv3.GrpcJsonTranscoder{DescriptorSet: &transcoderv3.GrpcJsonTranscoder_ProtoDescriptor{ProtoDescriptor: "/api.pb"}}),
			filter(&reversev3.GrpcJsonReverseTranscoder{DescriptorPath: "/reverse.pb"}),
			filter(&geoipv3.Geoip{Provider: &corev3.TypedExtensionConfig{Name: "maxmind", TypedConfig: maxmind}}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(Files(body), " "); got != "/api.pb /geo/city /geo/isp /reverse.pb /routes.yaml" {
		t.Errorf("found %s", got)
	}
}
