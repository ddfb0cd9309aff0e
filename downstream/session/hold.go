package session

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// hold delays listeners and routes until the resources that they need have come. Those are the
// endpoints of a cluster that was just sent, because requests to a cluster that Envoy is warming
// fail; and an unknown cluster that a changed route leads to, because control planes that do not
// order the types send the route first. The delay is DefaultWarmingHold at most, however many
// more resources are awaited meanwhile. A resource for which the delay ran out is not awaited
// again until it changes.
type hold struct {
	// until is when the delay ends; the zero time if there is none.
	until   time.Time
	awaited map[resource]struct{}
	// vain holds the resources that were awaited and did not come in time.
	vain map[resource]struct{}
	// moved holds the routes and listeners that changed since Next last looked which clusters
	// they lead to.
	moved map[resource]struct{}
}

// resource identifies a resource by type URL and name.
type resource struct{ url, name string }

// maxVain bounds the number of names in hold.vain.
const maxVain = 4096

// await adds a resource to those that are awaited, and starts the delay if there is none yet.
func (h *hold) await(r resource, now time.Time, limit time.Duration) {
	if _, ok := h.vain[r]; ok {
		return
	}
	if h.awaited == nil {
		h.awaited = make(map[resource]struct{})
	}
	h.awaited[r] = struct{}{}
	if h.until.IsZero() {
		h.until = now.Add(limit)
	}
}

// changed records that a resource changed, so that it may be awaited again.
func (h *hold) changed(r resource) { delete(h.vain, r) }

// arrived stops awaiting the resources that have come.
func (s *Session) arrived(v View) {
	s.lookAtMoved(v)
	for r := range s.hold.awaited {
		// For endpoints, "not found" ends the wait too. A cluster that is not found is still
		// awaited, because it may be removed and added again.
		if item := v.Lookup(r.url, r.name); item.Current != nil || item.NotFound && r.url == xds.EndpointType {
			delete(s.hold.awaited, r)
		}
	}
	if !s.leads() && !s.hold.until.After(s.now) { // nothing is delayed
		clear(s.hold.awaited)
		s.hold.until = time.Time{}
	}
}

// leads reports whether the client subscribes to a type that is delayed: listeners or routes.
func (s *Session) leads() bool {
	return slices.ContainsFunc(s.ordered, func(sub *subscription) bool { return xds.Info(sub.url).LeadsToClusters })
}

// holding returns until when listeners and routes are delayed, or the zero time if they are not.
// It must be called after all clusters and endpoints were sent, so that what those make the
// client wait for shares one delay.
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

// lookAtMoved awaits the unknown clusters that changed routes and listeners of the client lead
// to. On a stream without the wildcard of clusters nothing is awaited: its client subscribes to
// the clusters by name when a route leads to them.
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

// move records that a resource which the client has, and which may lead to other clusters,
// changed.
func (s *Session) move(sub *subscription, name string) {
	if !xds.Info(sub.url).LeadsToClusters || sub.sent[name] == nil {
		return
	}
	if s.hold.moved == nil {
		s.hold.moved = make(map[resource]struct{})
	}
	s.hold.moved[resource{sub.url, name}] = struct{}{}
}
