package proxy

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Identity is who a proxy is, as its certificate or its token says.
type Identity struct {
	TrustDomain, Namespace, ServiceAccount string
	// Expires is when the certificate or the token expires.
	Expires time.Time
}

// ExpiresAt returns Expires, for downstream.Expirer. An identity may be nil: then it is that of nobody.
func (i *Identity) ExpiresAt() time.Time {
	if i == nil {
		return time.Time{}
	}
	return i.Expires
}

// ID returns the SPIFFE ID, as Istio writes it.
func (i Identity) ID() string {
	return fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", i.TrustDomain, i.Namespace, i.ServiceAccount)
}

// IdentityOf returns the identity in a verified certificate, as Istio writes it:
// spiffe://TRUSTDOMAIN/ns/NAMESPACE/sa/ACCOUNT. It is nil if the certificate is nil or has no SPIFFE
// ID, and an error if it has another one.
func IdentityOf(cert *x509.Certificate) (*Identity, error) {
	if cert == nil || len(cert.URIs) == 0 {
		return nil, nil
	}
	id, err := x509svid.IDFromCert(cert)
	if err != nil {
		return nil, fmt.Errorf("the client certificate: %w", err)
	}
	found, err := IdentityOfID(id)
	if err != nil {
		return nil, fmt.Errorf("the client certificate: %w", err)
	}
	return found, nil
}

// IdentityOfID returns the identity that a SPIFFE ID names.
func IdentityOfID(id spiffeid.ID) (*Identity, error) {
	parts := strings.Split(id.Path(), "/")
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return nil, fmt.Errorf("the identity is %s, and not spiffe://TRUSTDOMAIN/ns/NAMESPACE/sa/ACCOUNT", id)
	}
	return &Identity{TrustDomain: id.TrustDomain().Name(), Namespace: parts[2], ServiceAccount: parts[4]}, nil
}

// Authenticate returns a copy of the proxy with an identity, which may be nil, of one of the trust
// domains. The error says where the Node claims to be somebody else (mesh.md M9).
func (p *Proxy) Authenticate(id *Identity, domains []string) (*Proxy, error) {
	q := *p
	switch {
	case id == nil:
		return &q, nil
	case !slices.Contains(domains, id.TrustDomain):
		return nil, fmt.Errorf("node %q: the trust domain of its identity is %q, and that of the mesh %s", p.Node, id.TrustDomain, strings.Join(domains, ", "))
	case id.Namespace != p.Namespace:
		return nil, fmt.Errorf("node %q: its namespace is %q, and that of its identity %q", p.Node, p.Namespace, id.Namespace)
	case p.ServiceAccount != "" && id.ServiceAccount != p.ServiceAccount:
		return nil, fmt.Errorf("node %q: its service account is %q, and that of its identity %q", p.Node, p.ServiceAccount, id.ServiceAccount)
	}
	q.ServiceAccount, q.TrustDomain, q.Authenticated = id.ServiceAccount, id.TrustDomain, true
	return &q, nil
}
