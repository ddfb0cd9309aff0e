package redact

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestOnlyAValidationContextIsPublic(t *testing.T) {
	inline := func(text string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
	}
	body := func(s *tlsv3.Secret) []byte {
		b, err := proto.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	ca := body(&tlsv3.Secret{Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline("-----BEGIN CERTIFICATE-----")}}})
	certificate := body(&tlsv3.Secret{Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{PrivateKey: inline("k")}}})
	for name, tc := range map[string]struct {
		body []byte
		want bool
	}{
		"a CA":          {ca, true},
		"nothing":       {nil, false},
		"a name":        {body(&tlsv3.Secret{Name: "s"}), false},
		"a certificate": {certificate, false},
		"ticket keys":   {body(&tlsv3.Secret{Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{}}}), false},
		"a password":    {body(&tlsv3.Secret{Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: inline("x")}}}), false},
		// A reader takes the last one, and the key is in the bytes.
		"a certificate before a CA": {slices.Concat(certificate, ca), false},
		"a CA before a certificate": {slices.Concat(ca, certificate), false},
		"a bundle with a key": {body(&tlsv3.Secret{Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----")}}}), false},
		"an unknown field": {slices.Concat(ca, []byte{0xfa, 0x3e, 1, 'x'}), false},
		"half a message":   {ca[:len(ca)-1], false},
	} {
		if got := Public(&anypb.Any{Value: tc.body}); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if Public(nil) {
		t.Error("no body is public")
	}
}
