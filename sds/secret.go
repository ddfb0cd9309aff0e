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

// spiffeValidator is the name of Envoy's validator that has a bundle for each trust
// domain.
const spiffeValidator = "envoy.tls.cert_validator.spiffe"

// secret is what is published under a name. roots says that it holds roots, and not
// a certificate.
type secret struct {
	*xds.Resource
	roots bool
}

// encode makes a resource of a Secret. Its bytes, and so its version, are the same
// whenever it says the same.
func encode(s *tlsv3.Secret) secret {
	r, err := xds.FromAny(xds.SecretType, "", marshal(s), time.Time{})
	if err != nil {
		panic("sds: a secret of our own making is no resource: " + err.Error()) // names are checked in New
	}
	return secret{r, s.GetValidationContext() != nil}
}

// marshal packs a message of our own making, which always marshals.
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

// certificate returns the Secret of a key and its chain.
func certificate(name string, p pki.Pair) secret {
	return encode(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(p.ChainPEM()), PrivateKey: inline(p.KeyPEM()),
	}}})
}

// trustedCA returns the Secret of a validation context that takes every certificate
// that leads to one of the roots. crl, nil for none, are revocations in PEM.
func trustedCA(name string, roots, crl []byte) secret {
	v := &tlsv3.CertificateValidationContext{TrustedCa: inline(roots)}
	if crl != nil {
		v.Crl = inline(crl)
	}
	return encode(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: v}})
}

// spiffe returns the Secret of a validation context that takes the certificates of
// each trust domain by the roots of that domain.
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
