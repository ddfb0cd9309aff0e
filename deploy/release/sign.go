package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"strconv"
)

// signer signs with the key of a release.
type signer struct {
	key crypto.Signer
	id  string // SHA-256 of the public key (SubjectPublicKeyInfo), in hexadecimal
}

// readSigner reads a private key: Ed25519 or ECDSA P-256, in PEM as PKCS#8 and not encrypted.
func readSigner(file string) (*signer, error) {
	const want = "want an Ed25519 or ECDSA P-256 key in PEM (PKCS#8, not encrypted), as `openssl genpkey -algorithm ed25519` makes it"
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("signing key %s: %s", file, want)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w: %s", file, err, want)
	}
	var key crypto.Signer
	switch k := parsed.(type) {
	case ed25519.PrivateKey:
		key = k
	case *ecdsa.PrivateKey:
		if k.Curve != elliptic.P256() {
			return nil, fmt.Errorf("signing key %s: %s", file, want)
		}
		key = k
	default:
		return nil, fmt.Errorf("signing key %s: %s", file, want)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(public)
	return &signer{key: key, id: hex.EncodeToString(sum[:])}, nil
}

// sign signs data: 64 bytes with Ed25519, and with ECDSA the ASN.1 of a signature of the SHA-256, which is the same each time
// (RFC 6979).
func (s *signer) sign(data []byte) ([]byte, error) {
	if _, ok := s.key.(ed25519.PrivateKey); ok {
		return s.key.Sign(nil, data, crypto.Hash(0))
	}
	sum := sha256.Sum256(data)
	return s.key.Sign(nil, sum[:], crypto.SHA256)
}

// detached is the content of a signature's file: the bytes for `openssl pkeyutl` with Ed25519, base64 as cosign has it with ECDSA.
func (s *signer) detached(data []byte) ([]byte, error) {
	signature, err := s.sign(data)
	if _, ok := s.key.(ed25519.PrivateKey); ok || err != nil {
		return signature, err
	}
	return []byte(base64.StdEncoding.EncodeToString(signature)), nil
}

// envelope is a DSSE envelope (https://github.com/secure-systems-lab/dsse).
type envelope struct {
	PayloadType string              `json:"payloadType"`
	Payload     string              `json:"payload"`
	Signatures  []envelopeSignature `json:"signatures"`
}

type envelopeSignature struct {
	KeyID     string `json:"keyid"`
	Signature string `json:"sig"`
}

// seal signs a payload in an envelope.
func (s *signer) seal(payloadType string, payload []byte) (envelope, error) {
	signature, err := s.sign(preAuthentication(payloadType, payload))
	return envelope{
		PayloadType: payloadType, Payload: base64.StdEncoding.EncodeToString(payload),
		Signatures: []envelopeSignature{{s.id, base64.StdEncoding.EncodeToString(signature)}},
	}, err
}

// preAuthentication is the encoding that DSSE signs (version 1).
func preAuthentication(payloadType string, payload []byte) []byte {
	head := "DSSEv1 " + strconv.Itoa(len(payloadType)) + " " + payloadType + " " + strconv.Itoa(len(payload)) + " "
	return append([]byte(head), payload...)
}
