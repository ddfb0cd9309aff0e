package injector

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// The keys of the Secret.
const (
	currentCert  = "ca.crt"
	currentKey   = "ca.key"
	nextCert     = "next.crt"
	nextKey      = "next.key"
	previousCert = "previous.crt"
	sinceKey     = "since"
)

// authorities are what the Secret holds: the authority that signs, the one that will sign, and the one that did. All of
// them are in the caBundle. It is a value: a method that changes it returns another one.
type authorities struct {
	current  pki.Pair
	next     *pki.Pair         // trusted already, and signs nothing yet
	previous *x509.Certificate // still trusted, and signs nothing any more
	since    time.Time         // when the last step was taken
}

// policy is how long certificates are valid, and from it follows when a step of the rotation is due.
type policy struct {
	names        pki.Names // of the certificate that is served
	caLifetime   time.Duration
	certLifetime time.Duration
}

// overlap is how long both authorities are in the caBundle before the new one signs: each API server must have seen it.
func (p policy) overlap() time.Duration { return min(time.Hour, p.caLifetime/20) }

// renewAt returns when the next authority is made: when a third of the lifetime is left.
func (p policy) renewAt(current *x509.Certificate) time.Time {
	return current.NotAfter.Add(-p.caLifetime / 3)
}

// newAuthority makes a self-signed authority that may only sign for the names of the policy.
func (p policy) newAuthority(now time.Time) (pki.Pair, error) {
	key, err := pki.DefaultKeyType.Generate()
	if err != nil {
		return pki.Pair{}, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{Organization: []string{"holdfast"}, CommonName: "holdfast-injector " + now.UTC().Format(time.RFC3339)},
		NotBefore: now.Add(-local.Backdate), NotAfter: now.Add(p.caLifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage:            x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		PermittedDNSDomains: p.names.DNS, PermittedDNSDomainsCritical: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return pki.Pair{}, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return pki.Pair{}, err
	}
	return pki.Pair{Key: key, Chain: []*x509.Certificate{cert}}, nil
}

// first returns the authorities of a cluster that has none.
func (p policy) first(now time.Time) (authorities, error) {
	pair, err := p.newAuthority(now)
	return authorities{current: pair, since: now}, err
}

// step takes the next step of the rotation if one is due, at most one. trusted reports whether the caBundle has a
// certificate: the next authority does not sign before.
//
//  1. When a third of the lifetime of the authority is left, the next one is made and added to the caBundle.
//  2. When the caBundle has had it for the overlap, it signs, and the former one stays trusted.
//  3. When everything that the former one has signed is expired, it is removed from the caBundle.
//
// An authority that is expired, because no injector ran for long, is replaced at once.
func (p policy) step(a authorities, now time.Time, trusted func(*x509.Certificate) bool) (authorities, string, error) {
	switch current := a.current.Leaf(); {
	case !now.Before(current.NotAfter):
		first, err := p.first(now)
		return first, "the authority had expired and was replaced", err
	case a.next != nil && trusted(a.next.Leaf()) && !now.Before(a.since.Add(p.overlap())):
		return authorities{current: *a.next, previous: current, since: now}, "the next authority signs from now on", nil
	case a.previous != nil && !now.Before(a.since.Add(p.certLifetime)):
		return authorities{current: a.current, next: a.next, since: now}, "the former authority is not trusted any more", nil
	case a.next == nil && a.previous == nil && !now.Before(p.renewAt(current)):
		next, err := p.newAuthority(now)
		return authorities{current: a.current, next: &next, since: now}, "the next authority is trusted from now on", err
	}
	return a, "", nil
}

// roots returns everything that the caBundle has, the oldest first.
func (a authorities) roots() []*x509.Certificate {
	all := []*x509.Certificate{a.current.Leaf()}
	if a.next != nil {
		all = append(all, a.next.Leaf())
	}
	if a.previous != nil {
		all = append(all, a.previous)
	}
	slices.SortStableFunc(all, func(x, y *x509.Certificate) int { return x.NotBefore.Compare(y.NotBefore) })
	return all
}

// bundle returns the caBundle, in PEM.
func (a authorities) bundle() []byte { return pki.EncodeCerts(a.roots()) }

// sign makes a serving certificate with a key of its own.
func (p policy) sign(a authorities, now time.Time) (pki.Pair, error) {
	authority, err := local.New(a.current, []*x509.Certificate{a.current.Leaf()})
	if err != nil {
		return pki.Pair{}, err
	}
	key, err := pki.DefaultKeyType.Generate()
	if err != nil {
		return pki.Pair{}, err
	}
	answer, err := authority.Sign(pki.Request{Key: key, Names: p.names, Lifetime: p.certLifetime}, now)
	if err != nil {
		return pki.Pair{}, err
	}
	if _, err := (pki.Expectation{Key: key.Public(), Names: &p.names, Roots: answer.Roots}).Verify(answer.Chain, now); err != nil {
		return pki.Pair{}, fmt.Errorf("the authority %q does not sign for %s: %w", a.current.Leaf().Subject, p.names, err)
	}
	return pki.Pair{Key: key, Chain: answer.Chain}, nil
}

// data returns the content of the Secret.
func (a authorities) data() map[string][]byte {
	data := map[string][]byte{
		currentCert: a.current.ChainPEM(), currentKey: a.current.KeyPEM(),
		sinceKey: []byte(a.since.UTC().Format(time.RFC3339)),
	}
	if a.next != nil {
		data[nextCert], data[nextKey] = a.next.ChainPEM(), a.next.KeyPEM()
	}
	if a.previous != nil {
		data[previousCert] = pki.EncodeCerts([]*x509.Certificate{a.previous})
	}
	return data
}

// errNoAuthority is the error for a Secret without content, as the manifests have it.
var errNoAuthority = errors.New("the Secret has no authority yet")

// parseAuthorities reads the content of the Secret.
func parseAuthorities(data map[string][]byte) (a authorities, err error) {
	if len(data) == 0 {
		return a, errNoAuthority
	}
	if a.current, err = parsePair(data, currentCert, currentKey); err != nil {
		return a, err
	}
	if len(data[nextCert])+len(data[nextKey]) > 0 {
		next, err := parsePair(data, nextCert, nextKey)
		if err != nil {
			return a, err
		}
		a.next = &next
	}
	if text := data[previousCert]; len(bytes.TrimSpace(text)) > 0 {
		certs, err := pki.ParseCerts(text)
		if err != nil {
			return a, fmt.Errorf("%s: %w", previousCert, err)
		}
		a.previous = certs[0]
	}
	if a.since, err = time.Parse(time.RFC3339, string(data[sinceKey])); err != nil {
		return a, fmt.Errorf("%s: want a time such as 2006-01-02T15:04:05Z", sinceKey)
	}
	return a, nil
}

func parsePair(data map[string][]byte, cert, key string) (pki.Pair, error) {
	pair, err := pki.ParsePair(data[cert], data[key])
	if err != nil {
		return pair, fmt.Errorf("%s and %s: %w", cert, key, err)
	}
	pair.Chain = pair.Chain[:1]
	if _, err := local.New(pair, pair.Chain); err != nil {
		return pair, fmt.Errorf("%s: %w", cert, err)
	}
	return pair, nil
}
