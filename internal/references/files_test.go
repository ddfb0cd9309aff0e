package references

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
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
