package session

import (
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// passesTTL reports whether the TTLs of the type are passed on to the client.
func (sub *subscription) passesTTL() bool {
	return sub.cfg.Form == xds.Delta && sub.cfg.TTL && xds.Info(sub.url).PassTTL
}

// extend reports whether a new lifetime of a resource must be sent to the client, which has the
// resource, and whether a heartbeat can do so.
func (sub *subscription) extend(h *clientCopy, r *xds.Resource, now time.Time) (needed, byHeartbeat bool) {
	if !sub.passesTTL() || h.rare.expires.Equal(r.Deadline()) {
		return false, false
	}
	// A heartbeat that comes after the lifetime that the client knows is NACKed by Envoy
	// (protocol.md 6.5).
	margin := min(max(r.TTL()/10, 100*time.Millisecond), 5*time.Second)
	known := h.hasAcked(r.Version) && !h.rare.expires.IsZero()
	return true, known && !r.Deadline().IsZero() && h.rare.expires.Sub(now) > margin
}

// buildHeartbeats returns a response with the heartbeats to be sent. It contains nothing else, so that
// its NACK does not concern other resources.
func (s *Session) buildHeartbeats(sub *subscription, v View) *Response {
	if len(sub.heartbeats) == 0 {
		return nil
	}
	resp := &Response{}
	for name := range sub.heartbeats {
		delete(sub.heartbeats, name)
		r := sub.choose(v.Lookup(sub.url, name))
		h := sub.sent[name]
		if r == nil || h == nil || h.version() != r.Version {
			continue // superseded: the name is in sub.changed
		}
		if _, byHeartbeat := sub.extend(h, r, s.now); byHeartbeat {
			h.expireAt(r.Deadline())
			resp.Heartbeats = append(resp.Heartbeats, r)
		}
	}
	if len(resp.Heartbeats) == 0 {
		return nil
	}
	return s.commit(sub, resp, 0)
}

// resendHeartbeats schedules the resources of NACKed heartbeats to be sent with their bodies.
func (sub *subscription) resendHeartbeats(f sentResponse) {
	for _, r := range f.heartbeats {
		if h := sub.sent[r.Name]; h != nil && h.version() == r.Version {
			h.expireAt(time.Time{})
			sub.changed[r.Name] = struct{}{}
		}
	}
}
