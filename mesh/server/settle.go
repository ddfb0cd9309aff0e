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
// does not answer holds nothing up.
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
			if !s.snapshot().SameAuth(snap) {
				continue // another change has come: its own steps begin
			}
			s.Request(&push.Request{
				Full: true, Start: time.Now(), Configs: map[config.Key]struct{}{{Kind: push.AuthStep}: {}},
				Reasons: map[push.Reason]int{push.ConfigUpdate: 1},
			})
			for s.snapshot().SameAuth(snap) {
				if !wake.Sleep(ctx, stepPoll) {
					return nil
				}
			}
		}
	}
}

// awaitAnswers waits until the proxies have answered what a snapshot made, or until it is not the latest
// any more; false when ctx has ended.
func (s *Server) awaitAnswers(ctx context.Context, snap *push.Snapshot) bool {
	for began := time.Now(); s.snapshot().SameAuth(snap); {
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

// snapshot returns the latest snapshot. It must not be called before Start.
func (s *Server) snapshot() *push.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gen.Snapshot()
}
