// Package push has what is pushed: the Snapshot that generation reads, and the Request that says what
// changed since the one before; they are Pilot's PushContext and PushRequest. The packages below it
// decide when a request is pushed (debounce) and to whom next (queue).
//
// It promises that a Snapshot does not change, so that proxies that are served from one see no mix of
// two (mesh.md M1), and that merging requests loses nothing that a proxy needs. It does not decide
// whom a request concerns, and the endpoints are no part of a Snapshot. Both types may be read by
// several goroutines at once; a Request must not be changed after it was handed on.
package push

import (
	"maps"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// ServiceKey identifies a service.
type ServiceKey = service.Key

// Reason is why a push was requested: the value of the label "type" of Istio's metric
// pilot_push_triggers.
type Reason string

// The reasons that Istio has, as far as this control plane has them.
const (
	// EndpointUpdate: endpoints of a service changed.
	EndpointUpdate Reason = "endpoint"
	// HeadlessEndpointUpdate: endpoints of a headless service changed, which listeners depend on.
	HeadlessEndpointUpdate Reason = "headlessendpoint"
	// ServiceUpdate: a service was added, removed, or has another definition.
	ServiceUpdate Reason = "service"
	// ConfigUpdate: a document that is no service changed.
	ConfigUpdate Reason = "config"
	// ProxyUpdate: the workload of a proxy changed, such as its labels.
	ProxyUpdate Reason = "proxy"
	// ProxyRequest: a proxy connected or subscribed.
	ProxyRequest Reason = "proxyrequest"
	// GlobalUpdate: the configuration of the mesh changed.
	GlobalUpdate Reason = "global"
	// NamespaceUpdate: a namespace changed.
	NamespaceUpdate Reason = "namespace"
	// SecretUpdate: a Secret changed.
	SecretUpdate Reason = "secret"
	// NetworksUpdate: the networks of the mesh changed.
	NetworksUpdate Reason = "networks"
	// ClusterUpdate: a registry of another cluster was added or removed.
	ClusterUpdate Reason = "cluster"
	// DebugRequest: a person asked for the push.
	DebugRequest Reason = "debug"
	// Unknown stands for the reasons of a request that has none.
	Unknown Reason = "unknown"
)

// Request says what changed. A full request needs a new snapshot; another one, of which only the
// services matter, is served from the present snapshot with the present endpoints.
type Request struct {
	Full bool
	// Configs are the documents that changed. A full request without any changes everything: it
	// concerns every proxy and every resource.
	Configs map[config.Key]struct{}
	// Services are the services whose endpoints or definition changed. They are kept when a full
	// request takes in a request about endpoints.
	Services map[ServiceKey]struct{}
	// Reasons counts the changes by reason.
	Reasons map[Reason]int
	// Start is when the earliest change came in; the zero time if that is not known.
	Start time.Time
}

// Everything reports whether the request concerns every proxy and every resource.
func (r *Request) Everything() bool { return r.Full && len(r.Configs) == 0 }

// Merge returns a request for all that changed in either of two. It changes neither, and returns one
// of them if the other is nil; nil if both are.
func (r *Request) Merge(o *Request) *Request {
	var m Merger
	m.Add(r)
	m.Add(o)
	return m.Take()
}

// Merger merges requests. The cost of each is that of what changed in it, and not that of all that
// was merged before. The zero value is empty.
type Merger struct {
	merged *Request
	// own is set once merged is a copy that the Merger may change.
	own bool
}

// Add merges a request, which is not changed. A nil request has no effect.
func (m *Merger) Add(o *Request) {
	switch {
	case o == nil:
		return
	case m.merged == nil:
		m.merged = o
		return
	case !m.own:
		m.merged, m.own = m.merged.clone(), true
	}
	r := m.merged
	if r.Everything() || o.Everything() {
		r.Configs = nil
	} else {
		r.Configs = union(r.Configs, o.Configs)
	}
	r.Full = r.Full || o.Full
	r.Services = union(r.Services, o.Services)
	for reason, n := range o.Reasons {
		if r.Reasons == nil {
			r.Reasons = make(map[Reason]int, len(o.Reasons))
		}
		r.Reasons[reason] += n
	}
	if r.Start.IsZero() || !o.Start.IsZero() && o.Start.Before(r.Start) {
		r.Start = o.Start
	}
}

// Take returns the merged request, nil if none was added, and empties the Merger. It returns the
// request itself that was added if that was the only one.
func (m *Merger) Take() *Request {
	r := m.merged
	*m = Merger{}
	return r
}

func (r *Request) clone() *Request {
	c := *r
	c.Configs, c.Services, c.Reasons = maps.Clone(r.Configs), maps.Clone(r.Services), maps.Clone(r.Reasons)
	return &c
}

// union adds b to a, and returns a; or a copy of b if a is nil.
func union[K comparable](a, b map[K]struct{}) map[K]struct{} {
	if a == nil {
		return maps.Clone(b)
	}
	maps.Copy(a, b)
	return a
}
