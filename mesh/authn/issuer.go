package authn

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/holdfast-xds/holdfast/internal/dial"
)

// Limits of what is read.
const (
	maxToken = 16 << 10
	maxKeys  = 1 << 20 // bytes of a file, or of an answer of the issuer
)

// retryAfter is how long a failed discovery is not repeated.
const retryAfter = time.Second

// algorithms are the signatures of tokens that are accepted: asymmetric ones only.
var algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}

// Issuer issues tokens.
type Issuer struct {
	// URL is the claim iss of its tokens.
	URL string
	// Keys is a file with its public keys, as JWKS or PEM, which is read again for each token. "" asks the issuer:
	// URL/.well-known/openid-configuration says where they are (OpenID Connect Discovery 1.0).
	Keys string
	// CA is a file with the CAs to trust for that; "" means those of the system.
	CA string
}

// issuer verifies tokens of an Issuer.
type issuer struct {
	Issuer
	client *http.Client

	mu        sync.Mutex
	verifier  *oidc.IDTokenVerifier // of discovered keys
	failed    error                 // of the last discovery
	failedAt  time.Time
	lastKeys  []crypto.PublicKey // of the file
	lastBytes []byte
}

func newIssuer(from Issuer) (*issuer, error) {
	i := &issuer{Issuer: from}
	if from.Keys != "" {
		if from.CA != "" {
			return nil, errors.New("its keys are in a file: a CA has no effect")
		}
		return i, i.readKeys()
	}
	u, err := url.Parse(from.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("want a URL https://HOST…, of which the keys are asked for, or a file with them")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if from.CA != "" {
		pool, err := dial.CertPool(from.CA)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	i.client = &http.Client{Transport: limited{transport}, Timeout: timeout}
	return i, nil
}

// limited bounds the answers of an issuer.
type limited struct{ http.RoundTripper }

func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxKeys), resp.Body}
	}
	return resp, err
}

// unavailable is an error that says nothing of the token.
type unavailable struct{ error }

func (u unavailable) Unwrap() error { return u.error }

// verify returns a token whose signature, issuer and times are right. Errors do not contain it.
func (i *issuer) verify(ctx context.Context, raw string) (*oidc.IDToken, error) {
	verifier, err := i.verifierNow(ctx)
	if err != nil {
		return nil, unavailable{fmt.Errorf("the keys of the issuer %s cannot be had: %w", i.URL, err)}
	}
	token, err := verifier.Verify(ctx, raw)
	if err == nil {
		return token, nil
	}
	if ctx.Err() != nil || strings.Contains(err.Error(), "fetching keys") { // go-oidc has no error of its own for it
		return nil, unavailable{fmt.Errorf("the keys of the issuer %s cannot be had: %w", i.URL, err)}
	}
	return nil, errors.New(strings.TrimPrefix(err.Error(), "oidc: "))
}

func (i *issuer) verifierNow(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	config := &oidc.Config{SkipClientIDCheck: true, SupportedSigningAlgs: algorithms}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.Keys != "" {
		_ = i.readKeys() // the last ones stay in use
		return oidc.NewVerifier(i.URL, &oidc.StaticKeySet{PublicKeys: i.lastKeys}, config), nil
	}
	if i.verifier != nil {
		return i.verifier, nil
	}
	if i.failed != nil && time.Since(i.failedAt) < retryAfter {
		return nil, i.failed
	}
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.URL)
	if err != nil {
		i.failed, i.failedAt = err, time.Now()
		return nil, err
	}
	i.verifier = provider.VerifierContext(oidc.ClientContext(context.WithoutCancel(ctx), i.client), config)
	return i.verifier, nil
}

// readKeys reads the file of keys if it has changed.
func (i *issuer) readKeys() error {
	text, err := readFile(i.Keys)
	if err != nil {
		return err
	}
	if len(i.lastKeys) > 0 && bytes.Equal(text, i.lastBytes) {
		return nil
	}
	keys, err := parseKeys(text)
	if err != nil {
		return fmt.Errorf("%s: %w", i.Keys, err)
	}
	i.lastKeys, i.lastBytes = keys, text
	return nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxKeys+1))
	if err == nil && len(text) > maxKeys {
		err = fmt.Errorf("%s: more than %d bytes", name, maxKeys)
	}
	return text, err
}

// parseKeys reads public keys: a JWKS, or PEM.
func parseKeys(text []byte) (keys []crypto.PublicKey, err error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		var set jose.JSONWebKeySet
		if err := json.Unmarshal(text, &set); err != nil {
			return nil, fmt.Errorf("want a set of keys (JWKS): %w", err)
		}
		for _, key := range set.Keys {
			if public := key.Public(); public.Valid() { // a symmetric key has none
				keys = append(keys, public.Key)
			}
		}
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		key, err := parseBlock(block)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no public key: want a JWKS, or PEM with blocks PUBLIC KEY")
	}
	return keys, nil
}

func parseBlock(block *pem.Block) (crypto.PublicKey, error) {
	switch block.Type {
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return cert.PublicKey, nil
	}
	return nil, fmt.Errorf("a PEM block %.40q: want PUBLIC KEY", block.Type)
}

// issuerOf returns the claim iss of a token that is not verified.
func issuerOf(raw string) (string, error) {
	if len(raw) > maxToken {
		return "", fmt.Errorf("it has %d bytes: want %d or fewer", len(raw), maxToken)
	}
	parts := strings.Split(raw, ".")
	if len(parts) != 3 {
		return "", errors.New("it is not a JWT")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", errors.New("it is not a JWT")
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	if err := json.Unmarshal(payload, &c); err != nil {
		return "", errors.New("it is not a JWT")
	}
	return c.Issuer, nil
}
