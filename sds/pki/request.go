package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Names are the subject alternative names of a certificate.
type Names struct {
	// ID is the SPIFFE ID, "" for none, and at most one (X509-SVID specification, section 2).
	ID  string
	DNS []string
	IPs []string
}

// ParseNames validates a SPIFFE ID, DNS names and IP addresses.
func ParseNames(id string, dns, ips []string) (Names, error) {
	n := Names{ID: id, DNS: slices.Clone(dns)}
	if _, err := TrustDomain(id); id != "" && err != nil {
		return Names{}, err
	}
	for _, name := range dns {
		if !dnsName(name) {
			return Names{}, fmt.Errorf("%q is not a DNS name", name)
		}
	}
	for _, text := range ips {
		ip := net.ParseIP(text)
		if ip == nil {
			return Names{}, fmt.Errorf("%q is not an IP address", text)
		}
		n.IPs = append(n.IPs, ip.String())
	}
	if id == "" && len(dns) == 0 && len(ips) == 0 {
		return Names{}, fmt.Errorf("no name: a certificate needs a SPIFFE ID, a DNS name or an IP address")
	}
	return n, nil
}

// dnsName reports whether a certificate can contain a DNS name. Its first label may be *.
func dnsName(name string) bool {
	if len(name) > 253 {
		return false
	}
	for i, label := range strings.Split(name, ".") {
		if i == 0 && label == "*" && strings.Contains(name, ".") {
			continue
		}
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			return false
		}
	}
	return true
}

// SPIFFE is the scheme of SPIFFE IDs.
const SPIFFE = "spiffe://"

// The greatest lengths in bytes (SPIFFE ID specification, 2.3 and 2.1), which the library lacks.
const (
	maxID          = 2048
	maxTrustDomain = 255
)

// TrustDomain returns the trust domain of a SPIFFE ID (SPIFFE ID specification, section 2), which may also
// be the ID of the trust domain itself: spiffe://DOMAIN.
func TrustDomain(id string) (string, error) {
	if len(id) > maxID {
		return "", fmt.Errorf("a SPIFFE ID of %d bytes: want %d or fewer", len(id), maxID)
	}
	parsed, err := spiffeid.FromString(id)
	if err != nil {
		return "", fmt.Errorf("%q is not a SPIFFE ID (spiffe://TRUST-DOMAIN/PATH): %w", id, err)
	}
	domain := parsed.TrustDomain().Name()
	if len(domain) > maxTrustDomain {
		return "", fmt.Errorf("%q is not a SPIFFE ID: its trust domain has %d bytes: want %d or fewer", id, len(domain), maxTrustDomain)
	}
	return domain, nil
}

// NamesOf returns the names of a certificate. It fails for several URIs, and for other types of names.
func NamesOf(c *x509.Certificate) (Names, error) {
	n := Names{DNS: slices.Clone(c.DNSNames)}
	uris, other := rawNames(c)
	switch {
	case len(uris) > 1:
		return n, fmt.Errorf("%d URIs as names", len(uris))
	case len(c.EmailAddresses) > 0:
		return n, errors.New("an e-mail address as a name")
	case other:
		return n, errors.New("a name of an unusual kind")
	case len(uris) == 1:
		n.ID = uris[0]
	}
	for _, ip := range c.IPAddresses {
		n.IPs = append(n.IPs, ip.String())
	}
	return n, nil
}

// oidNames identifies the extension with the names; the tags are their types (RFC 5280, 4.2.1.6).
var oidNames = asn1.ObjectIdentifier{2, 5, 29, 17}

const (
	tagEmail = 1
	tagDNS   = 2
	tagURI   = 6
	tagIP    = 7
)

// rawNames returns the URIs of a certificate as they are encoded, unlike package x509, which rewrites
// SPIFFE:// and empty fragments, and whether it has names of types that package x509 ignores.
func rawNames(c *x509.Certificate) (uris []string, other bool) {
	for _, e := range c.Extensions {
		if !e.Id.Equal(oidNames) {
			continue
		}
		var names []asn1.RawValue
		if _, err := asn1.Unmarshal(e.Value, &names); err != nil {
			return nil, true
		}
		for _, name := range names {
			switch name.Tag {
			case tagURI:
				uris = append(uris, string(name.Bytes))
			case tagEmail, tagDNS, tagIP:
			default:
				other = true
			}
		}
	}
	return uris, other
}

// Equal reports whether the names are the same, in any order.
func (n Names) Equal(other Names) bool {
	return n.ID == other.ID && sameSet(n.DNS, other.DNS) && sameSet(n.IPs, other.IPs)
}

func sameSet(a, b []string) bool {
	sorted := func(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }
	return slices.Equal(sorted(a), sorted(b))
}

func (n Names) String() string {
	all := slices.Concat(n.DNS, n.IPs)
	if n.ID != "" {
		all = append([]string{n.ID}, all...)
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// Request is a request for a certificate. TrustDomain must accept the ID of its names.
type Request struct {
	Key      crypto.Signer
	Names    Names
	Lifetime time.Duration
}

// CSR returns the request as PKCS#10 in PEM, without a subject: the names identify the workload.
func (r Request) CSR() ([]byte, error) {
	t := r.Template()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		URIs: t.URIs, DNSNames: t.DNSNames, IPAddresses: t.IPAddresses,
	}, r.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: der}), nil
}

// DomainOf returns the trust domain of a certificate, "" if it has no SPIFFE ID.
func DomainOf(p Pair) string {
	names, err := NamesOf(p.Leaf())
	if err != nil {
		return ""
	}
	domain, _ := TrustDomain(names.ID)
	return domain
}

// Template returns a certificate for servers and clients without serial number and validity. Because the
// subject is empty, the names are critical (RFC 5280, 4.2.1.6).
func (r Request) Template() *x509.Certificate {
	t := &x509.Certificate{
		DNSNames:              r.Names.DNS,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if r.Key != nil {
		if _, ok := r.Key.Public().(*rsa.PublicKey); ok {
			t.KeyUsage |= x509.KeyUsageKeyEncipherment // for TLS 1.2 without Diffie-Hellman
		}
	}
	if r.Names.ID != "" {
		t.URIs = []*url.URL{spiffeid.RequireFromString(r.Names.ID).URL()}
	}
	for _, text := range r.Names.IPs {
		t.IPAddresses = append(t.IPAddresses, net.ParseIP(text))
	}
	return t
}

// Answer is the response of an authority to a request.
type Answer struct {
	Chain []*x509.Certificate
	// Roots are the trust anchors that the authority names; Chain excludes them.
	Roots []*x509.Certificate
}

// Update is the complete content of a source that pushes certificates.
type Update struct {
	Pairs []Pair
	// Bundles are the trust anchors by trust domain, "" for certificates without a SPIFFE ID.
	Bundles map[string][]*x509.Certificate
}
