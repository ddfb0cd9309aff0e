package session

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// hold keeps listeners and routes back while what they need is about to come: the endpoints of
// a cluster that was sent, since requests to one that Envoy is warming fail; and a cluster that
// a changed route leads to and that nobody knows, since control planes without an order among
// types send the route first. It lasts DefaultWarmingHold at most, whatever comes meanwhile,
// and nothing is waited for twice that was waited for in vain.
type hold struct {
	// until is when it ends; the zero time for none.
	until   time.Time
	awaited map[resource]struct{}
	// vain are what was waited for and did not come.
	vain map[resource]struct{}
	// moved are routes and listeners that changed since Next looked at what they lead to.
	moved map[resource]struct{}
}

// resource names one by type URL and name.
type resource struct{ url, name string }

// maxVain bounds what is remembered of waits in vain.
const maxVain = 4096

// await begins to wait for something, or waits for it too.
func (h *hold) await(r resource, now time.Time, most time.Duration) {
	if _, ok := h.vain[r]; ok {
		return
	}
	if h.awaited == nil {
		h.awaited = make(map[resource]struct{})
	}
	h.awaited[r] = struct{}{}
	if h.until.IsZero() {
		h.until = now.Add(most)
	}
}

// changed takes in that something of a name did: it may be waited for again.
func (h *hold) changed(r resource) { delete(h.vain, r) }

// arrived forgets what was waited for and came.
func (s *Session) arrived(v View) {
	s.lookAtMoved(v)
	for r := range s.hold.awaited {
		// Of endpoints an upstream may say that there are none; that a cluster is gone is
		// said before it comes again.
		if item := v.Lookup(r.url, r.name); item.Current != nil || item.NotFound && r.url == xds.EndpointType {
			delete(s.hold.awaited, r)
		}
	}
	if !s.leads() && !s.hold.until.After(s.now) { // it holds nothing back
		clear(s.hold.awaited)
		s.hold.until = time.Time{}
	}
}

// leads reports whether the client asked for anything that is held back.
func (s *Session) leads() bool {
	return slices.ContainsFunc(s.ordered, func(sub *subscription) bool { return xds.Info(sub.url).LeadsToClusters })
}

// holding returns until when listeners and routes are held back, the zero time for not at all. It
// is to be called when all clusters and endpoints were sent: what they make the client wait for
// belongs to the same half second.
func (s *Session) holding(v View) time.Time {
	s.arrived(v)
	h := &s.hold
	switch {
	case len(h.awaited) == 0:
		h.until = time.Time{}
	case !h.until.After(s.now):
		if h.vain == nil || len(h.vain) >= maxVain {
			h.vain = make(map[resource]struct{})
		}
		for r := range h.awaited {
			h.vain[r] = struct{}{}
		}
		clear(h.awaited)
		h.until = time.Time{}
	}
	return h.until
}

// lookAtMoved begins to wait for clusters that nobody knows and that routes and listeners lead
// to which the client has and which changed. On a stream that never asked for all clusters there
// is nothing to wait for: it asks for those that it is led to.
func (s *Session) lookAtMoved(v View) {
	moved := s.hold.moved
	if len(moved) == 0 {
		return
	}
	s.hold.moved = nil
	clusters := s.types[xds.ClusterType]
	if clusters == nil || !clusters.wildcard {
		return
	}
	for m := range moved {
		h, cur := s.types[m.url].sent[m.name], v.Lookup(m.url, m.name).Current
		if cur == nil || h == nil || h.version() == cur.Version {
			continue
		}
		xds.LeadsToClusters(cur, func(cluster string) {
			if v.Lookup(xds.ClusterType, cluster).Current == nil {
				s.hold.await(resource{xds.ClusterType, cluster}, s.now, s.cfg.WarmingHold)
			}
		})
	}
}

// move notes that a resource changed that the client has and that may lead to other clusters.
func (s *Session) move(sub *subscription, name string) {
	if !xds.Info(sub.url).LeadsToClusters || sub.sent[name] == nil {
		return
	}
	if s.hold.moved == nil {
		s.hold.moved = make(map[resource]struct{})
	}
	s.hold.moved[resource{sub.url, name}] = struct{}{}
}
