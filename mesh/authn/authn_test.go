package authn

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/mesh/jwks"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

const issuerURL = "https://issuer.example"

var domains = []string{"cluster.local", "old.example"}

// rig signs tokens with a key, whose public half is in a file.
type rig struct {
	*testing.T
	key  crypto.Signer
	file string
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, file: filepath.Join(t.TempDir(), "keys")}
	r.rotate()
	return r
}

// rotate makes a new key, and writes it to the file as JWKS.
func (r *rig) rotate() {
	r.Helper()
	r.key = pkitest.Key(r.T)
	r.write(keySet(r.T, r.key.Public()))
}

func (r *rig) write(text []byte) {
	r.Helper()
	if err := os.WriteFile(r.file, text, 0o600); err != nil {
		r.Fatal(err)
	}
}

func keySet(t *testing.T, keys ...crypto.PublicKey) []byte {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, key := range keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key})
	}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (r *rig) authenticator(change ...func(*Config)) *Authenticator {
	r.Helper()
	cfg := Config{Issuers: []Issuer{{URL: issuerURL, Keys: r.file}}, Required: true}
	for _, f := range change {
		f(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		r.Fatal(err)
	}
	return a
}

// claimsOf returns the claims of a good token, with changes; a nil value removes one.
func claimsOf(changes map[string]any) map[string]any {
	all := map[string]any{
		"iss": issuerURL, "aud": []string{"istio-ca"}, "sub": "system:serviceaccount:shop:web", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		"kubernetes.io": map[string]any{"namespace": "shop", "serviceaccount": map[string]any{"name": "web"}},
	}
	for name, value := range changes {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	return all
}

func sign(t *testing.T, key any, alg jose.SignatureAlgorithm, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func withToken(token string) downstream.Credentials {
	return downstream.Credentials{Secure: true, Authorization: []string{"Bearer " + token}}
}

func TestATokenSaysWhoAClientIs(t *testing.T) {
	r := newRig(t)
	a := r.authenticator()
	for name, tc := range map[string]struct {
		changes map[string]any
		want    proxy.Identity
	}{
		"a service account":         {nil, proxy.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}},
		"without Kubernetes' claim": {map[string]any{"kubernetes.io": nil}, proxy.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}},
		"one of several audiences":  {map[string]any{"aud": []string{"x", "istio-ca"}}, proxy.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}},
		"a SPIFFE ID":               {map[string]any{"sub": "spiffe://old.example/ns/vm/sa/db"}, proxy.Identity{TrustDomain: "old.example", Namespace: "vm", ServiceAccount: "db"}},
		// Whether its trust domain is one of the mesh is checked where the identity is used.
		"a SPIFFE ID of another domain": {map[string]any{"sub": "spiffe://evil.example/ns/vm/sa/db"}, proxy.Identity{TrustDomain: "evil.example", Namespace: "vm", ServiceAccount: "db"}},
	} {
		id, err := a.Identify(t.Context(), withToken(sign(t, r.key, jose.ES256, claimsOf(tc.changes))), domains)
		if left := time.Until(id.ExpiresAt()); err != nil || left < 59*time.Minute || left > time.Hour {
			t.Errorf("%s: %+v, %v", name, id, err)
			continue
		}
		id.Expires = time.Time{}
		if *id != tc.want {
			t.Errorf("%s: %+v", name, id)
		}
	}
}

// What an attacker may try. Each error says why, and none contains the token.
func TestATokenIsRefused(t *testing.T) {
	r := newRig(t)
	a := r.authenticator()
	good := sign(t, r.key, jose.ES256, claimsOf(nil))
	parts := strings.Split(good, ".")
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	public, err := x509.MarshalPKIXPublicKey(r.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	changed := func(name string, value any) string {
		return sign(t, r.key, jose.ES256, claimsOf(map[string]any{name: value}))
	}
	extended := func(of map[string]any, more string) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: r.key}, nil)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := json.Marshal(claimsOf(of))
		if err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Sign(append(claims[:len(claims)-1], more...))
		if err != nil {
			t.Fatal(err)
		}
		text, err := signed.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	doubled := func(more string) string { return extended(nil, more) }
	admin, err := json.Marshal(claimsOf(map[string]any{"sub": "system:serviceaccount:kube-system:admin"}))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ token, why string }{
		"of another issuer":                 {changed("iss", "https://evil.example"), `its issuer "https://evil.example" is not one of the mesh`},
		"without an issuer":                 {changed("iss", nil), `its issuer "" is not one of the mesh`},
		"signed by somebody else":           {sign(t, pkitest.Key(t), jose.ES256, claimsOf(nil)), "no key of the issuer verifies its signature"},
		"with other claims":                 {parts[0] + "." + encode(string(admin)) + "." + parts[2], "no key of the issuer verifies its signature"},
		"without a signature":               {parts[0] + "." + parts[1] + ".", "no key of the issuer verifies its signature"},
		"with a claim twice":                {doubled(`,"SUB":"system:serviceaccount:kube-system:admin"}`), `it has the claim "SUB" twice`},
		"with an expiry twice":              {doubled(`,"Exp":9999999999}`), `it has the claim "Exp" twice`},
		"with a nested claim twice":         {doubled(`,"kubernetes":[{"a":1,"A":2}]}`), `it has the claim "A" twice`},
		"with a long s":                     {doubled(`,"\u017fub":"system:serviceaccount:kube-system:admin"}`), `it has the claim "\u017fub" twice`},
		"with a long s in its issuer":       {doubled(`,"i\u017fs":"https://evil.example"}`), `it has the claim "i\u017fs" twice`},
		"with the sign of Kelvin":           {doubled(`,"\u212aubernetes.io":{"namespace":"a"}}`), `"\u212aubernetes.io"`},
		"with a nested long s":              {changed("kubernetes.io", map[string]any{"name\u017fpace": "a"}), `it has the claim "name\u017fpace", which is no spelling of namespace`},
		"with two nested kelvins":           {doubled(`,"x":[{"k":1,"\u212a":2}]}`), `it has the claim "\u212a" twice`},
		"with another case of the only one": {extended(map[string]any{"sub": nil}, `,"Sub":"system:serviceaccount:kube-system:admin"}`), `it has the claim "Sub", which is no spelling of sub`},
		"of the algorithm none":             {encode(`{"alg":"none"}`) + "." + parts[1] + ".", "malformed"},
		"symmetric, with our key":           {sign(t, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), jose.HS256, claimsOf(nil)), "malformed"},
		"expired":                           {changed("exp", time.Now().Add(-time.Hour).Unix()), "token is expired"},
		"that never expires":                {changed("exp", nil), "token is expired"},
		"not yet valid":                     {changed("nbf", time.Now().Add(time.Hour).Unix()), "nbf"},
		"for somebody else":                 {changed("aud", []string{"https://kubernetes.default.svc"}), "its audience is"},
		"for nobody":                        {changed("aud", nil), "its audience is"},
		"of a person":                       {changed("sub", "alice"), `its subject "alice" is neither`},
		"of a path":                         {changed("sub", "system:serviceaccount:a/sa/b:c"), "is neither"},
		"of an empty namespace":             {changed("sub", "system:serviceaccount::c"), "is neither"},
		"of a third part":                   {changed("sub", "system:serviceaccount:a:b:c"), "is neither"},
		"of a SPIFFE ID of SPIRE":           {changed("sub", "spiffe://cluster.local/web"), "and not spiffe://TRUSTDOMAIN/ns/NAMESPACE/sa/ACCOUNT"},
		"of a broken SPIFFE ID":             {changed("sub", "spiffe://cluster.local/../ns/a/sa/b"), "its subject"},
		"of two service accounts":           {changed("kubernetes.io", map[string]any{"namespace": "kube-system", "serviceaccount": map[string]any{"name": "admin"}}), `and its claims are of the service account "admin"`},
		"that is none":                      {"opaque", "it is not a JWT"},
		"of garbage":                        {"a.b.c", "it is not a JWT"},
		"of too many parts":                 {good + ".x", "it is not a JWT"},
		"that is too long":                  {good + strings.Repeat("x", maxToken), "want 16384 or fewer"},
	} {
		id, err := a.Identify(t.Context(), withToken(tc.token), domains)
		if id != nil || status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tc.why) || strings.Contains(err.Error(), parts[2]) {
			t.Errorf("%s: %+v, %v, want %q", name, id, err, tc.why)
		}
	}
	// Not over plaintext, where others may have read it, and not in another scheme.
	plain := withToken(good)
	plain.Secure = false
	if id, err := a.Identify(t.Context(), plain, domains); id != nil || err != nil {
		t.Errorf("over plaintext: %+v, %v", id, err)
	}
	for _, header := range []string{good, "Basic " + good, "Bearer"} {
		c := downstream.Credentials{Secure: true, Authorization: []string{header}}
		if id, err := a.Identify(t.Context(), c, domains); id != nil || status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "proves it neither") {
			t.Errorf("the header %.10s: %+v, %v", header, id, err)
		}
	}
	// A certificate without a SPIFFE ID is a certificate of somebody, and of nobody in the mesh.
	for name, cert := range map[string]*x509.Certificate{
		"without a SPIFFE ID": {DNSNames: []string{"www.example.com"}},
		"of an authority":     {URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/vm/sa/db"}}, IsCA: true, NotAfter: time.Now().Add(time.Hour)},
		"that has expired":    {URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/vm/sa/db"}}, NotAfter: time.Now().Add(-time.Second)},
	} {
		if id, err := a.Identify(t.Context(), downstream.Credentials{Secure: true, Certificate: cert}, domains); id != nil || status.Code(err) != codes.Unauthenticated {
			t.Errorf("a certificate %s: %+v, %v", name, id, err)
		}
	}
	if id, err := r.authenticator(func(c *Config) { c.Required = false }).Identify(t.Context(), downstream.Credentials{Secure: true}, domains); id != nil || err != nil {
		t.Errorf("nothing, where nothing is required: %+v, %v", id, err)
	}
}

// The certificate of the connection is stronger than a token, which others may have.
func TestACertificateComesBeforeAToken(t *testing.T) {
	r := newRig(t)
	c := withToken(sign(t, r.key, jose.ES256, claimsOf(nil)))
	c.Certificate = &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/vm/sa/db"}}, NotAfter: time.Now().Add(time.Hour)}
	if id, err := r.authenticator().Identify(t.Context(), c, domains); err != nil || id.Namespace != "vm" {
		t.Errorf("%+v, %v", id, err)
	}
	// One without a SPIFFE ID says nothing of that.
	c.Certificate = &x509.Certificate{}
	if id, err := r.authenticator().Identify(t.Context(), c, domains); err != nil || id.Namespace != "shop" {
		t.Errorf("%+v, %v", id, err)
	}
}

// A file of keys is read again for each token, and its last valid content stays in use.
func TestKeysOfAFileChange(t *testing.T) {
	r := newRig(t)
	a := r.authenticator()
	code := func() codes.Code {
		_, err := a.Identify(t.Context(), withToken(sign(t, r.key, jose.ES256, claimsOf(nil))), domains)
		return status.Code(err)
	}
	if got := code(); got != codes.OK {
		t.Errorf("at first: %s", got)
	}
	former := r.key
	r.rotate()
	if got := code(); got != codes.OK {
		t.Errorf("with the new key: %s", got)
	}
	if _, err := a.Identify(t.Context(), withToken(sign(t, former, jose.ES256, claimsOf(nil))), domains); status.Code(err) != codes.Unauthenticated {
		t.Errorf("with the former key: %v", err)
	}
	for _, text := range []string{"", "{", "{}", `{"keys":[{"kty":"oct","k":"AAAA"}]}`, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", strings.Repeat(" ", jwks.MaxKeys+1)} {
		r.write([]byte(text))
		if got := code(); got != codes.OK {
			t.Errorf("with %.30q in the file: %s", text, got)
		}
		if _, err := New(Config{Issuers: []Issuer{{URL: issuerURL, Keys: r.file}}}); err == nil {
			t.Errorf("a start with %.30q in the file is no error", text)
		}
	}
	// PEM, too, and several keys.
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	var both bytes.Buffer
	foreign, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []crypto.PublicKey{foreign.Public(), other.Public(), r.key.Public()} {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		_ = pem.Encode(&both, &pem.Block{Type: "PUBLIC KEY", Bytes: der})
	}
	r.write(both.Bytes())
	if got := code(); got != codes.OK {
		t.Errorf("as PEM: %s", got)
	}
	if _, err := a.Identify(t.Context(), withToken(sign(t, other, jose.RS256, claimsOf(nil))), domains); err != nil {
		t.Errorf("the other key: %v", err)
	}
}

// published is an issuer that publishes its keys.
type published struct {
	*httptest.Server
	down    atomic.Bool
	keys    atomic.Pointer[[]byte]
	asked   atomic.Int64
	address atomic.Pointer[string] // of the keys; nil means its own
	ca      string
}

func publish(t *testing.T, keys []byte) *published {
	t.Helper()
	p := &published{ca: filepath.Join(t.TempDir(), "ca.pem")}
	p.keys.Store(&keys)
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch p.asked.Add(1); {
		case p.down.Load():
			http.Error(w, strings.Repeat("internal detail ", 1000), http.StatusBadGateway)
		case req.URL.Path == "/keys":
			_, _ = w.Write(*p.keys.Load())
		case req.URL.Path == "/plaintext":
			http.Redirect(w, req, "http://127.0.0.1/keys", http.StatusFound)
		default:
			at := p.URL + "/keys"
			if other := p.address.Load(); other != nil {
				at = *other
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": p.URL, "jwks_uri": at})
		}
	}))
	t.Cleanup(p.Close)
	if err := os.WriteFile(p.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// later lets the pauses between attempts be over.
func later(a *Authenticator, url string) {
	k := a.issuers[url].remote
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attempted = time.Time{}
}

// Keys are asked for at the issuer's URL, again if a token has an unknown one. An issuer that does not answer is no reason to
// call a token wrong, and what it answers is not shown to clients.
func TestKeysAreDiscovered(t *testing.T) {
	r := newRig(t)
	from := publish(t, keySet(t, r.key.Public()))
	a, err := New(Config{Issuers: []Issuer{{URL: from.URL, CA: from.ca}}})
	if err != nil {
		t.Fatal(err)
	}
	identify := func() error {
		_, err := a.Identify(context.Background(), withToken(sign(t, r.key, jose.ES256, claimsOf(map[string]any{"iss": from.URL}))), domains)
		return err
	}
	from.down.Store(true)
	if err := identify(); status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "detail") {
		t.Errorf("while the issuer is away: %v", err)
	}
	from.down.Store(false)
	later(a, from.URL)
	if err := identify(); err != nil {
		t.Errorf("when it is back: %v", err)
	}
	from.down.Store(true)
	if err := identify(); err != nil {
		t.Errorf("with known keys, while the issuer is away: %v", err)
	}
	r.rotate()
	later(a, from.URL)
	if err := identify(); status.Code(err) != codes.Unavailable {
		t.Errorf("with an unknown key, while the issuer is away: %v", err)
	}
	from.down.Store(false)
	later(a, from.URL)
	if err := identify(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("with a key that the issuer does not have: %v", err)
	}
	second := keySet(t, r.key.Public())
	from.keys.Store(&second)
	later(a, from.URL)
	if err := identify(); err != nil {
		t.Errorf("with the issuer's new key: %v", err)
	}
	for _, address := range []string{"http://127.0.0.1/keys", from.URL + "/plaintext"} {
		from.address.Store(&address)
		r.rotate()
		later(a, from.URL)
		if err := identify(); status.Code(err) != codes.Unavailable {
			t.Errorf("with keys at %s: %v", address, err)
		}
	}
}

// Whoever sends tokens that nobody has signed, or goes away, keeps nobody else from being identified, and the issuer from
// nothing.
func TestStrangersDoNotKeepTheIssuerBusy(t *testing.T) {
	r := newRig(t)
	from := publish(t, keySet(t, r.key.Public()))
	a, err := New(Config{Issuers: []Issuer{{URL: from.URL, CA: from.ca}}})
	if err != nil {
		t.Fatal(err)
	}
	good := withToken(sign(t, r.key, jose.ES256, claimsOf(map[string]any{"iss": from.URL})))
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_, _ = a.Identify(gone, good, domains) // the keys are asked for nevertheless
	if id, err := a.Identify(context.Background(), good, domains); err != nil || id.Namespace != "shop" {
		t.Errorf("after somebody went away: %+v, %v", id, err)
	}
	asked := from.asked.Load()
	forged := withToken(sign(t, pkitest.Key(t), jose.ES256, claimsOf(map[string]any{"iss": from.URL})))
	for range 50 {
		if _, err := a.Identify(context.Background(), forged, domains); status.Code(err) != codes.Unauthenticated {
			t.Errorf("a forged token: %v", err)
		}
	}
	if n := from.asked.Load() - asked; n > 2 {
		t.Errorf("50 forged tokens made %d requests to the issuer", n)
	}
}

// Names are the same for folded where they are for encoding/json, for every character that has another case.
func TestNamesAreFoldedAsWhenTheyAreDecoded(t *testing.T) {
	pairs := 0
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if unicode.SimpleFold(r) == r {
			continue
		}
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			if pairs++; folded(string(r)) != folded(string(other)) {
				t.Errorf("%+q and %+q", r, other)
			}
		}
		for name, taken := range map[string]func(text []byte) bool{
			"sub": func(text []byte) bool {
				var v struct {
					Value int `json:"sub"`
				}
				return json.Unmarshal(text, &v) == nil && v.Value == 1
			},
			"kub": func(text []byte) bool {
				var v struct {
					Value int `json:"kub"`
				}
				return json.Unmarshal(text, &v) == nil && v.Value == 1
			},
		} {
			spelled := string(r) + "UB"
			if got := folded(spelled) == folded(name); got != taken(fmt.Appendf(nil, `{%q:1}`, spelled)) {
				t.Errorf("%+q is taken for %s by one of both", spelled, name)
			}
		}
	}
	if pairs < 2000 {
		t.Errorf("%d pairs", pairs)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	r := newRig(t)
	for why, cfg := range map[string]Config{
		"is named twice":       {Issuers: []Issuer{{URL: "a", Keys: r.file}, {URL: "a", Keys: r.file}}},
		"want a URL https://":  {Issuers: []Issuer{{URL: "http://issuer.example"}}},
		"no such file":         {Issuers: []Issuer{{URL: "a", Keys: r.file + "x"}}},
		"a CA has no effect":   {Issuers: []Issuer{{URL: "a", Keys: r.file, CA: "b"}}},
		"no such file or dire": {Issuers: []Issuer{{URL: issuerURL, CA: r.file + "x"}}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
}

// Whoever shows a token to a server that checks none learns that, and not that he has shown nothing.
func TestATokenThatNobodyChecksIsSaidToBe(t *testing.T) {
	for _, required := range []bool{true, false} {
		a, err := New(Config{Required: required})
		if err != nil {
			t.Fatal(err)
		}
		id, err := a.Identify(t.Context(), withToken("a.b.c"), domains)
		if id != nil || (err != nil) != required || required && (status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "--token-issuer")) {
			t.Errorf("required %v: %+v, %v", required, id, err)
		}
	}
}
