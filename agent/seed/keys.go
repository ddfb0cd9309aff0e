package seed

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// Fingerprint names a public key: "SHA256:" and the hash of its DER form in base64, as OpenSSH writes it.
func Fingerprint(key ed25519.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "" // it has another length than a key of Ed25519
	}
	sum := sha256.Sum256(der)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// makeKeys says how keys are made.
const makeKeys = "`openssl genpkey -algorithm ed25519 -out seed.key` makes one, and `openssl pkey -in seed.key -pubout -out seed.pub` its public key"

// ReadKey reads the private key of Ed25519 in a PEM file (PKCS #8). Errors contain nothing of the file.
func ReadKey(file string) (ed25519.PrivateKey, error) {
	text, err := userfile.ReadSecret(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s holds no private key in PEM (PKCS #8): %s", file, makeKeys)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: the private key cannot be read: %s", file, makeKeys)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: it is a key of another algorithm than Ed25519: %s", file, makeKeys)
	}
	return key, nil
}

// ReadTrust reads the public keys of Ed25519 in a PEM file, at least one.
func ReadTrust(file string) (keys []ed25519.PublicKey, err error) {
	rest, err := userfile.Read(file)
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type == "PRIVATE KEY" {
			return nil, fmt.Errorf("%s holds a private key, and the public one is needed here: %s", file, makeKeys)
		}
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: a %q cannot be read as a public key: %s", file, block.Type, makeKeys)
		}
		key, ok := parsed.(ed25519.PublicKey)
		if !ok {
			return nil, fmt.Errorf("%s: it has a key of another algorithm than Ed25519: %s", file, makeKeys)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New(file + " holds no public key in PEM: " + makeKeys)
	}
	return keys, nil
}
