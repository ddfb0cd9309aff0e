// Package local contains the authorities whose private key is in the pod: one that is mounted as a directory,
// and one that is generated for development.
//
// It promises that no leaf certificate outlives a certificate above it, and that it does not sign with a key or
// a certificate that may not. It does not verify the certificates that it signs: the caller does, as for every
// authority. All methods may be called concurrently.
package local

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Backdate is how long before its issuance a certificate is valid, for peers whose clocks are slow.
const Backdate = 2 * time.Minute

// Authority signs certificates with its own key.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// chain leads from cert to a root and excludes the root; it is empty if cert is a root.
	chain []*x509.Certificate
	roots []*x509.Certificate
}

// New fails if the certificate may not sign or does not lead to a root. Sign checks the validity.
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
		if pki.SelfSigned(c) || slices.ContainsFunc(roots, c.Equal) {
			break
		}
		a.chain = append(a.chain, c)
	}
	if _, err := a.validUntil(cert.NotBefore.Add(time.Second)); err != nil {
		if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); !ok || invalid.Reason != x509.Expired {
			return nil, fmt.Errorf("the certificate does not lead to one of the roots: %w", err)
		}
	}
	return a, nil
}

// Roots returns the roots that peers must trust.
func (a *Authority) Roots() []*x509.Certificate { return a.roots }

// validUntil returns when the first certificate of the longest valid chain expires, if any is valid now.
func (a *Authority) validUntil(now time.Time) (time.Time, error) {
	chains, err := a.cert.Verify(x509.VerifyOptions{
		Roots: pki.Pool(a.roots), Intermediates: pki.Pool(a.chain), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return time.Time{}, err
	}
	return pki.Longest(chains).Until, nil
}

// Sign signs a certificate that is valid from Backdate before now, for the requested lifetime or until the
// authority's own certificates expire.
func (a *Authority) Sign(r pki.Request, now time.Time) (pki.Answer, error) {
	until, err := a.validUntil(now)
	if err != nil {
		return pki.Answer{}, &pki.Fault{Reason: pki.Expired, Err: fmt.Errorf("the authority cannot sign now: %w", err)}
	}
	end := now.Add(r.Lifetime)
	if end.After(until) {
		end = until
	}
	template := r.Template() // without a serial number: CreateCertificate generates one
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

// failure is what an authority does not sign, and why.
type failure struct {
	names *pki.Names // nil for anything
	err   error
}

func (f failure) Error() string {
	if f.names == nil {
		return "it cannot sign now: " + f.err.Error()
	}
	return "it signs no certificate that holds for " + f.names.String() + ": " + f.err.Error()
}

func (f failure) Unwrap() error { return f.err }

// failures yields which of several names an authority does not sign for; one failure if it signs nothing.
func (a *Authority) failures(all []pki.Names, now time.Time) iter.Seq[failure] {
	return func(yield func(failure) bool) {
		if err := a.try(nil, now); err != nil {
			yield(failure{nil, err})
			return
		}
		for i := range all {
			if err := a.try(&all[i], now); err != nil && !yield(failure{&all[i], err}) {
				return
			}
		}
	}
}

// trialLifetime is the lifetime of certificates that are signed for a trial, and kept by nobody.
const trialLifetime = time.Minute

// try signs a certificate for names and verifies it; nil stands for none, of which only the time matters. The text of the error
// is the same at another time.
func (a *Authority) try(names *pki.Names, now time.Time) error {
	if _, err := a.validUntil(now); err != nil {
		if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
			return fmt.Errorf("the certificate of %q is valid from %s until %s", invalid.Cert.Subject, invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
		}
		return err
	}
	if names == nil {
		return nil
	}
	key, err := pki.DefaultKeyType.Generate()
	if err != nil {
		return err
	}
	answer, err := a.Sign(pki.Request{Key: key, Names: *names, Lifetime: trialLifetime}, now)
	if err != nil {
		return err
	}
	_, err = pki.Expectation{Key: key.Public(), Names: names, Roots: answer.Roots}.Verify(answer.Chain, now)
	return err
}

// Warnings returns what an operator should know about the power of this key.
func (a *Authority) Warnings() []string {
	for _, c := range append([]*x509.Certificate{a.cert}, a.chain...) {
		if len(c.PermittedURIDomains) > 0 {
			return nil
		}
	}
	return []string{fmt.Sprintf("the authority %q has no name constraint: whoever reads its key can issue any identity to all peers that trust %q. Constrain it to the trust domain (permitted URI), or mount an authority for this workload alone",
		a.cert.Subject, a.roots[0].Subject)}
}
