package sds

import (
	"crypto/x509"
	"maps"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// spiffeValidator is the name of Envoy's certificate validator with a bundle for each trust domain.
const spiffeValidator = "envoy.tls.cert_validator.spiffe"

// secret is a published resource. roots is set if it contains roots instead of a certificate.
type secret struct {
	*xds.Resource
	roots bool
}

// encode converts a Secret to a resource. Equal secrets have equal bytes and so equal versions.
func encode(s *tlsv3.Secret) secret {
	r, err := xds.FromAny(xds.SecretType, "", marshal(s), time.Time{})
	if err != nil {
		panic("sds: a secret is not a valid resource: " + err.Error()) // New has checked the name
	}
	return secret{r, s.GetValidationContext() != nil}
}

// marshal packs a message that this package built, which always succeeds.
func marshal(m proto.Message) *anypb.Any {
	out := &anypb.Any{}
	if err := anypb.MarshalFrom(out, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic("sds: " + err.Error())
	}
	return out
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}

func certificate(name string, p pki.Pair) secret {
	return encode(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(p.ChainPEM()), PrivateKey: inline(p.KeyPEM()),
	}}})
}

// trustedCA returns the Secret that accepts every certificate that leads to one of the roots. crl holds
// revocation lists in PEM; nil for none.
func trustedCA(name string, roots, crl []byte) secret {
	v := &tlsv3.CertificateValidationContext{TrustedCa: inline(roots)}
	if crl != nil {
		v.Crl = inline(crl)
	}
	return encode(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: v}})
}

// spiffe returns the Secret that verifies the certificates of each trust domain with the roots of that domain.
func spiffe(name string, domains map[string][]*x509.Certificate) secret {
	var conf tlsv3.SPIFFECertValidatorConfig
	for _, domain := range slices.Sorted(maps.Keys(domains)) {
		conf.TrustDomains = append(conf.TrustDomains, &tlsv3.SPIFFECertValidatorConfig_TrustDomain{
			Name: domain, TrustBundle: inline(pki.EncodeCerts(domains[domain])),
		})
	}
	return encode(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{
			CustomValidatorConfig: &corev3.TypedExtensionConfig{Name: spiffeValidator, TypedConfig: marshal(&conf)},
		},
	}})
}
