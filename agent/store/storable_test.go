package store

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA" + planted + "\n-----END RSA PRIVATE KEY-----\n"

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	must(t, err)
	return a
}

// tlsWith is a TLS context whose certificate has an inline key.
func tlsWith(secret string) *tlsv3.CommonTlsContext {
	c := &tlsv3.TlsCertificate{CertificateChain: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "/cert.pem"}}}
	if secret != "" {
		c.PrivateKey = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: secret}}
	}
	return &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{c}}
}

func cluster(t testing.TB, socket *anypb.Any) *clusterv3.Cluster {
	t.Helper()
	c := &clusterv3.Cluster{Name: "c"}
	if socket != nil {
		c.TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: socket}}
	}
	return c
}

func filter(config *anypb.Any) *listenerv3.Listener {
	return &listenerv3.Listener{Name: "l", FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{{Name: "f", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}}},
	}}}
}

// typedStruct is a message as a Struct beside its type.
func typedStruct(t testing.TB, typeURL string, fields map[string]any) *anypb.Any {
	t.Helper()
	value, err := structpb.NewStruct(fields)
	must(t, err)
	return pack(t, &xdstypev3.TypedStruct{TypeUrl: typeURL, Value: value})
}

func unknown(value string) *anypb.Any {
	return &anypb.Any{TypeUrl: "type.googleapis.com/vendor.Unknown", Value: []byte(value)}
}

func TestSecretsAreNotStoredInPlainText(t *testing.T) {
	const upstreamTLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
	inline := map[string]any{"common_tls_context": map[string]any{"tls_certificates": []any{
		map[string]any{"private_key": map[string]any{"inline_string": planted}},
	}}}
	public := map[string]any{"sni": "example.com", "common_tls_context": map[string]any{}}
	resource := func(m proto.Message) *xds.Resource {
		body := pack(t, m)
		r, err := xds.FromAny(body.TypeUrl, "1", body, time.Time{})
		must(t, err)
		return r
	}
	withMetadata := resource(cluster(t, nil))
	withMetadata.Extra = &xds.Extra{Metadata: &corev3.Metadata{TypedFilterMetadata: map[string]*anypb.Any{"x": pack(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: tlsWith(planted)})}}}
	noBody, err := xds.FromWrapper(xds.VirtualHostType, &discoveryv3.Resource{Name: "rds/x"}, time.Time{})
	must(t, err)
	for _, tc := range []struct {
		name     string
		resource *xds.Resource
		why      string // "" is stored
	}{
		{"a cluster", resource(cluster(t, nil)), ""},
		{"endpoints", endpoints("a", "1"), ""},
		{"no body", noBody, ""},
		{"a Secret", resource(&tlsv3.Secret{Name: "s"}), reasonSecret},
		{"a Secret with a CA alone", resource(secretWithCA("-----BEGIN CERTIFICATE-----")), ""},
		{"a Secret with a CA and its key", resource(secretWithCA(pem)), reasonSecret},
		{"a key in a cluster's transport socket", resource(cluster(t, pack(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: tlsWith(planted)}))), "TlsCertificate.private_key"},
		{"a transport socket without a key", resource(cluster(t, pack(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: tlsWith("")}))), ""},
		{"a key in a listener", resource(&listenerv3.Listener{Name: "l", FilterChains: []*listenerv3.FilterChain{{
			TransportSocket: cluster(t, pack(t, &tlsv3.DownstreamTlsContext{CommonTlsContext: tlsWith(planted)})).TransportSocket,
		}}}), "TlsCertificate.private_key"},
		{"an Any in an Any", resource(filter(pack(t, pack(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: tlsWith(planted)})))), "TlsCertificate.private_key"},
		{"a key in a TypedStruct", resource(cluster(t, typedStruct(t, upstreamTLS, inline))), "TlsCertificate.private_key"},
		{"a TypedStruct without a key", resource(cluster(t, typedStruct(t, upstreamTLS, public))), ""},
		{"a TypedStruct that is not of its type", resource(cluster(t, typedStruct(t, upstreamTLS, map[string]any{"sni": []any{1.0}}))), "cannot be decoded"},
		{"a TypedStruct of an unknown type", resource(filter(typedStruct(t, "type.googleapis.com/vendor.Unknown", public))), ""},
		{"PEM in a TypedStruct of an unknown type", resource(filter(typedStruct(t, "type.googleapis.com/vendor.Unknown", map[string]any{"x": pem}))), "PEM"},
		{"base64 of PEM in a TypedStruct of an unknown type", resource(filter(typedStruct(t, "type.googleapis.com/vendor.Unknown",
			map[string]any{"x": base64.StdEncoding.EncodeToString([]byte("!" + pem))}))), "PEM"},
		{"an unknown Any", resource(filter(unknown("\x0a\x03abc"))), ""},
		{"PEM in an unknown Any", resource(filter(unknown("\x0a\x10" + pem))), "PEM"},
		{"a certificate in an unknown Any", resource(filter(unknown("-----BEGIN CERTIFICATE-----"))), ""},
		{"PEM in a field that is not marked", resource(&clusterv3.Cluster{Name: "c", AltStatName: pem}), "PEM"},
		{"a linked Any that is malformed", resource(filter(&anypb.Any{TypeUrl: upstreamTLS, Value: []byte{0x0a, 0xff}})), "cannot be decoded"},
		{"an Any without its type", resource(filter(&anypb.Any{Value: []byte("x")})), "does not say its type"},
		{"metadata of the wrapper", withMetadata, "TlsCertificate.private_key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var finder redact.Finder
			for range 2 { // the second time from what it remembers
				why := NotStorable(tc.resource, false, finder.Sensitive)
				if (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) || strings.Contains(why, planted) {
					t.Errorf("%q; want %q", why, tc.why)
				}
			}
			if why := NotStorable(tc.resource, true, nil); why != "" {
				t.Errorf("encrypted: %q", why)
			}
		})
	}
}

// secretWithCA is a Secret by which peers are verified.
func secretWithCA(bundle string) *tlsv3.Secret {
	return &tlsv3.Secret{Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
		TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: bundle}},
	}}}
}

func TestWhatMustNotBeCachedIsNeverStored(t *testing.T) {
	r := *endpoints("a", "1")
	r.Extra = &xds.Extra{CacheControl: &discoveryv3.Resource_CacheControl{DoNotCache: true}}
	mistyped := *endpoints("a", "1")
	mistyped.Type = xds.ClusterType
	for want, r := range map[string]*xds.Resource{
		reasonCache: &r, reasonType: &mistyped, reasonTooLarge: endpoints("a", strings.Repeat("x", maxPayload)),
	} {
		for _, encrypted := range []bool{false, true} {
			if why := NotStorable(r, encrypted, new(redact.Finder).Sensitive); why != want {
				t.Errorf("%q, want %q", why, want)
			}
		}
	}
}

func BenchmarkNotStorable(b *testing.B) {
	var finder redact.Finder
	socket := pack(b, &tlsv3.UpstreamTlsContext{Sni: bulk, CommonTlsContext: tlsWith("")})
	body := pack(b, cluster(b, socket))
	withSocket, err := xds.FromAny(body.TypeUrl, "1", body, time.Time{})
	must(b, err)
	for name, r := range map[string]*xds.Resource{"endpoints": bulky(1, 1).Entry.Content, "cluster": withSocket} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(r.Body.Value)))
			for b.Loop() {
				if why := NotStorable(r, false, finder.Sensitive); why != "" {
					b.Fatal(why)
				}
			}
		})
	}
}
