package server

import (
	"context"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// The steps of a change of PeerAuthentications that clients notice. A step is taken when every proxy has
// answered what the step before sent it, after stepAfter at the earliest, so that the proxies of other
// replicas and listeners that warm have it too, and after stepAtMost at the latest, so that a proxy that
// does not answer holds nothing up. Changes of documents meanwhile do not make a step longer than that,
// and have their own steps afterwards.
const (
	stepAfter  = 2 * time.Second
	stepAtMost = 15 * time.Second
	stepPoll   = 100 * time.Millisecond
)

// settle requests the steps of changes of PeerAuthentications, until ctx ends.
func (s *Server) settle(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.unsettled:
		}
		for snap := s.snapshot(); !snap.Settled(); snap = s.snapshot() {
			if !s.awaitAnswers(ctx, snap) {
				return nil
			}
			if !s.snapshot().SameAuthStep(snap) {
				continue // the change was taken back, or clients do not notice it any more
			}
			s.mu.Lock()
			s.due = snap
			s.mu.Unlock()
			s.Request(&push.Request{
				Full: true, Start: time.Now(), Configs: map[config.Key]struct{}{authStep: {}},
				Reasons: map[push.Reason]int{push.ConfigUpdate: 1},
			})
			for s.snapshot().SameAuthStep(snap) {
				if !wake.Sleep(ctx, stepPoll) {
					return nil
				}
			}
		}
	}
}

// awaitAnswers waits until the proxies have answered what they were sent, or until the step is not that of a
// snapshot any more; false when ctx has ended.
func (s *Server) awaitAnswers(ctx context.Context, snap *push.Snapshot) bool {
	for began := time.Now(); s.snapshot().SameAuthStep(snap); {
		waited := time.Since(began)
		if waited >= stepAtMost || waited >= stepAfter && s.behind() == 0 {
			return true
		}
		if !wake.Sleep(ctx, stepPoll) {
			return false
		}
	}
	return true
}

// authStep stands in requests for the next step.
var authStep = config.Key{Kind: push.AuthStep}

// step returns the snapshot of which a request makes the next one: with the next step taken if the request
// asks for that and the step is due. A request for everything may have taken in one that asks for a step.
// A step that is not due any more is not taken, since no proxy has had the one before.
func (s *Server) step(snap *push.Snapshot, r *push.Request) *push.Snapshot {
	if _, asks := r.Configs[authStep]; !asks && !r.Everything() {
		return snap
	}
	s.mu.Lock()
	due := s.due
	s.due = nil
	s.mu.Unlock()
	if due == nil || !due.SameAuthStep(snap) {
		return snap
	}
	return push.New(s.source, s.cfg.Domain, snap, map[config.Kind]bool{push.AuthStep: true}, false)
}

// snapshot returns the latest snapshot. It must not be called before Start.
func (s *Server) snapshot() *push.Snapshot { return s.generation().Snapshot() }
