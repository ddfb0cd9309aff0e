// Package pki holds what certificates need whoever issues them: keys, PEM in and
// out, certificate requests, trust anchors that overlap, and the check that a
// certificate must pass before it replaces another.
//
// It does no I/O and has no clock: the time is an argument. No error or String
// tells anything of a private key. Values are immutable once they were made,
// except Roots, which belongs to one goroutine at a time.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds of what is taken from others.
const (
	// MaxChain is how many certificates a chain may have, MaxChainBytes how many
	// bytes of DER they may be together.
	MaxChain      = 10
	MaxChainBytes = 64 << 10
	// MaxRoots is how many certificates a bundle may have: the systems' have 150.
	MaxRoots = 4096
)

const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
	requestBlock     = "CERTIFICATE REQUEST"
	crlBlock         = "X509 CRL"
)

// Pair is a private key and the certificates that belong to it: the leaf, then
// what leads to the root, without the root.
type Pair struct {
	Key   crypto.Signer
	Chain []*x509.Certificate
}

// ParsePair reads a chain and its key from PEM. It fails unless they belong
// together.
func ParsePair(chain, key []byte) (Pair, error) {
	certs, err := ParseCerts(chain)
	if err != nil {
		return Pair{}, fmt.Errorf("certificate: %w", err)
	}
	if err := checkSize(certs); err != nil {
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

// ChainPEM returns the certificates, leaf first.
func (p Pair) ChainPEM() []byte { return EncodeCerts(p.Chain) }

// KeyPEM returns the key as PKCS#8.
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

// ParseCerts reads one or more certificates from PEM. Text around the blocks is
// passed over, a block of another kind is an error, and so is none at all.
func ParseCerts(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	err := eachBlock(text, func(b *pem.Block) error {
		if b.Type != certificateBlock {
			return fmt.Errorf("a PEM block %s among the certificates", kind(b))
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

// eachBlock visits the PEM blocks of a text. One that begins or ends and does not
// decode is an error: pem.Decode alone would pass it over, and what was cut off with
// it.
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

// kind names the kind of a block for an error. What has other letters than a kind has
// is not repeated: where line breaks were lost, the key itself stands there.
func kind(b *pem.Block) string {
	if len(b.Type) > 30 || strings.Trim(b.Type, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ") != "" {
		return "of an unknown kind"
	}
	return strconv.Quote(b.Type)
}

// ParseKey reads one private key from PEM: PKCS#8, PKCS#1 or SEC1, not encrypted.
// EC PARAMETERS before it, as OpenSSL writes them, are passed over.
//
// Envoy takes RSA of 2048 bits or more and ECDSA on P-256, P-384 and P-521;
// Ed25519 is refused with the reason.
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
		return nil, fmt.Errorf("a PEM block %s, and no private key", kind(b))
	}
	if err != nil {
		// What the parser says may quote what it read.
		return nil, fmt.Errorf("the PEM block %q holds no private key that can be read", b.Type)
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

// errEd25519 says why the kind of key that many would choose is not used.
var errEd25519 = errors.New("Ed25519: Envoy 1.40 offers no such signature in TLS, and handshakes would fail: use ecdsa-p256")

// checkKey reports keys that Envoy refuses (source/common/tls/context_impl.cc of 1.40).
func checkKey(key crypto.Signer) error {
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		switch key.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
			return nil
		}
		return fmt.Errorf("ECDSA on %s: Envoy takes P-256, P-384 and P-521", key.Curve.Params().Name)
	case *rsa.PrivateKey:
		switch bits := key.N.BitLen(); {
		case bits < 2048:
			return fmt.Errorf("RSA of %d bits: Envoy takes 2048 or more", bits)
		case bits > 8192:
			return fmt.Errorf("RSA of %d bits: want 8192 or fewer", bits)
		}
		return nil
	case ed25519.PrivateKey:
		return errEd25519
	}
	return fmt.Errorf("a key of type %T, which Envoy does not take", key)
}

// CheckCRL reports lists of revocations in PEM that cannot be read, and returns when
// the first of them ends; the zero time if none says when. Who signed them is checked by who looks into them.
func CheckCRL(text []byte) (until time.Time, err error) {
	found := 0
	err = eachBlock(text, func(b *pem.Block) error {
		if b.Type != crlBlock {
			return fmt.Errorf("a PEM block %s among the lists of revocations", kind(b))
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
