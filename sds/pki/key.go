package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"strings"
)

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
