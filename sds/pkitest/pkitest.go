// Package pkitest is a certificate authority for tests: roots, intermediates and leaves, valid
// unless a test asks for something else, and volumes that are published as kubelet does.
//
// Keys are ECDSA on P-256, generated for each certificate. Failures end the test, so the
// functions must be called from its goroutine; their results are not modified later. The
// package is for tests only and promises no security.
package pkitest

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Domain is the default trust domain, and ID the default SPIFFE ID, of a Leaf.
const (
	Domain = "example.org"
	ID     = pki.SPIFFE + Domain + "/ns/shop/sa/cart"
)

// The default validity of certificates, which begins an hour before the time of their root.
const (
	RootLifetime         = 10 * 365 * 24 * time.Hour
	IntermediateLifetime = 365 * 24 * time.Hour
	LeafLifetime         = 24 * time.Hour
)

// Option modifies a certificate before it is signed.
type Option func(*x509.Certificate)

// Valid sets the validity.
func Valid(from, until time.Time) Option {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = from, until }
}

// Until sets the end of the validity.
func Until(t time.Time) Option { return func(c *x509.Certificate) { c.NotAfter = t } }

// URIs sets all URIs.
func URIs(uris ...string) Option {
	return func(c *x509.Certificate) {
		c.URIs = nil
		for _, text := range uris {
			u, err := url.Parse(text)
			if err != nil {
				panic(err) // the test is wrong
			}
			c.URIs = append(c.URIs, u)
		}
	}
}

// DNS sets all DNS names.
func DNS(names ...string) Option { return func(c *x509.Certificate) { c.DNSNames = names } }

// Usages sets all extended key usages.
func Usages(usages ...x509.ExtKeyUsage) Option {
	return func(c *x509.Certificate) { c.ExtKeyUsage = usages }
}

// Constrained restricts an authority to one trust domain.
func Constrained(domain string) Option {
	return func(c *x509.Certificate) {
		c.PermittedURIDomains, c.PermittedDNSDomainsCritical = []string{domain}, true
	}
}

// CA is a certificate authority.
type CA struct {
	Cert *x509.Certificate
	Key  crypto.Signer

	above *CA // nil for a root
	now   time.Time
}

// Root creates a root authority. now is the time for everything that is issued below it.
func Root(t testing.TB, name string, now time.Time, options ...Option) *CA {
	t.Helper()
	ca := &CA{Key: Key(t), now: now}
	ca.Cert = sign(t, authority(name, now, RootLifetime, options), nil, ca.Key.Public(), ca.Key)
	return ca
}

// Intermediate creates an authority below another.
func (ca *CA) Intermediate(t testing.TB, name string, options ...Option) *CA {
	t.Helper()
	below := &CA{Key: Key(t), above: ca, now: ca.now}
	below.Cert = sign(t, authority(name, ca.now, IntermediateLifetime, options), ca.Cert, below.Key.Public(), ca.Key)
	return below
}

// Under creates a cross-signed copy of the authority, with the same name and key, below another
// one: certificates that it signed lead there, too.
func (ca *CA) Under(t testing.TB, above *CA, options ...Option) *CA {
	t.Helper()
	same := &CA{Key: ca.Key, above: above, now: ca.now}
	same.Cert = sign(t, authority(ca.Cert.Subject.CommonName, ca.now, IntermediateLifetime, options), above.Cert, ca.Key.Public(), above.Key)
	return same
}

// Leaf issues a certificate for clients and servers, with a new key.
func (ca *CA) Leaf(t testing.TB, options ...Option) pki.Pair {
	t.Helper()
	key := Key(t)
	return pki.Pair{Key: key, Chain: ca.Sign(t, key.Public(), options...)}
}

// Sign issues a certificate for clients and servers for a public key, and returns it with the
// intermediates, without the root.
func (ca *CA) Sign(t testing.TB, public crypto.PublicKey, options ...Option) []*x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		NotBefore: ca.now.Add(-time.Hour), NotAfter: ca.now.Add(LeafLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	URIs(ID)(template)
	for _, o := range options {
		o(template)
	}
	return append([]*x509.Certificate{sign(t, template, ca.Cert, public, ca.Key)}, ca.Chain()...)
}

// Pair returns the authority's own certificate chain and its key.
func (ca *CA) Pair() pki.Pair {
	if ca.above == nil {
		return pki.Pair{Key: ca.Key, Chain: []*x509.Certificate{ca.Cert}}
	}
	return pki.Pair{Key: ca.Key, Chain: ca.Chain()}
}

// Chain returns the authority's own certificate and the intermediates above, without the root;
// nil for a root.
func (ca *CA) Chain() []*x509.Certificate {
	var chain []*x509.Certificate
	for ; ca.above != nil; ca = ca.above {
		chain = append(chain, ca.Cert)
	}
	return chain
}

// Roots returns the root of the authority, as a list of one.
func (ca *CA) Roots() []*x509.Certificate {
	for ca.above != nil {
		ca = ca.above
	}
	return []*x509.Certificate{ca.Cert}
}

// Key generates a key.
func Key(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := pki.DefaultKeyType.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func authority(name string, now time.Time, lifetime time.Duration, options []Option) *x509.Certificate {
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:     true, BasicConstraintsValid: true,
	}
	for _, o := range options {
		o(template)
	}
	return template
}

// sign signs a certificate; without a parent it is self-signed.
func sign(t testing.TB, template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Volume is a directory whose files are replaced atomically, as kubelet does with a Secret.
type Volume struct {
	Dir        string
	generation int
}

// NewVolume creates an empty volume.
func NewVolume(t testing.TB) *Volume {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &Volume{Dir: dir}
}

// Publish replaces the files of the volume.
func (v *Volume) Publish(t testing.TB, files map[string][]byte) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	v.generation++
	now, data := fmt.Sprintf("..2026_%d", v.generation), filepath.Join(v.Dir, "..data")
	check(os.Mkdir(filepath.Join(v.Dir, now), 0o755))
	for name, content := range files {
		check(os.WriteFile(filepath.Join(v.Dir, now, name), content, 0o600))
	}
	former, _ := os.Readlink(data) // "" for none
	check(os.Symlink(now, data+"_tmp"))
	check(os.Rename(data+"_tmp", data))
	for name := range files {
		if _, err := os.Lstat(filepath.Join(v.Dir, name)); err != nil {
			check(os.Symlink(filepath.Join("..data", name), filepath.Join(v.Dir, name)))
		}
	}
	links, err := filepath.Glob(filepath.Join(v.Dir, "[^.]*"))
	check(err)
	for _, link := range links {
		if _, ok := files[filepath.Base(link)]; !ok {
			check(os.Remove(link))
		}
	}
	if former != "" {
		check(os.RemoveAll(filepath.Join(v.Dir, former)))
	}
}
