// Package jwks gets the public keys of issuers of tokens: at a URI, or where the issuer's OpenID configuration says.
//
// It promises that keys that could be had once stay until others can be had, that answers are bounded in size and time,
// and that nobody can make it ask more often than its times say. Whether a token is valid is not its matter. A Client may
// be used by several goroutines at once, and so may all of a Store but Run, which may be called once.
package jwks

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// MaxKeys bounds a set of keys, in bytes.
const MaxKeys = 1 << 20

// ErrNoKeys says that a set has no key that can verify tokens.
var ErrNoKeys = errors.New("it has no key of RSA, ECDSA or Ed25519")

// Client asks for keys.
type Client struct {
	// Transport is nil for http.DefaultTransport.
	Transport http.RoundTripper
	// Timeout bounds one answer.
	Timeout time.Duration
	// OnlyTLS rejects http, also in redirects and in OpenID configurations.
	OnlyTLS bool
}

// Discover returns the keys of an issuer: where they are, its OpenID configuration says (OpenID Connect
// Discovery 1.0, section 4), which must be of the issuer itself.
func (c *Client) Discover(ctx context.Context, issuer string) ([]jose.JSONWebKey, error) {
	var where struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	at := strings.TrimSuffix(issuer, "/") + "/.well-known/openid-configuration"
	text, err := c.get(ctx, at)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &where); err != nil {
		return nil, fmt.Errorf("%s: it is not the JSON that is expected: %w", at, err)
	}
	if where.Issuer != issuer {
		return nil, fmt.Errorf("%s is of the issuer %.200q: tokens name %q", at, where.Issuer, issuer)
	}
	return c.Get(ctx, where.Keys)
}

// Get returns the keys at a URI.
func (c *Client) Get(ctx context.Context, uri string) ([]jose.JSONWebKey, error) {
	text, err := c.get(ctx, uri)
	if err != nil {
		return nil, err
	}
	keys, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%.200s: %w", uri, err)
	}
	return keys, nil
}

func (c *Client) get(ctx context.Context, at string) ([]byte, error) {
	if u, err := url.Parse(at); err != nil || u.Host == "" || u.Scheme != "https" && (c.OnlyTLS || u.Scheme != "http") {
		return nil, fmt.Errorf("%.200q: want %s", at, c.scheme())
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: c.Transport, CheckRedirect: c.redirect}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%.200s: %s", at, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, MaxKeys+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%.200s: %w", at, err)
	case len(text) > MaxKeys:
		return nil, fmt.Errorf("%.200s: more than %d bytes", at, MaxKeys)
	}
	return text, nil
}

func (c *Client) scheme() string {
	if c.OnlyTLS {
		return "https"
	}
	return "http or https"
}

// redirect follows a redirect unless it leaves TLS.
func (c *Client) redirect(next *http.Request, before []*http.Request) error {
	switch {
	case next.URL.Scheme != "https" && (c.OnlyTLS || before[0].URL.Scheme == "https"):
		return fmt.Errorf("a redirect to %s://: want https", next.URL.Scheme)
	case len(before) > 5:
		return errors.New("more than 5 redirects")
	}
	return nil
}

// Parse returns the public keys of a set with which tokens may be signed. Elements that are something else are ignored (RFC
// 7517, section 5).
func Parse(text []byte) ([]jose.JSONWebKey, error) {
	elements, err := elementsOf(text)
	if err != nil {
		return nil, err
	}
	var keys []jose.JSONWebKey
	for _, key := range elements {
		public := key.Public() // a symmetric key has none
		if public.Valid() && CanVerify(public.Key) && fits(&public) {
			keys = append(keys, public)
		}
	}
	if len(keys) == 0 {
		return nil, ErrNoKeys
	}
	return keys, nil
}

// IsUsable reports whether Envoy finds a key in a set, which may be a symmetric one: otherwise it rejects the listener.
func IsUsable(text []byte) bool {
	if _, err := Parse(text); err == nil {
		return true
	}
	elements, _ := elementsOf(text)
	return slices.ContainsFunc(elements, func(key jose.JSONWebKey) bool {
		secret, ok := key.Key.([]byte)
		return ok && len(secret) > 0 && slices.Contains([]string{"", "HS256", "HS384", "HS512"}, key.Algorithm)
	})
}

// elementsOf returns the keys of a set that can be read.
func elementsOf(text []byte) (keys []jose.JSONWebKey, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("want a set of keys (JWKS): %w", err)
	}
	for _, text := range set.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(text) == nil {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// Format returns keys as JWKS: what Envoy reads of them, and nothing else of what an issuer has written, which Envoy may
// take for something else than it was taken for here, or reject.
func Format(keys []jose.JSONWebKey) (string, error) {
	set := jose.JSONWebKeySet{Keys: make([]jose.JSONWebKey, 0, len(keys))}
	for _, key := range keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Key, KeyID: key.KeyID, Algorithm: key.Algorithm, Use: key.Use})
	}
	text, err := json.Marshal(set)
	return string(text), err
}

// CanVerify reports whether a public key can verify tokens.
func CanVerify(key any) bool {
	switch key.(type) {
	case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// The sizes in bits of an RSA key with which Envoy verifies, and the largest exponent.
const minRSA, maxRSA, maxExponent = 1024, 16384, 1<<33 - 1

// fits reports whether a key is for signatures, and its algorithm one of its kind: Envoy rejects a set without such keys.
func fits(key *jose.JSONWebKey) bool {
	algorithms := []string{""}
	switch public := key.Key.(type) {
	case *rsa.PublicKey:
		algorithms = append(algorithms, "RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
		if bits := public.N.BitLen(); bits < minRSA || bits > maxRSA || public.E < 3 || public.E%2 == 0 || int64(public.E) > maxExponent {
			return false
		}
	case *ecdsa.PublicKey:
		algorithms = append(algorithms, map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[public.Curve.Params().BitSize])
	case ed25519.PublicKey:
		algorithms = append(algorithms, "EdDSA")
	}
	return slices.Contains(algorithms, key.Algorithm) && (key.Use == "" || key.Use == "sig")
}
