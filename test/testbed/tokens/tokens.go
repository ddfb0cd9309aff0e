// Package tokens issues tokens for tests.
package tokens

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Issuer issues tokens of service accounts, as a Kubernetes API server does.
type Issuer struct {
	URL string
	// Keys is its public key, as JWKS.
	Keys   []byte
	signer jose.Signer
}

// New makes an issuer with a key of its own.
func New() (*Issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	i := &Issuer{URL: "https://kubernetes.default.svc"}
	if i.Keys, err = json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public()}}}); err != nil {
		return nil, err
	}
	i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	return i, err
}

// Token returns a token of a service account, for an hour and for Istio's CA.
func (i *Issuer) Token(namespace, account string) ([]byte, error) {
	text, err := jwt.Signed(i.signer).Claims(map[string]any{
		"iss": i.URL, "aud": []string{"istio-ca"}, "sub": "system:serviceaccount:" + namespace + ":" + account, "exp": time.Now().Add(time.Hour).Unix(),
	}).Serialize()
	return []byte(text), err
}
