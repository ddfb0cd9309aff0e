package proxy

import (
	"crypto/x509"
	"net/url"
	"testing"
)

func certificate(t *testing.T, ids ...string) *x509.Certificate {
	t.Helper()
	cert := &x509.Certificate{}
	for _, id := range ids {
		u, err := url.Parse(id)
		if err != nil {
			t.Fatal(err)
		}
		cert.URIs = append(cert.URIs, u)
	}
	return cert
}

func TestTheIdentityOfACertificateIsTheProxys(t *testing.T) {
	p := &Proxy{Node: "n", Namespace: "shop"}
	for _, tc := range []struct{ name, id, account, want, err string }{
		{"no SPIFFE ID", "", "", "", ""},
		{"its namespace", "spiffe://mesh.example/ns/shop/sa/web", "", "web", ""},
		{"its account", "spiffe://mesh.example/ns/shop/sa/web", "web", "web", ""},
		{"another namespace", "spiffe://mesh.example/ns/store/sa/web", "", "", `node "n": its namespace is "shop", and that of its identity "store"`},
		{"another account", "spiffe://mesh.example/ns/shop/sa/web", "api", "", `node "n": its service account is "api", and that of its identity "web"`},
		{"a former trust domain", "spiffe://old.example/ns/shop/sa/web", "", "web", ""},
		{"another trust domain", "spiffe://evil.example/ns/shop/sa/web", "", "",
			`node "n": the trust domain of its identity is "evil.example", and that of the mesh mesh.example, old.example`},
		{"another form", "spiffe://mesh.example/web", "", "",
			"the client certificate: the identity is spiffe://mesh.example/web, and not spiffe://TRUSTDOMAIN/ns/NAMESPACE/sa/ACCOUNT"},
		{"more parts", "spiffe://mesh.example/ns/shop/sa/web/x", "", "",
			"the client certificate: the identity is spiffe://mesh.example/ns/shop/sa/web/x, and not spiffe://TRUSTDOMAIN/ns/NAMESPACE/sa/ACCOUNT"},
		{"no SPIFFE ID but a URI", "https://mesh.example/ns/shop/sa/web", "", "", "the client certificate: scheme is missing or invalid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var ids []string
			if tc.id != "" {
				ids = []string{tc.id}
			}
			claims := *p
			claims.ServiceAccount = tc.account
			id, err := IdentityOf(certificate(t, ids...))
			var got *Proxy
			if err == nil {
				got, err = claims.Authenticate(id, []string{"mesh.example", "old.example"})
			}
			switch {
			case err != nil || tc.err != "":
				if err == nil || err.Error() != tc.err {
					t.Errorf("error %v, want %q", err, tc.err)
				}
			case got.Authenticated && (id == nil || got.TrustDomain != id.TrustDomain):
				t.Errorf("the trust domain is %q", got.TrustDomain)
			case got.Authenticated != (tc.want != "") || got.Authenticated && got.ServiceAccount != tc.want:
				t.Errorf("authenticated %v as %q, want %q", got.Authenticated, got.ServiceAccount, tc.want)
			}
		})
	}
	if _, err := IdentityOf(certificate(t, "spiffe://a/ns/shop/sa/web", "spiffe://a/ns/store/sa/web")); err == nil {
		t.Error("a certificate with two identities has one")
	}
}
