package sds

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/sds/istio"
	"github.com/holdfast-xds/holdfast/sds/keystore"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

const attemptTimeout = 10 * time.Second

// Reasons for a missing certificate, in addition to those of package pki.
const (
	Unavailable pki.Reason = "unavailable"   // the CA did not answer, or answered that it is unavailable
	NotYetValid pki.Reason = "not_yet_valid" // the validity begins in the future
	NotKept     pki.Reason = "not_kept"      // it is in use, but could not be stored in the identity directory
)

// Reasons returns every reason for which an attempt can fail.
func Reasons() []pki.Reason {
	return []pki.Reason{
		pki.WrongKey, pki.WrongName, pki.Expired, pki.Untrusted, pki.Unfit, pki.Oversized, pki.Malformed,
		Unavailable, NotYetValid, NotKept, istio.Unauthenticated, istio.Refused, istio.Local,
	}
}

type identity struct {
	s   *source
	cfg Identity
	// wake holds a value when run must check the identity.
	wake chan struct{}

	// The fields below are protected by s.m.mu.
	current     *verifiedCert // the certificate in use; nil for none yet
	next        *verifiedCert // the verified successor, not yet in use; nil for none
	nextAttempt time.Time
	// attempts counts the failures since the last success, and err is the last failure.
	attempts     int
	err          error
	issued       uint64
	failed       map[pki.Reason]uint64
	expiryLogged bool // the expiry of current was logged
}

type verifiedCert struct {
	pair pki.Pair
	pki.Verified
	issued time.Time
	// renewAt is when the successor is requested, drawn once for each certificate.
	renewAt time.Time
}

// run renews the certificate until ctx ends. A pushed certificate is only put into use once it is valid.
func (id *identity) run(ctx context.Context) error {
	wake.Loop(ctx, id.wake, func() time.Time {
		if id.activate() {
			id.persist()
		}
		if id.due() {
			id.renew(ctx)
		}
		return time.Now().Add(id.wait())
	})
	return nil
}

// wait returns the time until run must check the identity again, unless the wall clock is set meanwhile.
func (id *identity) wait() time.Duration {
	id.s.m.mu.Lock()
	defer id.s.m.mu.Unlock()
	now, wait := id.s.m.now(), time.Hour
	if id.s.authority != nil {
		wait = min(wait, id.nextAttempt.Sub(now))
	}
	if id.next != nil {
		wait = min(wait, id.next.From.Sub(now))
	}
	if id.current != nil && !id.expiryLogged {
		wait = min(wait, id.current.Until.Sub(now))
	}
	return max(wait, 0)
}

// due reports whether a certificate must be requested. One that is not valid yet is replaced at once: the clock was ahead when it was made.
func (id *identity) due() bool {
	id.s.m.mu.Lock()
	defer id.s.m.mu.Unlock()
	if now := id.s.m.now(); id.attempts == 0 && id.current != nil && now.Before(id.current.pair.Leaf().NotBefore) {
		id.nextAttempt = now
	}
	return id.s.authority != nil && !id.s.m.now().Before(id.nextAttempt)
}

// recheck wakes the identity. If urgent is set, a failed attempt is retried at once.
func (id *identity) recheck(urgent bool) {
	id.s.m.mu.Lock()
	if urgent && id.attempts > 0 {
		id.nextAttempt = id.s.m.now()
	}
	id.s.m.mu.Unlock()
	wake.Signal(id.wake)
}

// rootsChanged is called when the authority names other roots. A certificate that leads to none of them is
// renewed before the overlap has passed, at a random time so that pods do not renew together.
func (id *identity) rootsChanged(named []*x509.Certificate) {
	id.s.m.mu.Lock()
	now := id.s.m.now()
	if id.current != nil && id.current.Root != nil && !slices.ContainsFunc(named, id.current.Root.Equal) {
		spread := time.Duration(rand.Float64() * float64(id.s.cfg.RootOverlap/10))
		if renewAt := now.Add(id.s.cfg.RootLead + spread); renewAt.Before(id.nextAttempt) {
			id.nextAttempt = renewAt
		}
	}
	id.s.m.mu.Unlock()
	id.recheck(true)
}

func (id *identity) renew(ctx context.Context) {
	switch h, roots, err := id.request(ctx); {
	case ctx.Err() != nil:
	case err != nil:
		id.recordFailure(err)
	default:
		id.accept(h, roots)
	}
}

func (id *identity) request(ctx context.Context) (*verifiedCert, []*x509.Certificate, error) {
	key, err := id.s.cfg.KeyType.Generate()
	if err != nil {
		return nil, nil, fmt.Errorf("generating a key: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	answer, err := id.s.authority.Issue(ctx, pki.Request{Key: key, Names: id.cfg.Names, Lifetime: id.s.cfg.Lifetime})
	if err != nil {
		return nil, nil, err
	}
	if len(answer.Chain) == 0 {
		return nil, nil, &pki.Fault{Reason: pki.Malformed, Err: errors.New("the CA answered without a certificate")}
	}
	h, err := id.verify(pki.Pair{Key: key, Chain: answer.Chain}, answer.Roots)
	return h, answer.Roots, err
}

// verify checks a certificate and draws the time of its renewal: after half of the remaining validity, plus
// or minus a tenth of that, so that pods that started together do not renew together.
func (id *identity) verify(p pki.Pair, roots []*x509.Certificate) (*verifiedCert, error) {
	v, err := id.s.verify(p, id.cfg.Names, roots)
	if err != nil {
		return nil, err
	}
	now := id.s.m.now()
	half := float64(v.Until.Sub(now)) / 2
	return &verifiedCert{
		pair: p, Verified: v, issued: now,
		renewAt: now.Add(time.Duration(half * (0.9 + 0.2*rand.Float64()))),
	}, nil
}

// accept records a verified certificate as the successor, and publishes the roots that came with it. It is
// put into use when it is valid and its root was published for RootLead.
func (id *identity) accept(h *verifiedCert, roots []*x509.Certificate) {
	m, s := id.s.m, id.s
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if len(roots) > 0 {
		s.setRoots(s.domain, roots)
		m.rebuild()
	}
	if !h.From.After(now) {
		id.attempts, id.err, id.nextAttempt = 0, nil, h.renewAt
	} else {
		// The next attempt may yield an earlier certificate: either clock may be wrong.
		id.recordFailureLocked(&pki.Fault{Reason: NotYetValid, Err: fmt.Errorf("the certificate is valid only from %s on: is a clock wrong?", h.From.UTC().Format(time.RFC3339))})
	}
	if s.authority != nil && h.Root != nil && id.current != nil { // sources that push manage their roots themselves
		if r := s.domains[s.domain]; r != nil {
			lead := r.Since(h.Root).Add(s.cfg.RootLead)
			if lead.After(h.From) && id.current.Until.After(lead) {
				h.From = lead
			}
		}
	}
	if id.next == nil || h.From.Before(id.next.From) || !now.Before(id.next.Until) {
		id.next = h
	}
}

// activate puts the successor into use once it is valid, and reports whether it did.
func (id *identity) activate() bool {
	m := id.s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	switch {
	case id.next != nil && !now.Before(id.next.From):
		if id.err != nil && pki.ReasonOf(id.err, "") == NotYetValid {
			id.attempts, id.err, id.nextAttempt = 0, nil, id.next.renewAt
		}
		id.current, id.next, id.expiryLogged = id.next, nil, false
		id.issued++
		m.rebuild()
		leaf := id.current.pair.Leaf()
		m.log.Info("certificate in use", "name", id.cfg.Secret, "ca", id.s.cfg.CA, "serial", leaf.SerialNumber.Text(16),
			"until", id.current.Until.UTC().Format(time.RFC3339))
		return true
	case id.current != nil && !id.expiryLogged && !now.Before(id.current.Until):
		id.expiryLogged = true
		m.log.Error("the certificate in use has expired and has no successor: it is still served, and peers reject it", "name", id.cfg.Secret, "ca", id.s.cfg.CA)
	}
	return false
}

func (id *identity) recordFailure(err error) {
	id.s.m.mu.Lock()
	defer id.s.m.mu.Unlock()
	id.recordFailureLocked(err)
}

// recordFailureLocked counts a failure and schedules the next attempt. The caller holds m.mu.
func (id *identity) recordFailureLocked(err error) {
	m := id.s.m
	now := m.now()
	var left time.Duration
	if id.current != nil {
		left = id.current.Until.Sub(now)
	}
	reason := pki.ReasonOf(err, Unavailable)
	id.failed[reason]++
	isNew := id.err == nil || pki.ReasonOf(id.err, Unavailable) != reason
	id.err = err
	id.nextAttempt = now.Add(backoff(id.attempts, left, isPermanent(reason)))
	id.attempts++
	if isNew || id.attempts&(id.attempts-1) == 0 { // the 1st, 2nd, 4th, …
		m.log.Warn("no new certificate: the certificate in use stays", "name", id.cfg.Secret, "ca", id.s.cfg.CA,
			"reason", string(reason), "attempts", id.attempts, "next", id.nextAttempt.UTC().Format(time.RFC3339), "err", err)
	}
}

func (id *identity) acceptPushed(pairs []pki.Pair) {
	i := slices.IndexFunc(pairs, func(p pki.Pair) bool {
		names, err := pki.NamesOf(p.Leaf())
		return id.cfg.Names.Equal(pki.Names{}) || err == nil && names.Equal(id.cfg.Names)
	})
	if i < 0 {
		id.recordFailure(&pki.Fault{Reason: pki.WrongName, Err: fmt.Errorf("none of the %d certificates is for %s", len(pairs), id.cfg.Names)})
		return
	}
	h, err := id.verify(pairs[i], nil)
	if err != nil {
		id.recordFailure(err)
		return
	}
	m := id.s.m
	m.mu.Lock()
	same := id.current != nil && id.current.pair.Leaf().Equal(h.pair.Leaf()) && len(id.current.pair.Chain) == len(h.pair.Chain)
	if same {
		id.attempts, id.err = 0, nil
		id.current.Root = h.Root
	}
	m.mu.Unlock()
	if !same {
		id.accept(h, nil)
	}
	wake.Signal(id.wake)
}

func (id *identity) restore() {
	m := id.s.m
	if m.store == nil || id.s.lenient {
		return
	}
	r, err := m.store.Load(id.cfg.Secret)
	if errors.Is(err, keystore.ErrNone) {
		return
	}
	var h *verifiedCert
	if err == nil {
		m.mu.Lock()
		for domain, anchors := range r.Anchors {
			if id.s.domains[domain] == nil {
				id.s.domains[domain] = &pki.Roots{}
			}
			id.s.domains[domain].Restore(anchors)
		}
		if id.cfg.Names.ID == "" {
			id.s.domain = pki.DomainOf(r.Pair)
		}
		m.mu.Unlock()
		h, err = id.verify(r.Pair, nil)
	}
	if err != nil {
		m.log.Warn("the stored certificate is not used", "name", id.cfg.Secret, "err", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h.issued = r.Issued
	if r.Renew.Before(h.Until) {
		h.renewAt = r.Renew
	}
	id.current, id.nextAttempt = h, h.renewAt
	m.log.Info("stored certificate in use", "name", id.cfg.Secret, "until", h.Until.UTC().Format(time.RFC3339))
}

func (id *identity) persist() {
	m := id.s.m
	if m.store == nil || id.s.lenient {
		return
	}
	m.mu.Lock()
	r := keystore.Record{
		Pair: id.current.pair, Issued: id.current.issued, Renew: id.current.renewAt,
		Domain: id.s.domain, Anchors: make(map[string][]pki.Anchor),
	}
	for domain, roots := range id.s.domains {
		r.Anchors[domain] = roots.Anchors()
	}
	m.mu.Unlock()
	err := m.store.Save(id.cfg.Secret, r)
	if err == nil {
		id.s.fault(storagePart)(nil)
		return
	}
	id.s.fault(storagePart)(fmt.Errorf("the certificate %s is in use, and a restart would lose it: %w", id.cfg.Secret, err))
	m.mu.Lock()
	id.failed[NotKept]++
	m.mu.Unlock()
}

// Bounds of the pause after a failed attempt.
const (
	firstPause = time.Second
	maxPause   = 5 * time.Minute
	// urgentPause bounds the pause while there is no valid certificate.
	urgentPause = 10 * time.Second
	// permanentPause is the least pause after an error that a retry is unlikely to change.
	permanentPause = 5 * time.Second
)

// backoff returns the pause before the next attempt: a random duration up to a bound that doubles with each
// failure ("full jitter"), so that the pods of a fleet do not retry together, and is at most 5 min or a tenth
// of the remaining validity of the certificate in use. left is 0 or less without a valid certificate.
func backoff(failures int, left time.Duration, permanent bool) time.Duration {
	most := urgentPause
	if left > 0 {
		most = min(maxPause, max(left/10, firstPause))
	}
	bound := most
	if failures < 20 { // a larger shift could overflow, and would exceed every bound
		bound = min(most, firstPause<<failures)
	}
	pause := time.Duration(rand.Int64N(int64(bound)) + 1)
	if permanent {
		pause += permanentPause
	}
	return max(pause, firstPause/10)
}

// isPermanent reports whether an early retry is unlikely to change the result.
func isPermanent(r pki.Reason) bool { return r == istio.Refused || r == istio.Unauthenticated }
