package sds

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/sds/keystore"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// attemptTimeout bounds how long a CA is waited for.
const attemptTimeout = 10 * time.Second

// Reasons why there is no new certificate, beside those of package pki.
const (
	Unavailable pki.Reason = "unavailable"   // the CA did not answer, or said so
	NotYetValid pki.Reason = "not_yet_valid" // its time is yet to come
	NotKept     pki.Reason = "not_kept"      // it is in use, and not in the identity directory
)

// identity is what one certificate is for, and the certificate in use.
type identity struct {
	s   *source
	cfg Identity
	// wake holds a value when there may be something to do.
	wake chan struct{}

	// Under s.m.mu.
	current *held // nil for none yet
	next    *held // verified, and its time is yet to come; nil for none
	due     time.Time
	// attempts that failed since the last that did not, and why the last did.
	attempts int
	err      error
	issued   uint64
	failed   map[pki.Reason]uint64
	ended    bool // told that current has ended
}

// held is a certificate that was verified.
type held struct {
	pair pki.Pair
	// from and until are when the chain is valid; root is where it leads to, nil if
	// nobody knows.
	from, until time.Time
	root        *x509.Certificate
	issued      time.Time
	// renew is when the next is asked for, drawn once for each certificate.
	renew time.Time
}

func newIdentity(s *source, c Identity) *identity {
	return &identity{s: s, cfg: c, wake: make(chan struct{}, 1), failed: make(map[pki.Reason]uint64)}
}

// run renews the certificate until ctx ends. Of a source that pushes it only waits
// for the time of what was pushed.
func (id *identity) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-id.wake:
		}
		if id.promote() {
			id.keep()
		}
		if id.s.authority != nil && !id.s.m.now().Before(id.nextAttempt()) {
			id.renew(ctx)
		}
		timer.Reset(id.wait())
	}
}

// wait returns how long there is nothing to do. A wall clock that is set meanwhile
// is noticed by the manager, which wakes everybody.
func (id *identity) wait() time.Duration {
	id.s.m.mu.Lock()
	defer id.s.m.mu.Unlock()
	now, wait := id.s.m.now(), time.Hour
	if id.s.authority != nil {
		wait = min(wait, id.due.Sub(now))
	}
	if id.next != nil {
		wait = min(wait, id.next.from.Sub(now))
	}
	if id.current != nil && !id.ended {
		wait = min(wait, id.current.until.Sub(now))
	}
	return max(wait, 0)
}

func (id *identity) nextAttempt() time.Time {
	id.s.m.mu.Lock()
	defer id.s.m.mu.Unlock()
	return id.due
}

// look wakes the identity; urgent says that what failed shall be tried at once.
func (id *identity) look(urgent bool) {
	id.s.m.mu.Lock()
	if urgent && id.attempts > 0 {
		id.due = id.s.m.now()
	}
	id.s.m.mu.Unlock()
	id.poke()
}

func (id *identity) poke() {
	select {
	case id.wake <- struct{}{}:
	default:
	}
}

// rootsChanged is called when the authority names other roots. A certificate that
// leads to none of them is renewed before the overlap has passed, a little later in
// each pod.
func (id *identity) rootsChanged(named []*x509.Certificate) {
	id.s.m.mu.Lock()
	now := id.s.m.now()
	if id.current != nil && id.current.root != nil && !slices.ContainsFunc(named, id.current.root.Equal) {
		spread := time.Duration(rand.Float64() * float64(id.s.cfg.RootOverlap/10))
		if early := now.Add(id.s.cfg.RootLead + spread); early.Before(id.due) {
			id.due = early
		}
	}
	id.s.m.mu.Unlock()
	id.look(true)
}

// renew asks for a certificate and takes it in, or notes why there is none.
func (id *identity) renew(ctx context.Context) {
	h, roots, err := id.ask(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		id.fail(err)
		return
	}
	id.accept(h, roots)
	if id.promote() {
		id.keep()
	}
}

// ask gets a certificate for a new key, and verifies it.
func (id *identity) ask(ctx context.Context) (*held, []*x509.Certificate, error) {
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
	h, err := id.verified(pki.Pair{Key: key, Chain: answer.Chain}, answer.Roots)
	return h, answer.Roots, err
}

// verified checks a certificate, and draws when its successor is asked for: when
// half of its lifetime is over that is left now, give or take a tenth of that, so
// that those who began together do not go on together.
func (id *identity) verified(p pki.Pair, roots []*x509.Certificate) (*held, error) {
	v, err := id.s.verify(p, id.cfg.Names, roots)
	if err != nil {
		return nil, err
	}
	now := id.s.m.now()
	half := float64(v.Until.Sub(now)) / 2
	return &held{
		pair: p, from: v.From, until: v.Until, root: v.Root, issued: now,
		renew: now.Add(time.Duration(half * (0.9 + 0.2*rand.Float64()))),
	}, nil
}

// accept takes in a certificate that was verified, with the roots that came with
// it. They are published now, it when they have been for a while, and it is valid.
func (id *identity) accept(h *held, roots []*x509.Certificate) {
	m, s := id.s.m, id.s
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if len(roots) > 0 {
		s.setRoots(s.domain, roots)
		m.rebuild()
	}
	if !h.from.After(now) {
		id.attempts, id.err, id.due = 0, nil, h.renew
	} else {
		// Whose clock is wrong is not known: the next may be valid earlier.
		id.note(&pki.Fault{Reason: NotYetValid, Err: fmt.Errorf("the certificate is valid only from %s on: is a clock wrong?", h.from.UTC().Format(time.RFC3339))})
	}
	if s.authority != nil && h.root != nil && id.current != nil { // others see to that themselves
		if r := s.domains[s.domain]; r != nil {
			lead := r.Since(h.root).Add(s.cfg.RootLead)
			if lead.After(h.from) && id.current.until.After(lead) {
				h.from = lead
			}
		}
	}
	if id.next == nil || h.from.Before(id.next.from) || !now.Before(id.next.until) {
		id.next = h
	}
}

// promote puts the next certificate into use when its time has come, and reports
// whether it did.
func (id *identity) promote() bool {
	m := id.s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	switch {
	case id.next != nil && !now.Before(id.next.from):
		if id.err != nil && pki.ReasonOf(id.err, "") == NotYetValid {
			id.attempts, id.err, id.due = 0, nil, id.next.renew
		}
		id.current, id.next, id.ended = id.next, nil, false
		id.issued++
		m.rebuild()
		leaf := id.current.pair.Leaf()
		m.log.Info("certificate in use", "name", id.cfg.Secret, "ca", id.s.cfg.CA, "serial", leaf.SerialNumber.Text(16),
			"until", id.current.until.UTC().Format(time.RFC3339))
		return true
	case id.current != nil && !id.ended && !now.Before(id.current.until):
		id.ended = true
		m.log.Error("the certificate in use has ended, and there is no other: it is still served, and peers refuse it", "name", id.cfg.Secret, "ca", id.s.cfg.CA)
	}
	return false
}

// fail notes why there is no certificate.
func (id *identity) fail(err error) {
	id.s.m.mu.Lock()
	defer id.s.m.mu.Unlock()
	id.note(err)
}

// note counts a failure and says when the next attempt is; called under m.mu.
func (id *identity) note(err error) {
	m := id.s.m
	now := m.now()
	var left time.Duration
	if id.current != nil {
		left = id.current.until.Sub(now)
	}
	reason := pki.ReasonOf(err, Unavailable)
	id.failed[reason]++
	again := id.err == nil || pki.ReasonOf(id.err, Unavailable) != reason
	id.err = err
	id.due = now.Add(backoff(id.attempts, left, refused(reason)))
	id.attempts++
	if again || id.attempts&(id.attempts-1) == 0 { // the 1st, 2nd, 4th, …
		m.log.Warn("no new certificate; the one in use stays", "name", id.cfg.Secret, "ca", id.s.cfg.CA,
			"reason", string(reason), "attempts", id.attempts, "next", id.due.UTC().Format(time.RFC3339), "err", err)
	}
}

// usePush takes in the certificate that is meant, out of those that were pushed.
func (id *identity) usePush(pairs []pki.Pair) {
	var meant *pki.Pair
	for i, p := range pairs {
		names, err := pki.NamesOf(p.Leaf())
		if id.cfg.Names.Equal(pki.Names{}) || err == nil && names.Equal(id.cfg.Names) {
			meant = &pairs[i]
			break
		}
	}
	if meant == nil {
		id.fail(&pki.Fault{Reason: pki.WrongName, Err: fmt.Errorf("none of the %d certificates is for %s", len(pairs), id.cfg.Names)})
		return
	}
	h, err := id.verified(*meant, nil)
	if err != nil {
		id.fail(err)
		return
	}
	m := id.s.m
	m.mu.Lock()
	same := id.current != nil && id.current.pair.Leaf().Equal(h.pair.Leaf()) && len(id.current.pair.Chain) == len(h.pair.Chain)
	if same {
		id.attempts, id.err = 0, nil
		id.current.root = h.root
	}
	m.mu.Unlock()
	if !same {
		id.accept(h, nil)
	}
	id.poke()
}

// resume takes up the certificate of an earlier process, if it still holds.
func (id *identity) resume() {
	m := id.s.m
	if m.store == nil || id.s.lax {
		return
	}
	r, err := m.store.Load(id.cfg.Secret)
	if errors.Is(err, keystore.ErrNone) {
		return
	}
	var h *held
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
		h, err = id.verified(r.Pair, nil)
	}
	if err != nil {
		m.log.Warn("a certificate of an earlier run is not used", "name", id.cfg.Secret, "err", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h.issued = r.Issued
	if r.Renew.Before(h.until) {
		h.renew = r.Renew
	}
	id.current, id.due = h, h.renew
	m.log.Info("certificate of an earlier run in use", "name", id.cfg.Secret, "until", h.until.UTC().Format(time.RFC3339))
}

// keep writes the certificate in use to the identity directory.
func (id *identity) keep() {
	m := id.s.m
	if m.store == nil || id.s.lax {
		return
	}
	m.mu.Lock()
	r := keystore.Record{
		Pair: id.current.pair, Issued: id.current.issued, Renew: id.current.renew,
		Domain: id.s.domain, Anchors: make(map[string][]pki.Anchor),
	}
	for domain, roots := range id.s.domains {
		r.Anchors[domain] = roots.Anchors()
	}
	m.mu.Unlock()
	err := m.store.Save(id.cfg.Secret, r)
	if err == nil {
		id.s.fault("identity directory")(nil)
		return
	}
	id.s.complain(fmt.Errorf("the certificate %s is in use, and a restart would lose it: %w", id.cfg.Secret, err))
	m.mu.Lock()
	id.failed[NotKept]++
	m.mu.Unlock()
}
