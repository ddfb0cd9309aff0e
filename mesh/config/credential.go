package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ocsp"
	corev1 "k8s.io/api/core/v1"
)

// Credential is what a Secret has for TLS. Each part is empty if it is not there.
type Credential struct {
	// Certificate is a chain and Key its private key; CA are the certificates by which peers are
	// verified, and CRL the revoked ones. All are PEM.
	Certificate, Key, CA, CRL []byte
	// Staple is a DER-encoded OCSP response.
	Staple []byte
}

// The keys of the parts of a Credential in a Secret, as in Istio: the generic ones take precedence.
const (
	genericCertificate, genericKey = "cert", "key"
	genericCA, tlsCA               = "cacert", "ca.crt"
	genericCRL, tlsCRL             = "crl", "ca.crl"
	tlsStaple                      = "tls.ocsp-staple"
)

// CredentialOf returns the credential in a Secret.
func CredentialOf(secret *corev1.Secret) Credential {
	value := func(keys ...string) []byte {
		for _, key := range keys {
			if text, ok := secret.StringData[key]; ok && text != "" {
				return []byte(text)
			}
			if data := secret.Data[key]; len(data) > 0 {
				return data
			}
		}
		return nil
	}
	c := Credential{
		Certificate: value(genericCertificate), Key: value(genericKey),
		CA: value(genericCA, tlsCA), CRL: value(genericCRL, tlsCRL), Staple: value(tlsStaple),
	}
	if c.Certificate == nil || c.Key == nil {
		c.Certificate, c.Key = value(corev1.TLSCertKey), value(corev1.TLSPrivateKeyKey)
	}
	return c
}

// validateSecret checks a Secret that has a credential. No problem contains what is in it.
func validateSecret(k *checker, secret *corev1.Secret) {
	root, c := &path{name: "data"}, CredentialOf(secret)
	if secret.Type == corev1.SecretTypeTLS {
		if len(c.Certificate) == 0 {
			k.errorf(root.field(corev1.TLSCertKey), "it is missing")
		}
		if len(c.Key) == 0 {
			k.errorf(root.field(corev1.TLSPrivateKeyKey), "it is missing")
		}
	}
	switch {
	case k.failed():
		return
	case c.Certificate != nil && c.Key != nil:
		if _, err := tls.X509KeyPair(c.Certificate, c.Key); err != nil {
			k.errorf(root.field(corev1.TLSCertKey), "is not a certificate with its key in %s: %s", corev1.TLSPrivateKeyKey, strings.TrimPrefix(err.Error(), "tls: "))
		}
	case c.Certificate != nil || c.Key != nil:
		k.errorf(root, "must have both a certificate and its key: %s and %s, or %s and %s", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, genericCertificate, genericKey)
	}
	if err := blocks(c.CA, "CERTIFICATE", x509.ParseCertificate); err != nil {
		k.errorf(root.field(tlsCA), "are not certificates: %s", err)
	}
	if err := blocks(c.CRL, "X509 CRL", x509.ParseRevocationList); err != nil {
		k.errorf(root.field(tlsCRL), "are not lists of revoked certificates: %s", err)
	}
	if err := staple(c); c.Staple != nil && err != nil {
		k.errorf(root.field(tlsStaple), "is not an OCSP response for the certificate: %s", err)
	}
}

// blocks checks that PEM blocks, if any, are of a type and can be parsed.
func blocks[T any](text []byte, want string, parse func(der []byte) (T, error)) error {
	for n := 0; len(text) > 0; n++ {
		block, rest := pem.Decode(text)
		if block == nil {
			if n == 0 || strings.TrimSpace(string(text)) != "" {
				return errors.New("there is something that is not PEM")
			}
			return nil
		}
		if block.Type != want {
			return fmt.Errorf("block %d is a %s", n+1, block.Type)
		}
		if _, err := parse(block.Bytes); err != nil {
			return fmt.Errorf("block %d: %s", n+1, strings.TrimPrefix(err.Error(), "x509: "))
		}
		text = rest
	}
	return nil
}

// staple checks that the staple is one that Envoy accepts: a successful OCSP response about the
// certificate and no other. Whether it has expired depends on the time; Envoy does without it then.
func staple(c Credential) error {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return errors.New("there is no certificate")
	}
	response, err := ocsp.ParseResponse(c.Staple, nil)
	var structure asn1.StructuralError
	var syntax asn1.SyntaxError
	switch {
	case errors.As(err, &structure) || errors.As(err, &syntax):
		return errors.New("it is not DER")
	case err != nil:
		return errors.New(strings.TrimPrefix(err.Error(), "ocsp: "))
	case response.SerialNumber.Cmp(pair.Leaf.SerialNumber) != 0:
		return errors.New("it is about another certificate")
	}
	return nil
}
