package session

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// delay delays listeners and routes until the resources that they need have come: the endpoints of
// a cluster that was just sent, because requests to a cluster that Envoy is warming fail; and an
// unknown cluster that a changed route leads to, because control planes that do not order the types
// send the route first. The delay is warmingDelay at most, however many more resources are
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
func (h *delay) await(r xds.Key, now time.Time) {
	if _, ok := h.timedOut[r]; ok {
		return
	}
	h.awaited[r] = struct{}{}
	if h.until.IsZero() {
		h.until = now.Add(warmingDelay)
	}
}

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
	delays := func(sub *subscription) bool { return xds.Info(sub.url).LeadsToClusters }
	if !slices.ContainsFunc(s.ordered, delays) && !s.delay.until.After(s.now) { // nothing is delayed
		clear(s.delay.awaited)
		s.delay.until = time.Time{}
	}
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
		if len(h.timedOut) >= maxTimedOut {
			clear(h.timedOut)
		}
		maps.Copy(h.timedOut, h.awaited)
		clear(h.awaited)
		h.until = time.Time{}
	}
	return h.until
}

// awaitNewClusters awaits the unknown clusters that changed routes and listeners of the client lead
// to. Without the wildcard, the client subscribes to them by name when a route leads to them.
func (s *Session) awaitNewClusters(v View) {
	if len(s.delay.rerouted) == 0 {
		return
	}
	defer xds.ResetNames(&s.delay.rerouted)
	clusters := s.types[xds.ClusterType]
	if clusters == nil || !clusters.wildcard {
		return
	}
	for m := range s.delay.rerouted {
		h, cur := s.types[m.Type].sent.get(m.Name), v.Lookup(m.Type, m.Name).Current
		if cur == nil || h == nil || h.version() == cur.Version {
			continue
		}
		xds.LeadsToClusters(cur, func(cluster string) {
			if v.Lookup(xds.ClusterType, cluster).Current == nil {
				s.delay.await(xds.Key{Type: xds.ClusterType, Name: cluster}, s.now)
			}
		})
	}
}
