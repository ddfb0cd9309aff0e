package pki

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Reason is a keyword for metrics that says why there is no usable certificate.
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

// Fault is the error of a certificate that cannot be used.
type Fault struct {
	Reason Reason
	Err    error
}

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// ReasonOf returns the reason of a Fault, or otherwise for other errors.
func ReasonOf(err error, otherwise Reason) Reason {
	if f, ok := errors.AsType[*Fault](err); ok {
		return f.Reason
	}
	return otherwise
}

// Expectation is what a certificate must satisfy.
type Expectation struct {
	Key crypto.PublicKey
	// Key and Names are exactly what is required; nil accepts any.
	Names *Names
	// Roots are the trusted roots. Without any, no certificate is trusted.
	Roots []*x509.Certificate
	// Lax also accepts certificates for general purposes: for servers or clients only, that may sign others,
	// or, if Roots is empty, that lead to an unknown root.
	Lax bool
}

type Verified struct {
	// All certificates of the chain are valid between From and Until.
	From, Until time.Time
	// Root is the trust anchor that the chain leads to.
	Root *x509.Certificate
}

// Verify returns a *Fault if a chain, leaf first, does not satisfy the expectation. A chain that becomes valid
// in the future passes; the result says when.
func (e Expectation) Verify(chain []*x509.Certificate, now time.Time) (Verified, error) {
	fault := func(reason Reason, format string, args ...any) (Verified, error) {
		return Verified{}, &Fault{reason, fmt.Errorf(format, args...)}
	}
	if err := checkSize(chain); err != nil {
		return Verified{}, err
	}
	leaf := chain[0]
	if e.Key != nil && !samePublic(leaf.PublicKey, e.Key) {
		return fault(WrongKey, "the certificate is for a different key than the one that was generated for it")
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
		return fault(Expired, "the certificate expired at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if e.Lax && len(e.Roots) == 0 {
		return Verified{From: leaf.NotBefore, Until: leaf.NotAfter}, nil
	}
	var first error
	for _, at := range e.verificationTimes(chain, now) {
		found, err := e.verifyAt(chain, at)
		if err == nil {
			return found, nil
		}
		if first == nil {
			first = err
		}
	}
	return fault(reasonOf(first), "the certificate is not valid: %w", first)
}

// verificationTimes returns now, or when the leaf becomes valid, and then when another certificate does.
func (e Expectation) verificationTimes(chain []*x509.Certificate, now time.Time) []time.Time {
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

// verifyAt returns when a chain, verified at a time, may be used for both clients and servers: an
// intermediate may be valid for only one of them.
func (e Expectation) verifyAt(chain []*x509.Certificate, at time.Time) (found Verified, err error) {
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if e.Lax {
		usages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	}
	for i, usage := range usages {
		chains, err := chain[0].Verify(x509.VerifyOptions{
			Roots: Pool(e.Roots), Intermediates: Pool(chain[1:]), CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return Verified{}, err
		}
		v := Longest(chains)
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

func checkUse(leaf *x509.Certificate) error {
	switch {
	case leaf.IsCA:
		return errors.New("the certificate is a CA certificate: want one that cannot sign others")
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

// Longest returns the validity of the chain that is valid for longest.
func Longest(chains [][]*x509.Certificate) (best Verified) {
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

// Pool returns a pool of certificates.
func Pool(certs []*x509.Certificate) *x509.CertPool {
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

// SelfSigned reports whether a certificate is signed with its own key, as those of root authorities are.
func SelfSigned(c *x509.Certificate) bool {
	return slices.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

// Split splits the certificates of a response into the chain, leaf first, and the roots at its end.
func Split(certs []*x509.Certificate) Answer {
	n := len(certs)
	for n > 1 && SelfSigned(certs[n-1]) {
		n--
	}
	return Answer{Chain: certs[:n], Roots: certs[n:]}
}
