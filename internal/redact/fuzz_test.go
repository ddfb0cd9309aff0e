package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/redact"
)

// hiding returns messages that hold a key at a place that is marked sensitive, or where
// nothing can be known of what it is.
func hiding(t *testing.T, key []byte, depth int, noise []byte) map[string]proto.Message {
	t.Helper()
	wrap := func(m proto.Message) *anypb.Any {
		out, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	inline := &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: key}}
	secret := &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{PrivateKey: inline, Password: inline}}}
	var nested proto.Message = secret
	for range depth {
		nested = &discoveryv3.Resource{Name: "r", Resource: wrap(nested)}
	}
	body, err := proto.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	unknown := &corev3.Node{Id: "n"}
	unknown.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 20_000, protowire.BytesType), key))
	return map[string]proto.Message{
		"nested": nested,
		"in a cluster": &clusterv3.Cluster{TransportSocket: &corev3.TransportSocket{ConfigType: &corev3.TransportSocket_TypedConfig{
			TypedConfig: wrap(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{PrivateKey: inline}}}}),
		}}},
		"generic":                  &tlsv3.Secret{Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: inline}}},
		"session keys":             &tlsv3.Secret{Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{inline}}}},
		"of an unknown type":       &anypb.Any{TypeUrl: "type.googleapis.com/acme.Secret", Value: body},
		"damaged":                  &anypb.Any{TypeUrl: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", Value: append(bytes.Clone(body), noise...)},
		"of another type":          &anypb.Any{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster", Value: body},
		"in a field of the future": unknown,
	}
}

// No byte of a key is in what people are shown: not as it is, nor in any encoding.
func FuzzNoKeyIsShown(f *testing.F) {
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg\n-----END PRIVATE KEY-----\n"), uint8(3), []byte{0xff})
	f.Add([]byte("\x30\x81\x87\x02\x01\x00\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02"), uint8(0), []byte{})
	f.Add([]byte("a secret with \"quotes\" & <tags>"), uint8(90), []byte{0x0a, 0x7f})
	f.Fuzz(func(t *testing.T, key []byte, depth uint8, noise []byte) {
		if len(key) < 16 || bytes.Contains([]byte("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"), key) {
			return // shorter ones are found in any text
		}
		for name, m := range hiding(t, key, int(depth)%100, noise) {
			shown := redact.JSON(m)
			forms := [][]byte{key, []byte(hex.EncodeToString(key)), []byte(base64.StdEncoding.EncodeToString(key)[:16]), []byte(base64.URLEncoding.EncodeToString(key)[:16])}
			for _, form := range forms {
				if bytes.Contains(shown, form) {
					t.Errorf("%s: %q is shown: %s", name, form, shown)
				}
			}
		}
	})
}
