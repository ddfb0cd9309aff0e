package pki

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Reason says in a word why a certificate was not used, or was not to be had: for
// metrics.
type Reason string

// Reasons of Expectation.Verify and ParsePair.
const (
	WrongKey  Reason = "wrong_key"
	WrongName Reason = "wrong_name"
	Expired   Reason = "expired"
	Untrusted Reason = "untrusted"
	Unfit     Reason = "unfit" // a CA, or not for clients and servers
	Oversized Reason = "oversized"
	Malformed Reason = "malformed"
)

// Fault is why a certificate was not used.
type Fault struct {
	Reason Reason
	Err    error
}

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// ReasonOf returns that of a Fault, otherwise for what is none.
func ReasonOf(err error, otherwise Reason) Reason {
	if f, ok := errors.AsType[*Fault](err); ok {
		return f.Reason
	}
	return otherwise
}

// Expectation is what a certificate must be.
type Expectation struct {
	// Key is the public key that it must have; nil for any.
	Key crypto.PublicKey
	// Names are exactly those that it must have; nil for any.
	Names *Names
	// Roots are what its chain must lead to. Without any nothing is trusted.
	Roots []*x509.Certificate
	// Lax takes what others made for purposes of their own: a certificate for
	// servers or for clients only, one that may sign others, and, if Roots is
	// empty, one that leads to whatever root.
	Lax bool
}

// Verified says when a chain that was verified may be used.
type Verified struct {
	// From is when the last of its certificates becomes valid, Until when the
	// first one ends.
	From, Until time.Time
	// Root is the trust anchor that it leads to.
	Root *x509.Certificate
}

// Verify reports why a chain, leaf first, is not what is expected, as a *Fault. One
// that becomes valid only later passes, and says when.
func (e Expectation) Verify(chain []*x509.Certificate, now time.Time) (Verified, error) {
	fault := func(reason Reason, format string, args ...any) (Verified, error) {
		return Verified{}, &Fault{reason, fmt.Errorf(format, args...)}
	}
	if err := checkSize(chain); err != nil {
		return Verified{}, err
	}
	leaf := chain[0]
	if e.Key != nil && !samePublic(leaf.PublicKey, e.Key) {
		return fault(WrongKey, "the certificate is for another key than the one that was generated for it")
	}
	if e.Names != nil {
		switch names, err := NamesOf(leaf); {
		case err != nil:
			return fault(WrongName, "the certificate has %w: want %s and nothing else", err, e.Names)
		case !names.Equal(*e.Names):
			return fault(WrongName, "the certificate is for %s: want exactly %s", names, e.Names)
		}
	}
	if !e.Lax {
		if err := checkUse(leaf); err != nil {
			return Verified{}, &Fault{Unfit, err}
		}
	}
	if !now.Before(leaf.NotAfter) {
		return fault(Expired, "the certificate ended at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if e.Lax && len(e.Roots) == 0 {
		return Verified{From: leaf.NotBefore, Until: leaf.NotAfter}, nil
	}
	var first error
	for _, at := range e.times(chain, now) {
		found, err := e.leads(chain, at)
		if err == nil {
			return found, nil
		}
		if first == nil {
			first = err
		}
	}
	return fault(reasonOf(first), "the certificate does not hold: %w", first)
}

// times returns when to look at a chain: now, or when its leaf becomes valid, and
// where that fails, whenever another certificate does.
func (e Expectation) times(chain []*x509.Certificate, now time.Time) []time.Time {
	begin := now
	if chain[0].NotBefore.After(begin) {
		begin = chain[0].NotBefore
	}
	times := []time.Time{begin}
	for _, c := range slices.Concat(chain[1:], e.Roots) {
		if c.NotBefore.After(begin) {
			times = append(times, c.NotBefore)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return slices.CompactFunc(times, time.Time.Equal)
}

// leads verifies a chain at a time, and returns when it may be used for clients and
// servers both: what is above the leaf may be good for one of them only.
func (e Expectation) leads(chain []*x509.Certificate, at time.Time) (found Verified, err error) {
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if e.Lax {
		usages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	}
	for i, usage := range usages {
		chains, err := chain[0].Verify(x509.VerifyOptions{
			Roots: pool(e.Roots), Intermediates: pool(chain[1:]), CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return Verified{}, err
		}
		v := longest(chains)
		if i == 0 {
			found = v
		}
		if v.From.After(found.From) {
			found.From = v.From
		}
		if v.Until.Before(found.Until) {
			found.Until, found.Root = v.Until, v.Root
		}
	}
	return found, nil
}

// checkUse reports what a certificate is for that a workload's must not be for, or
// not for that it must.
func checkUse(leaf *x509.Certificate) error {
	switch {
	case leaf.IsCA:
		return errors.New("the certificate is that of an authority: want one that cannot sign others")
	case leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return errors.New("the certificate may sign others: want one that cannot")
	case leaf.KeyUsage != 0 && leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return errors.New("the certificate is not for digital signatures, and TLS needs that")
	}
	return nil
}

func reasonOf(err error) Reason {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		switch invalid.Reason {
		case x509.Expired:
			return Expired
		case x509.IncompatibleUsage:
			return Unfit
		}
	}
	return Untrusted
}

// longest returns when the chain may be used that may be used for longest.
func longest(chains [][]*x509.Certificate) (best Verified) {
	for _, chain := range chains {
		v := Verified{From: chain[0].NotBefore, Until: chain[0].NotAfter, Root: chain[len(chain)-1]}
		for _, c := range chain[1:] {
			if c.NotBefore.After(v.From) {
				v.From = c.NotBefore
			}
			if c.NotAfter.Before(v.Until) {
				v.Until = c.NotAfter
			}
		}
		if v.Until.After(best.Until) {
			best = v
		}
	}
	return best
}

func pool(certs []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}

func checkSize(chain []*x509.Certificate) error {
	size := 0
	for _, c := range chain {
		size += len(c.Raw)
	}
	switch {
	case len(chain) == 0:
		return &Fault{Malformed, errors.New("no certificate")}
	case len(chain) > MaxChain:
		return &Fault{Oversized, fmt.Errorf("a chain of %d certificates: want %d at most", len(chain), MaxChain)}
	case size > MaxChainBytes:
		return &Fault{Oversized, fmt.Errorf("a chain of %d bytes: want %d at most", size, MaxChainBytes)}
	}
	return nil
}

// SelfSigned reports whether a certificate is signed with its own key, as those of
// root authorities are.
func SelfSigned(c *x509.Certificate) bool {
	return slices.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

// Split divides the certificates that an authority returned, leaf first, into the
// chain and the roots at its end.
func Split(certs []*x509.Certificate) Answer {
	n := len(certs)
	for n > 1 && SelfSigned(certs[n-1]) {
		n--
	}
	return Answer{Chain: certs[:n], Roots: certs[n:]}
}
