package session

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// delay delays listeners and routes until the resources that they need have come: the endpoints of
// a cluster that was just sent, because requests to a cluster that Envoy is warming fail; and an
// unknown cluster that a changed route leads to, because control planes that do not order the types
// send the route first. The delay is Config.WarmingDelay at most, however many more resources are
// awaited meanwhile. A resource that did not come in time is not awaited again until it changes.
type delay struct {
	// until is when the delay ends; the zero time if there is none.
	until   time.Time
	awaited map[xds.Key]struct{}
	// timedOut holds the resources that were awaited and did not come in time.
	timedOut map[xds.Key]struct{}
	// rerouted holds the changed routes and listeners for whose clusters awaitNewClusters has not
	// looked yet.
	rerouted map[xds.Key]struct{}
}

// maxTimedOut bounds the number of resources in delay.timedOut.
const maxTimedOut = 4096

// await adds a resource to those that are awaited, and starts the delay if there is none yet.
func (h *delay) await(r xds.Key, now time.Time, limit time.Duration) {
	if _, ok := h.timedOut[r]; ok {
		return
	}
	if h.awaited == nil {
		h.awaited = make(map[xds.Key]struct{})
	}
	h.awaited[r] = struct{}{}
	if h.until.IsZero() {
		h.until = now.Add(limit)
	}
}

// changed records that a resource changed, so that it may be awaited again.
func (h *delay) changed(r xds.Key) { delete(h.timedOut, r) }

// arrived stops awaiting the resources that have come.
func (s *Session) arrived(v View) {
	s.awaitNewClusters(v)
	for r := range s.delay.awaited {
		// For endpoints, "not found" ends the wait too. A cluster that is not found is still
		// awaited, because it may be removed and added again.
		if item := v.Lookup(r.Type, r.Name); item.Current != nil || item.NotFound && r.Type == xds.EndpointType {
			delete(s.delay.awaited, r)
		}
	}
	if !s.delaysAny() && !s.delay.until.After(s.now) { // nothing is delayed
		clear(s.delay.awaited)
		s.delay.until = time.Time{}
	}
}

// delaysAny reports whether the client subscribes to a type that is delayed: listeners or routes.
func (s *Session) delaysAny() bool {
	return slices.ContainsFunc(s.ordered, func(sub *subscription) bool { return xds.Info(sub.url).LeadsToClusters })
}

// delayedUntil returns until when listeners and routes are delayed, or the zero time if they are not.
// It must be called after all clusters and endpoints were sent, so that one delay is for all of them.
func (s *Session) delayedUntil(v View) time.Time {
	s.arrived(v)
	h := &s.delay
	switch {
	case len(h.awaited) == 0:
		h.until = time.Time{}
	case !h.until.After(s.now):
		if h.timedOut == nil || len(h.timedOut) >= maxTimedOut {
			h.timedOut = make(map[xds.Key]struct{})
		}
		for r := range h.awaited {
			h.timedOut[r] = struct{}{}
		}
		clear(h.awaited)
		h.until = time.Time{}
	}
	return h.until
}

// awaitNewClusters awaits the unknown clusters that changed routes and listeners of the client lead
// to. On a stream without the wildcard of clusters nothing is awaited: its client subscribes to
// the clusters by name when a route leads to them.
func (s *Session) awaitNewClusters(v View) {
	moved := s.delay.rerouted
	if len(moved) == 0 {
		return
	}
	s.delay.rerouted = nil
	clusters := s.types[xds.ClusterType]
	if clusters == nil || !clusters.wildcard {
		return
	}
	for m := range moved {
		h, cur := s.types[m.Type].sent[m.Name], v.Lookup(m.Type, m.Name).Current
		if cur == nil || h == nil || h.version() == cur.Version {
			continue
		}
		xds.LeadsToClusters(cur, func(cluster string) {
			if v.Lookup(xds.ClusterType, cluster).Current == nil {
				s.delay.await(xds.Key{Type: xds.ClusterType, Name: cluster}, s.now, s.cfg.WarmingDelay)
			}
		})
	}
}

// recordRerouted records that a route or listener of the client changed, which may lead to other
// clusters now.
func (s *Session) recordRerouted(sub *subscription, name string) {
	if !xds.Info(sub.url).LeadsToClusters || sub.sent[name] == nil {
		return
	}
	if s.delay.rerouted == nil {
		s.delay.rerouted = make(map[xds.Key]struct{})
	}
	s.delay.rerouted[xds.Key{Type: sub.url, Name: name}] = struct{}{}
}
