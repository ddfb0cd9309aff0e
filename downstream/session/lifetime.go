package session

import (
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// passesTTL tells whether the client is told how long resources live.
func (sub *subscription) passesTTL() bool {
	return sub.cfg.Form == xds.Delta && sub.cfg.TTL && xds.Info(sub.url).PassTTL
}

// beatMargin is how much must remain of the lifetime that the client was told for
// a heartbeat to put it off: to one that comes after its end Envoy answers with a
// NACK (protocol.md 6.5).
func beatMargin(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 100*time.Millisecond), 5*time.Second)
}

// extension is how a client that has a content hears of another lifetime of it.
type extension int

const (
	notNeeded extension = iota
	byHeartbeat
	byBody
)

// extend tells how a client hears of the lifetime of a content that it has.
func (sub *subscription) extend(h *holding, r *xds.Resource, now time.Time) extension {
	if !sub.passesTTL() || h.expires().Equal(r.Deadline()) {
		return notNeeded
	}
	known := h.acked != nil && h.acked.Version == r.Version && !h.expires().IsZero()
	if known && !r.Deadline().IsZero() && h.expires().Sub(now) > beatMargin(r.TTL()) {
		return byHeartbeat
	}
	return byBody
}

// buildHeartbeats returns the heartbeats that are due, by themselves: a NACK of
// one would take the rest of the response along.
func (s *Session) buildHeartbeats(sub *subscription, v View) *Response {
	if len(sub.beats) == 0 {
		return nil
	}
	resp := &Response{}
	for name := range sub.beats {
		delete(sub.beats, name)
		r := sub.choose(v.Lookup(sub.url, name))
		h := sub.sent[name]
		if r == nil || h == nil || h.version() != r.Version {
			continue // overtaken, and dirty
		}
		if sub.extend(h, r, s.now) == byHeartbeat {
			h.expireAt(r.Deadline())
			resp.Heartbeats = append(resp.Heartbeats, r)
		}
	}
	if len(resp.Heartbeats) == 0 {
		return nil
	}
	return s.commit(sub, resp, 0)
}

// missedBeats takes in that heartbeats were refused: what they were for is sent
// again.
func (sub *subscription) missedBeats(f sentResponse) {
	for _, r := range f.beats {
		if h := sub.sent[r.Name]; h != nil && h.version() == r.Version {
			h.expireAt(time.Time{})
			sub.dirty[r.Name] = struct{}{}
		}
	}
}
