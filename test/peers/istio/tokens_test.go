package istio

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// issuer issues tokens (JWT), and serves its keys: at /KEYS.jwks, where KEYS are the names of keys such as ab, and for
// the issuers /KEYS by OpenID discovery.
type issuer struct {
	keys map[byte]*ecdsa.PrivateKey
	url  string
}

// newIssuer returns an issuer with the keys a, b and c. It listens on loopback.
func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{keys: make(map[byte]*ecdsa.PrivateKey)}
	for _, name := range "abc" {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		check(t, err)
		i.keys[byte(name)] = key
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	i.url = "http://" + lis.Addr().String()
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(i.serve)}
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(func() { _ = srv.Close() })
	return i
}

func (i *issuer) serve(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	w.Header().Set("Content-Type", "application/json")
	if keys, ok := strings.CutSuffix(path, "/.well-known/openid-configuration"); ok {
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, i.url+"/"+keys, i.url+"/"+keys+".jwks")
		return
	}
	keys, ok := strings.CutSuffix(path, ".jwks")
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write([]byte(i.jwks(keys)))
}

// jwks returns keys by their names.
func (i *issuer) jwks(names string) string {
	var keys []map[string]string
	for _, name := range []byte(names) {
		if i.keys[name] == nil {
			continue
		}
		point, err := i.keys[name].PublicKey.Bytes()
		if err != nil {
			panic(err)
		}
		keys = append(keys, map[string]string{
			"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": string(name), "x": encode(point[1:33]), "y": encode(point[33:]),
		})
	}
	text, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// token returns a token with claims, and these as JSON. They are written as NAME:VALUE,…: lists have + between their elements, names of nested claims
// dots. exp and nbf are durations from now; without them the token is good for an hour. key is the name of the key that
// signs, and alg is ES256, none, or HS256 with the public key as the secret. forged changes the claims after signing.
func (i *issuer) token(spec string) (token, payload string, err error) {
	claims := map[string]any{"iat": time.Now().Add(-time.Minute).Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	header := map[string]any{"alg": "ES256", "typ": "JWT", "kid": "a"}
	forged := ""
	for word := range strings.SplitSeq(spec, ",") {
		name, value, ok := strings.Cut(word, ":")
		switch {
		case !ok:
			return "", "", fmt.Errorf("the claim %q is not NAME:VALUE", word)
		case name == "exp" || name == "nbf":
			d, err := time.ParseDuration(value)
			if err != nil {
				return "", "", err
			}
			claims[name] = time.Now().Add(d).Unix()
		case name == "key":
			header["kid"] = value
		case name == "alg":
			header["alg"] = value
		case name == "forged":
			forged = value
		default:
			setClaim(claims, strings.Split(name, "."), value)
		}
	}
	key := i.keys[header["kid"].(string)[0]]
	if key == nil {
		return "", "", fmt.Errorf("there is no key %q", header["kid"])
	}
	signed := segment(header) + "." + segment(claims)
	signature, err := sign(header["alg"].(string), key, i, signed)
	if err != nil {
		return "", "", err
	}
	if forged != "" {
		claims["sub"] = forged
		signed = segment(header) + "." + segment(claims)
	}
	text, err := json.Marshal(claims)
	return signed + "." + signature, string(text), err
}

func setClaim(claims map[string]any, path []string, value string) {
	for _, name := range path[:len(path)-1] {
		inner, _ := claims[name].(map[string]any)
		if inner == nil {
			inner = make(map[string]any)
			claims[name] = inner
		}
		claims = inner
	}
	var v any = value
	if strings.Contains(value, "+") {
		v = strings.Split(value, "+")
	}
	claims[path[len(path)-1]] = v
}

func segment(v map[string]any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return encode(text)
}

func sign(alg string, key *ecdsa.PrivateKey, i *issuer, signed string) (string, error) {
	sum := sha256.Sum256([]byte(signed))
	switch alg {
	case "none":
		return "", nil
	case "HS256":
		mac := hmac.New(sha256.New, []byte(i.jwks("a")))
		mac.Write([]byte(signed))
		return encode(mac.Sum(nil)), nil
	case "ES256":
		der, err := key.Sign(rand.Reader, sum[:], crypto.SHA256)
		if err != nil {
			return "", err
		}
		r, s, err := parseECDSA(der)
		if err != nil {
			return "", err
		}
		return encode(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)), nil
	}
	return "", fmt.Errorf("no algorithm %q", alg)
}
