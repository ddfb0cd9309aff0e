package pki

import (
	"bytes"
	"crypto/x509"
	"slices"
	"time"
)

// Anchor is a trusted root certificate.
type Anchor struct {
	Cert *x509.Certificate
	// Since is when the root was first named, and Left when no longer; the zero time if it still is.
	Since, Left time.Time
}

// Roots are the trust anchors of one trust domain. A new root is trusted immediately; a root that is no
// longer named stays for a while, because peers still have certificates that lead to it.
type Roots struct {
	anchors []Anchor // sorted by their DER encoding, so that secrets with them are stable
}

// Set sets the roots that are named now, except expired ones, and reports whether it added any.
func (r *Roots) Set(now time.Time, named []*x509.Certificate) (changed bool) {
	for i := range r.anchors {
		a := &r.anchors[i]
		switch isNamed := slices.ContainsFunc(named, a.Cert.Equal); {
		case isNamed:
			a.Left = time.Time{}
		case a.Left.IsZero():
			a.Left = now
		}
	}
	for _, c := range named {
		if now.After(c.NotAfter) {
			continue
		}
		changed = r.add(Anchor{Cert: c, Since: now}) || changed
	}
	return changed
}

// Prune removes the anchors that expired or were not named for the overlap, unless keep returns true, and
// reports whether it removed any.
func (r *Roots) Prune(now time.Time, overlap time.Duration, keep func(*x509.Certificate) bool) (changed bool) {
	before := len(r.anchors)
	r.anchors = slices.DeleteFunc(r.anchors, func(a Anchor) bool {
		left := !a.Left.IsZero() && now.Sub(a.Left) >= overlap
		return (left || now.After(a.Cert.NotAfter)) && !keep(a.Cert)
	})
	return len(r.anchors) != before
}

// Restore adds anchors that Anchors returned.
func (r *Roots) Restore(anchors []Anchor) {
	for _, a := range anchors {
		r.add(a)
	}
}

func (r *Roots) add(a Anchor) bool {
	i, found := slices.BinarySearchFunc(r.anchors, a, func(a, b Anchor) int { return bytes.Compare(a.Cert.Raw, b.Cert.Raw) })
	if !found {
		r.anchors = slices.Insert(r.anchors, i, a)
	}
	return !found
}

// Anchors returns the trust anchors in a stable order.
func (r *Roots) Anchors() []Anchor { return slices.Clone(r.anchors) }

func (r *Roots) Certs() []*x509.Certificate {
	out := make([]*x509.Certificate, len(r.anchors))
	for i, a := range r.anchors {
		out[i] = a.Cert
	}
	return out
}

// Since returns when a certificate was first named; the zero time if it is not trusted.
func (r *Roots) Since(c *x509.Certificate) time.Time {
	for _, a := range r.anchors {
		if a.Cert.Equal(c) {
			return a.Since
		}
	}
	return time.Time{}
}
