// Package pki contains what certificates from any issuer need: keys, PEM, certificate requests, trust
// anchors that overlap, and the verification that a certificate must pass before it replaces another.
//
// It does no I/O and has no clock. It promises that no error or String contains a part of a private key. It
// does not check revocation. Values may be shared, except Roots, which one goroutine may use at a time.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits for data from other parties.
const (
	// MaxChain and MaxChainBytes, in DER, bound a chain of certificates.
	MaxChain      = 10
	MaxChainBytes = 64 << 10
	// MaxRoots bounds a bundle; those of operating systems have about 150 certificates.
	MaxRoots = 4096
)

const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
	requestBlock     = "CERTIFICATE REQUEST"
	crlBlock         = "X509 CRL"
)

// Pair is a private key and its certificate chain: the leaf and the intermediates, without the root.
type Pair struct {
	Key   crypto.Signer
	Chain []*x509.Certificate
}

// ParsePair parses a PEM chain and its PEM key. It fails if the key does not belong to the leaf.
func ParsePair(chain, key []byte) (Pair, error) {
	certs, err := ParseCerts(chain)
	if err == nil {
		err = checkSize(certs)
	}
	if err != nil {
		return Pair{}, fmt.Errorf("certificate: %w", err)
	}
	signer, err := ParseKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("key: %w", err)
	}
	if !samePublic(certs[0].PublicKey, signer.Public()) {
		return Pair{}, &Fault{WrongKey, errors.New("the key is not that of the first certificate")}
	}
	return Pair{Key: signer, Chain: certs}, nil
}

// Leaf returns the certificate of the key.
func (p Pair) Leaf() *x509.Certificate { return p.Chain[0] }

func (p Pair) ChainPEM() []byte { return EncodeCerts(p.Chain) }

func (p Pair) KeyPEM() []byte { return EncodeKey(p.Key) }

// EncodeKey returns a key as PKCS#8 in PEM.
func EncodeKey(key crypto.Signer) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic("pki: a key that was parsed or generated does not marshal") // every kind that checkKey admits does
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der})
}

// EncodeCerts returns certificates as PEM, in their order.
func EncodeCerts(certs []*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&out, &pem.Block{Type: certificateBlock, Bytes: c.Raw}) // a Buffer takes everything
	}
	return out.Bytes()
}

// ParseCerts parses one or more PEM certificates. It ignores text around the blocks, but no other block.
func ParseCerts(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	err := eachBlock(text, func(b *pem.Block) error {
		if b.Type != certificateBlock {
			return fmt.Errorf("a PEM block %s among the certificates", blockType(b))
		}
		if len(certs) == MaxRoots {
			return fmt.Errorf("more than %d certificates", MaxRoots)
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, c)
		return nil
	})
	if err == nil && len(certs) == 0 {
		err = errors.New("no PEM certificate")
	}
	if err != nil {
		return nil, err
	}
	return certs, nil
}

// eachBlock visits the PEM blocks. It rejects a damaged block, which pem.Decode alone would skip.
func eachBlock(text []byte, visit func(*pem.Block) error) error {
	begins, ends := bytes.Count(text, []byte("-----BEGIN ")), bytes.Count(text, []byte("-----END "))
	for n := 0; ; n++ {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			if n != begins || n != ends {
				return errors.New("a PEM block that is damaged or cut off")
			}
			return nil
		}
		if err := visit(b); err != nil {
			return err
		}
	}
}

// blockType names the type of a block for an error. A type with unexpected characters is not repeated: if
// line breaks were lost, it contains the key itself.
func blockType(b *pem.Block) string {
	if len(b.Type) > 30 || strings.Trim(b.Type, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ") != "" {
		return "of an unknown kind"
	}
	return strconv.Quote(b.Type)
}

// ParseKey parses one private key in PEM: PKCS#8, PKCS#1 or SEC1, not encrypted, of a kind that Envoy
// accepts: RSA of 2048 bits or more, or ECDSA on P-256, P-384 or P-521. It skips OpenSSL's EC PARAMETERS.
func ParseKey(text []byte) (crypto.Signer, error) {
	var key crypto.Signer
	err := eachBlock(text, func(b *pem.Block) error {
		if b.Type == "EC PARAMETERS" {
			return nil
		}
		if key != nil {
			return errors.New("more than one PEM block")
		}
		var err error
		key, err = parseKeyBlock(b)
		return err
	})
	if err == nil && key == nil {
		err = errors.New("no PEM private key")
	}
	if err != nil {
		return nil, err
	}
	return key, nil
}

func parseKeyBlock(b *pem.Block) (crypto.Signer, error) {
	var parsed any
	var err error
	switch {
	case b.Type == "ENCRYPTED PRIVATE KEY" || b.Headers["DEK-Info"] != "":
		return nil, errors.New("the private key is encrypted: it must be in the clear")
	case b.Type == keyBlock:
		parsed, err = x509.ParsePKCS8PrivateKey(b.Bytes)
	case b.Type == "RSA PRIVATE KEY":
		parsed, err = x509.ParsePKCS1PrivateKey(b.Bytes)
	case b.Type == "EC PRIVATE KEY":
		parsed, err = x509.ParseECPrivateKey(b.Bytes)
	default:
		return nil, fmt.Errorf("a PEM block %s instead of a private key", blockType(b))
	}
	if err != nil {
		// The error of the parser may quote the key.
		return nil, fmt.Errorf("the PEM block %q contains no valid private key", b.Type)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T, which cannot sign", parsed)
	}
	if err := checkKey(key); err != nil {
		return nil, err
	}
	return key, nil
}

var errEd25519 = errors.New("Ed25519: Envoy 1.40 offers no such signature in TLS, and handshakes would fail: use ecdsa-p256")

// checkKey rejects keys that Envoy rejects.
func checkKey(key crypto.Signer) error { return CheckPublicKey(key.Public()) }

// CheckPublicKey rejects keys that Envoy rejects (source/common/tls/context_impl.cc of 1.40).
func CheckPublicKey(key crypto.PublicKey) error {
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
			return nil
		}
		return fmt.Errorf("ECDSA on %s: Envoy takes P-256, P-384 and P-521", key.Curve.Params().Name)
	case *rsa.PublicKey:
		switch bits := key.N.BitLen(); {
		case bits < 2048:
			return fmt.Errorf("RSA of %d bits: Envoy takes 2048 or more", bits)
		case bits > 8192:
			return fmt.Errorf("RSA of %d bits: want 8192 or fewer", bits)
		}
		return nil
	case ed25519.PublicKey:
		return errEd25519
	}
	return fmt.Errorf("a key of type %T, which Envoy does not take", key)
}

// CheckCRL checks that PEM revocation lists can be parsed, and returns when the first of them expires; the
// zero time if none does. It does not check their signatures: the clients do.
func CheckCRL(text []byte) (until time.Time, err error) {
	found := 0
	err = eachBlock(text, func(b *pem.Block) error {
		if b.Type != crlBlock {
			return fmt.Errorf("a PEM block %s among the revocation lists", blockType(b))
		}
		found++
		list, err := x509.ParseRevocationList(b.Bytes)
		if err != nil {
			return fmt.Errorf("list %d: %w", found, err)
		}
		if ends := list.NextUpdate; until.IsZero() || !ends.IsZero() && ends.Before(until) {
			until = list.NextUpdate
		}
		return nil
	})
	if err == nil && found == 0 {
		err = fmt.Errorf("no PEM block %q", crlBlock)
	}
	return until, err
}

// KeyType is a type of key that can be generated.
type KeyType string

const (
	ECDSAP256 KeyType = "ecdsa-p256"
	ECDSAP384 KeyType = "ecdsa-p384"
	RSA2048   KeyType = "rsa-2048"
	RSA3072   KeyType = "rsa-3072"
	RSA4096   KeyType = "rsa-4096"

	DefaultKeyType = ECDSAP256
)

// KeyTypes lists the types of keys.
func KeyTypes() []KeyType { return []KeyType{ECDSAP256, ECDSAP384, RSA2048, RSA3072, RSA4096} }

// ParseKeyType parses the name of a type of key; "" is the default.
func ParseKeyType(name string) (KeyType, error) {
	var names []string
	for _, t := range KeyTypes() {
		if string(t) == name {
			return t, nil
		}
		names = append(names, string(t))
	}
	switch strings.ToLower(name) {
	case "":
		return DefaultKeyType, nil
	case "ed25519":
		return "", errEd25519
	}
	return "", fmt.Errorf("unknown key type %q: want one of %s", name, strings.Join(names, ", "))
}

// Generate generates a key. RSA of 4096 bits may take a few seconds.
func (t KeyType) Generate() (crypto.Signer, error) {
	switch t {
	case ECDSAP256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ECDSAP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	case RSA3072:
		return rsa.GenerateKey(rand.Reader, 3072)
	case RSA4096:
		return rsa.GenerateKey(rand.Reader, 4096)
	}
	return nil, fmt.Errorf("unknown key type %q", string(t))
}

func samePublic(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}
