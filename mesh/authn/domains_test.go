package authn

import (
	"crypto"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// clusters are three issuers of a mesh with the trust domains of domains: a speaks for the mesh's own, b for its alias, and c
// has none.
type clusters struct {
	a, b, c *rig
	*Authenticator
}

const issuerA, issuerB, issuerC = issuerURL, issuerURL + "/b", issuerURL + "/c"

func newClusters(t *testing.T, domainA, domainB string) *clusters {
	c := &clusters{a: newRig(t), b: newRig(t), c: newRig(t)}
	c.Authenticator = c.a.authenticator(func(cfg *Config) {
		cfg.Issuers = []Issuer{
			{URL: issuerA, Keys: c.a.file, TrustDomain: domainA}, {URL: issuerB, Keys: c.b.file, TrustDomain: domainB}, {URL: issuerC, Keys: c.c.file},
		}
	})
	return c
}

func (c *clusters) token(by *rig, issuer, subject string, more map[string]any) string {
	changes := map[string]any{"iss": issuer, "sub": subject, "kubernetes.io": nil}
	for name, value := range more {
		changes[name] = value
	}
	return sign(by.T, by.key, jose.ES256, claimsOf(changes))
}

func TestAServiceAccountIsOfTheTrustDomainOfItsIssuer(t *testing.T) {
	const account = serviceAccount + "shop:web"
	for _, tc := range []struct {
		name, domainA, domainB, issuer, subject, want string
	}{
		{"of the mesh", "cluster.local", "old.example", issuerA, account, "spiffe://cluster.local/ns/shop/sa/web"},
		{"of an alias", "cluster.local", "old.example", issuerB, account, "spiffe://old.example/ns/shop/sa/web"},
		{"a SPIFFE ID of it", "cluster.local", "old.example", issuerB, "spiffe://old.example/ns/shop/sa/web", "spiffe://old.example/ns/shop/sa/web"},
		{"both of one", "cluster.local", "cluster.local", issuerB, account, "spiffe://cluster.local/ns/shop/sa/web"},
		{"without one, where no issuer has the mesh's", "", "old.example", issuerC, account, "spiffe://cluster.local/ns/shop/sa/web"},
		{"without one, a SPIFFE ID that no issuer has", "cluster.local", "", issuerC, "spiffe://old.example/ns/shop/sa/web", "spiffe://old.example/ns/shop/sa/web"},
	} {
		c := newClusters(t, tc.domainA, tc.domainB)
		by := map[string]*rig{issuerA: c.a, issuerB: c.b, issuerC: c.c}[tc.issuer]
		id, err := c.Identify(t.Context(), withToken(c.token(by, tc.issuer, tc.subject, nil)), domains)
		if err != nil || id.ID() != tc.want {
			t.Errorf("%s: %v, %v, want %s", tc.name, id, err, tc.want)
		}
	}
}

// What an issuer, or somebody with its key, may try to be a workload of another one.
func TestAnIssuerDoesNotSpeakForTheTrustDomainOfAnother(t *testing.T) {
	c := newClusters(t, "cluster.local", "old.example")
	const account, ofA = serviceAccount + "shop:web", "spiffe://cluster.local/ns/shop/sa/web"
	withHeader := func(name jose.HeaderKey, value any) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: c.b.key}, (&jose.SignerOptions{}).WithHeader(name, value))
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.Signed(signer).Claims(claimsOf(map[string]any{"iss": issuerA})).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	public := func(key crypto.PublicKey) json.RawMessage {
		text, err := json.Marshal(jose.JSONWebKey{Key: key})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	const wrongKey, others = "no key of the issuer verifies its signature", "is of a trust domain for which other issuers speak: assign one to its own with --token-trust-domain " + issuerC + "=DOMAIN"
	for name, tc := range map[string]struct{ token, why string }{
		"a SPIFFE ID of the other":                {c.token(c.b, issuerB, ofA, nil), "its identity is " + ofA + ", and its issuer speaks for the trust domain old.example only"},
		"a SPIFFE ID of nobody":                   {c.token(c.b, issuerB, "spiffe://evil.example/ns/shop/sa/web", nil), "speaks for the trust domain old.example only"},
		"a SPIFFE ID below its own":               {c.token(c.b, issuerB, "spiffe://a.old.example/ns/shop/sa/web", nil), "speaks for the trust domain old.example only"},
		"a SPIFFE ID in capitals":                 {c.token(c.b, issuerB, "spiffe://OLD.example/ns/shop/sa/web", nil), "its subject"},
		"a SPIFFE ID with a user":                 {c.token(c.b, issuerB, "spiffe://old.example@cluster.local/ns/shop/sa/web", nil), "its subject"},
		"a SPIFFE ID with a port":                 {c.token(c.b, issuerB, "spiffe://cluster.local:443/ns/shop/sa/web", nil), "its subject"},
		"the other one's name":                    {c.token(c.b, issuerA, account, nil), wrongKey},
		"its name and a slash":                    {c.token(c.b, issuerA+"/", account, nil), "is not one of the mesh"},
		"its name in capitals":                    {c.token(c.b, strings.ToUpper(issuerA), account, nil), "is not one of the mesh"},
		"both names":                              {c.token(c.b, issuerB, account, map[string]any{"Iss": issuerA}), "twice"},
		"a list of names":                         {c.token(c.b, issuerB, account, map[string]any{"iss": []string{issuerA, issuerB}}), "it is not a JWT"},
		"a domain in its subject":                 {c.token(c.b, issuerB, serviceAccount+"shop:web@cluster.local", nil), "is neither"},
		"a path in its subject":                   {c.token(c.b, issuerB, serviceAccount+"shop:../../cluster.local", nil), "is neither"},
		"its key in the header":                   {withHeader("jwk", public(c.b.key.Public())), wrongKey},
		"the other one's key id":                  {withHeader("kid", "1"), wrongKey},
		"the address of its keys in a header":     {withHeader("jku", issuerB), wrongKey},
		"an account, of an issuer with none":      {c.token(c.c, issuerC, account, nil), others},
		"a SPIFFE ID, of an issuer with none":     {c.token(c.c, issuerC, ofA, nil), others},
		"an alias's ID, of an issuer of none":     {c.token(c.c, issuerC, "spiffe://old.example/ns/shop/sa/web", nil), others},
		"the name of the other, by one with none": {c.token(c.c, issuerB, account, nil), wrongKey},
	} {
		id, err := c.Identify(t.Context(), withToken(tc.token), domains)
		if id != nil || status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tc.why) {
			t.Errorf("%s: %+v, %v, want %q", name, id, err, tc.why)
		}
	}
	// A claim beside the others, and a second header, change nothing.
	b := proxy.Identity{TrustDomain: "old.example", Namespace: "shop", ServiceAccount: "web"}
	good := c.token(c.b, issuerB, account, map[string]any{"trust_domain": "cluster.local", "td": "cluster.local"})
	for name, headers := range map[string][]string{
		"more claims":                  {"Bearer " + good},
		"a token that is wrong behind": {"Bearer " + good, "Bearer " + c.token(c.b, issuerA, account, nil)},
	} {
		id, err := c.Identify(t.Context(), downstream.Credentials{Secure: true, Authorization: headers}, domains)
		if id != nil {
			id.Expires = time.Time{}
		}
		if err != nil || *id != b {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	headers := []string{"Bearer " + c.token(c.b, issuerA, account, nil), "Bearer " + good}
	if id, err := c.Identify(t.Context(), downstream.Credentials{Secure: true, Authorization: headers}, domains); id != nil || err == nil {
		t.Errorf("a wrong token before it: %+v, %v", id, err)
	}
}

func TestTheTrustDomainOfAnIssuerMustBeOneOfTheMesh(t *testing.T) {
	c := newClusters(t, "cluster.local", "old.example")
	token := c.token(c.b, issuerB, serviceAccount+"shop:web", nil)
	id, err := c.Identify(t.Context(), withToken(token), []string{"cluster.local", "other.example"})
	const why = "the trust domain of its issuer (--token-trust-domain) is old.example, and not one of the mesh: add it to trustDomainAliases of the mesh configuration, which has cluster.local, other.example"
	if id != nil || status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), why) {
		t.Errorf("%+v, %v", id, err)
	}
	for domain, want := range map[string]bool{"cluster.local": true, "old.example": true, "other.example": false, "": false} {
		if c.Assigned(domain) != want {
			t.Errorf("%q is assigned: %v", domain, !want)
		}
	}
	for _, domain := range []string{"Old.example", "spiffe://old.example", "old.example/", "a b", "old.example:1", "*"} {
		_, err := New(Config{Issuers: []Issuer{{URL: issuerB, Keys: c.b.file, TrustDomain: domain}}})
		if err == nil || !strings.Contains(err.Error(), "issuer "+issuerB+": ") || !strings.Contains(err.Error(), "is no trust domain") {
			t.Errorf("the trust domain %q: %v", domain, err)
		}
	}
}
