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
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/mesh/jwks"
)

// maxToken bounds a token in bytes.
const maxToken = 16 << 10

// algorithms are the signatures of tokens that are accepted: asymmetric ones only.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.PS256, jose.PS384, jose.PS512, jose.EdDSA}

// Issuer issues tokens.
type Issuer struct {
	// URL is the claim iss of its tokens.
	URL string
	// Keys is a file with its public keys, as JWKS or PEM, which is read again for each token. "" asks the issuer:
	// URL/.well-known/openid-configuration says where they are (OpenID Connect Discovery 1.0).
	Keys string
	// CA is a file with the CAs to trust for that; "" means those of the system.
	CA string
	// TrustDomain is the one trust domain for which the issuer speaks, and for which no issuer without one does. With ""
	// its service accounts are of the trust domain of the mesh, and its SPIFFE IDs of any one of the mesh.
	TrustDomain string
}

// issuer verifies tokens of an Issuer. It implements oidc.KeySet for keys in a file.
type issuer struct {
	Issuer
	log      *slog.Logger
	verifier *oidc.IDTokenVerifier
	remote   *remoteKeys // nil for keys in a file

	mu    sync.Mutex
	keys  []jose.JSONWebKey // of the file
	bytes []byte            // that it had
	fault string            // why it was not read last; "" if it was
}

func newIssuer(from Issuer, log *slog.Logger) (*issuer, error) {
	if domain, err := spiffeid.TrustDomainFromString(from.TrustDomain); from.TrustDomain != "" && (err != nil || domain.Name() != from.TrustDomain) {
		return nil, fmt.Errorf("%.200q is no trust domain: want a name such as cluster.local, in lower case", from.TrustDomain)
	}
	i := &issuer{Issuer: from, log: log}
	config := &oidc.Config{SkipClientIDCheck: true}
	for _, alg := range algorithms {
		config.SupportedSigningAlgs = append(config.SupportedSigningAlgs, string(alg))
	}
	if from.Keys != "" {
		if from.CA != "" {
			return nil, errors.New("its keys are in a file: a CA has no effect")
		}
		i.verifier = oidc.NewVerifier(from.URL, i, config)
		return i, i.readKeys()
	}
	u, err := url.Parse(from.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("want a URL https://HOST…, of which the keys are asked for, or a file with them")
	}
	var conf *tls.Config
	if from.CA != "" {
		pool, err := dial.CertPool(from.CA)
		if err != nil {
			return nil, err
		}
		conf = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	i.remote = &remoteKeys{
		issuer: from.URL, client: &jwks.Client{Transport: jwks.Transport(conf, true), Timeout: timeout, OnlyTLS: true},
		failed: func(err error) {
			log.Warn("the keys of an issuer of tokens cannot be had", "issuer", from.URL, "err", err)
		},
	}
	i.verifier = oidc.NewVerifier(from.URL, i.remote, config)
	return i, nil
}

// verify returns a token whose signature, issuer and times are right. Errors do not contain it.
func (i *issuer) verify(ctx context.Context, raw string) (*oidc.IDToken, error) {
	token, err := i.verifier.Verify(ctx, raw)
	switch {
	case err == nil:
		return token, nil
	case strings.Contains(err.Error(), errKeys.Error()): // go-oidc does not wrap it
		return nil, errKeys
	}
	return nil, errors.New(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "oidc: "), "failed to verify signature: "))
}

// VerifySignature returns the payload of a token that a key of the file has signed.
func (i *issuer) VerifySignature(_ context.Context, raw string) ([]byte, error) {
	i.mu.Lock()
	fault := ""
	if err := i.readKeys(); err != nil {
		fault = err.Error()
	}
	changed := fault != i.fault
	i.fault = fault
	keys := i.keys
	i.mu.Unlock()
	switch {
	case changed && fault != "":
		i.log.Error("the keys of an issuer of tokens cannot be read; the last ones stay in use", "issuer", i.URL, "err", fault)
	case changed:
		i.log.Info("the keys of an issuer of tokens can be read again", "issuer", i.URL)
	}
	return verify(raw, keys)
}

// readKeys reads the file of keys if it has changed.
func (i *issuer) readKeys() error {
	text, err := userfile.ReadUpTo(i.Keys, jwks.MaxKeys, nil)
	if err != nil {
		return err
	}
	if len(i.keys) > 0 && bytes.Equal(text, i.bytes) {
		return nil
	}
	keys, err := parseKeys(text)
	if err != nil {
		return fmt.Errorf("%s: %w", i.Keys, err)
	}
	i.keys, i.bytes = keys, text
	return nil
}

// parseKeys reads public keys: a JWKS, or PEM. Those with which nobody signs tokens are left out.
func parseKeys(text []byte) (keys []jose.JSONWebKey, err error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		if keys, err = jwks.Parse(text); err != nil && !errors.Is(err, jwks.ErrNoKeys) {
			return nil, err
		}
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		key, err := parseBlock(block)
		if err != nil {
			return nil, err
		}
		if jwks.CanVerify(key) {
			keys = append(keys, jose.JSONWebKey{Key: key})
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no public key of RSA, ECDSA or Ed25519: want a JWKS, or PEM with blocks PUBLIC KEY")
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

// issuerOf returns the claim iss of a token that is not verified. Claims of which a reader may take either of two are an
// error, such as iss and ISS, and so is a claim that only some readers take for one that is read.
func issuerOf(raw string) (string, error) {
	if len(raw) > maxToken {
		return "", fmt.Errorf("it has %d bytes: want %d or fewer", len(raw), maxToken)
	}
	parts := strings.Split(raw, ".")
	if len(parts) != 3 {
		return "", errNotJWT
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", errNotJWT
	}
	var claims map[string]json.RawMessage
	if err := json.Unmarshal(payload, &claims); err != nil {
		return "", errNotJWT
	}
	if err := distinct(json.NewDecoder(bytes.NewReader(payload)), read); err != nil {
		return "", err
	}
	var issuer string
	if text, found := claims["iss"]; found && json.Unmarshal(text, &issuer) != nil {
		return "", errNotJWT
	}
	return issuer, nil
}

var errNotJWT = errors.New("it is not a JWT")

// names are those of the claims that are read of an object, each with those within it.
type names map[string]names

// read are the claims that go-oidc and this package read.
var read = names{
	"iss": nil, "sub": nil, "aud": nil, "exp": nil, "iat": nil, "nbf": nil, "nonce": nil, "at_hash": nil, "_claim_names": nil, "_claim_sources": nil,
	"kubernetes.io": {"namespace": nil, "serviceaccount": {"name": nil}},
}

// folded returns a name in the one spelling of all those which encoding/json takes for the same: it folds case as Unicode
// does, where a long s is an s and the sign of Kelvin a k.
func folded(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, name)
}

// distinct returns an error if encoding/json takes two names of an object, or of one within it, for the same, or a name for
// one of those that are read although it is another: some readers would take one, and some the other.
func distinct(value *json.Decoder, known names) error {
	token, err := value.Token()
	if err != nil {
		return errNotJWT
	}
	open, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	spelled := make(map[string]string)
	for name := range known {
		spelled[folded(name)] = name
	}
	seen := make(map[string]bool)
	var other error // another spelling; that there are both says more
	for value.More() {
		within := names(nil)
		if open == '{' {
			token, err := value.Token()
			name, ok := token.(string)
			if err != nil || !ok {
				return errNotJWT
			}
			as := folded(name)
			if seen[as] {
				return fmt.Errorf("it has the claim %+.100q twice", name)
			}
			seen[as] = true
			if right, ok := spelled[as]; ok && right != name {
				other = fmt.Errorf("it has the claim %+.100q, which is no spelling of %s", name, right)
			}
			within = known[name]
		}
		if err := distinct(value, within); err != nil {
			return err
		}
	}
	if _, err := value.Token(); err != nil {
		return errNotJWT
	}
	return other
}
