// Package local is the authorities whose key is in the pod: one that is mounted as
// a directory, and one that is made for development. They sign with everything else
// down.
//
// It promises that no leaf outlives any certificate above it, and that nothing is
// signed with a key that is not its certificate's, or by a certificate that may
// not sign. What it signs is verified by whoever asked, as anybody's answer is.
// Methods may be called concurrently.
package local

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Backdate is how long before its making a certificate is valid, for peers whose
// clocks are late.
const Backdate = 2 * time.Minute

// Authority signs certificates with a key of its own.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// chain leads from cert to a root, without the root; empty if cert is one.
	chain []*x509.Certificate
	roots []*x509.Certificate
}

// New makes an authority of its certificate, what leads from it to a root, and the
// roots. It fails where the certificate may not sign, or does not lead to a root.
// Whether the certificates are valid now is said by Sign.
func New(pair pki.Pair, roots []*x509.Certificate) (*Authority, error) {
	cert := pair.Leaf()
	switch {
	case !cert.BasicConstraintsValid || !cert.IsCA:
		return nil, errors.New("the certificate is not that of an authority (CA:TRUE is missing)")
	case cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, errors.New("the certificate may not sign others (its key usage lacks Certificate Sign)")
	case len(roots) == 0:
		return nil, errors.New("no root certificate")
	}
	a := &Authority{cert: cert, key: pair.Key, roots: roots}
	for _, c := range pair.Chain {
		isRoot := pki.SelfSigned(c)
		for _, r := range roots {
			isRoot = isRoot || r.Equal(c)
		}
		if isRoot {
			break
		}
		a.chain = append(a.chain, c)
	}
	if _, err := a.until(cert.NotBefore.Add(time.Second)); err != nil {
		if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); !ok || invalid.Reason != x509.Expired {
			return nil, fmt.Errorf("the certificate does not lead to one of the roots: %w", err)
		}
	}
	return a, nil
}

// Roots returns what peers must trust.
func (a *Authority) Roots() []*x509.Certificate { return a.roots }

// until returns when the first certificate ends of the authority's own chain that
// lasts longest; an error if there is none at this time.
func (a *Authority) until(now time.Time) (time.Time, error) {
	opts := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, c := range a.roots {
		opts.Roots.AddCert(c)
	}
	for _, c := range a.chain {
		opts.Intermediates.AddCert(c)
	}
	chains, err := a.cert.Verify(opts)
	if err != nil {
		return time.Time{}, err
	}
	var until time.Time
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, c := range chain {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if end.After(until) {
			until = end
		}
	}
	return until, nil
}

// Sign signs a certificate for the key and the names of a request. It is valid from
// Backdate ago, for the lifetime or until the authority's own end.
func (a *Authority) Sign(r pki.Request, now time.Time) (pki.Answer, error) {
	until, err := a.until(now)
	if err != nil {
		return pki.Answer{}, &pki.Fault{Reason: pki.Expired, Err: fmt.Errorf("the authority cannot sign now: %w", err)}
	}
	// A random serial of 127 bits is positive and, as RFC 5280 4.1.2.2 wants, short.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return pki.Answer{}, fmt.Errorf("serial number: %w", err)
	}
	end := now.Add(r.Lifetime)
	if end.After(until) {
		end = until
	}
	template := r.Template()
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = now.Add(-Backdate), end
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, r.Key.Public(), a.key)
	if err != nil {
		return pki.Answer{}, fmt.Errorf("signing: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return pki.Answer{}, fmt.Errorf("signing: %w", err)
	}
	return pki.Answer{Chain: append([]*x509.Certificate{leaf}, a.chain...), Roots: a.roots}, nil
}

// Warnings says what an operator should know of the power of this key.
func (a *Authority) Warnings() []string {
	for _, c := range append([]*x509.Certificate{a.cert}, a.chain...) {
		if len(c.PermittedURIDomains) > 0 {
			return nil
		}
	}
	return []string{fmt.Sprintf("the authority %q has no name constraint: whoever reads its key can sign for any identity that those who trust %q believe. Constrain it to the trust domain (permitted URI), or mount one for this workload alone",
		a.cert.Subject, a.roots[0].Subject)}
}
