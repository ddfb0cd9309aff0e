package register

import (
	"cmp"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	meta "istio.io/api/meta/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

const (
	// healthInterval is the shortest time between two changes of one workload that are taken in: of a workload whose
	// health changes more often, the last one of each interval. An agent probes once in a second at most.
	healthInterval = time.Second
	// silence is how long the health of a workload without a probe is kept after its proxy has connected: its agent may
	// have reported before, and may be one that does not report any more.
	silence = time.Minute
	// maxHealthMessage bounds the message of a report, in bytes.
	maxHealthMessage = 512
)

// assumedHealthy is the message of a workload that is healthy though its agent has not reported yet.
const assumedHealthy = "no report has come yet; the workload was an endpoint before it had a probe"

// State is what is known of the health of a workload.
type State string

const (
	Unknown   State = "unknown" // no report has come
	Healthy   State = "healthy"
	Unhealthy State = "unhealthy"
)

// Health is what the agent of a workload has reported last.
type Health struct {
	State   State
	Message string    // why the workload is unhealthy; at most maxHealthMessage bytes of printable characters
	Since   time.Time // of the state
}

// same reports whether two reports say the same.
func (h Health) same(o Health) bool { return h.State == o.State && h.Message == o.Message }

// health is the part of a member that is about its health. All fields are guarded by Registrar.events.
type health struct {
	Health           // that counts; its State is never ""
	taken  time.Time // when it was taken in; the zero time for never, and after a restart
	// reported is the last report, which may wait for the end of the interval until it counts.
	reported Health
	// reporter is the number of the connected stream on which the last report came; 0 for none.
	reporter   uint64
	waiting    *time.Timer // takes in reported; nil while nothing waits
	forgetting *time.Timer // see silence; nil for not
	// unchecked says that the workload was an endpoint while nobody checked its health. When its group gets a probe, it
	// stays one until a report comes: what works is not taken away because nothing is known.
	unchecked bool
}

// Report takes in what the agent of a connected proxy reports of the health of its workload, for a reason in its own words.
// connection is the number of its stream. While several are connected, a report on an older one than that of the last report
// has no effect; neither has one on a stream that is not connected. A report for a workload that is not registered yet counts
// once it is.
func (r *Registrar) Report(p *proxy.Proxy, connection uint64, healthy bool, reason string) {
	if p.AutoRegisterGroup == "" || !p.Authenticated {
		return
	}
	h := Health{State: Healthy, Since: time.Now()}
	if !healthy {
		h.State, h.Message = Unhealthy, cmp.Or(redact.Brief(reason, maxHealthMessage), "the report has no reason")
	}
	r.events.Lock()
	defer r.events.Unlock()
	m := r.members[identityOf(p)]
	if m == nil || !m.connected[connection] || connection < m.health.reporter {
		return
	}
	m.health.reporter, m.health.reported = connection, h
	m.health.forgetting = stop(m.health.forgetting)
	if m.health.waiting != nil {
		return
	}
	if wait := time.Until(m.health.taken.Add(healthInterval)); wait > 0 && !h.same(m.health.Health) {
		m.health.waiting = r.later(wait, m, func() {
			m.health.waiting = nil
			r.takeHealth(m)
		})
		return
	}
	r.takeHealth(m)
}

// later calls f with events held after a time, unless the timer was stopped, or the workload was forgotten.
func (r *Registrar) later(after time.Duration, m *member, f func()) *time.Timer {
	return time.AfterFunc(after, func() {
		r.events.Lock()
		defer r.events.Unlock()
		if r.members[m.identity] == m {
			f()
		}
	})
}

// stop stops a timer, which may be nil, and returns nil.
func stop(t *time.Timer) *time.Timer {
	if t != nil {
		t.Stop()
	}
	return nil
}

// takeHealth lets the last report of a workload count. It is called with events held.
func (r *Registrar) takeHealth(m *member) {
	h, before := m.health.reported, m.health.Health
	if h.same(before) {
		return
	}
	if h.State == before.State {
		h.Since = before.Since
	}
	m.health.Health, m.health.taken = h, time.Now()
	r.claimNews(m)
	switch {
	case m.entry == nil || h.State == before.State: // it is not registered, or only its message is another one
	case h.State == Healthy:
		r.say(m, slog.LevelInfo, "a workload is healthy", "name", m.key.String(), "node", m.proxy.Node)
	default:
		r.say(m, slog.LevelWarn, "a workload is unhealthy", "name", m.key.String(), "node", m.proxy.Node, "err", h.Message)
	}
	r.update(m)
}

// awaitReport forgets the health of a workload after a time if nobody checks it, unless a report comes before. A stream of its
// proxy was opened or closed. It is called with events held.
func (r *Registrar) awaitReport(m *member) {
	if m.health.State == Unknown || m.health.reporter != 0 {
		return
	}
	m.health.forgetting = stop(m.health.forgetting)
	m.health.forgetting = r.later(silence, m, func() {
		m.health.forgetting = nil
		if group, ok := r.groupOf(m); ok && !probed(m, group) && m.health.waiting == nil {
			m.health.Health = Health{State: Unknown}
			r.update(m)
		}
	})
}

// groupOf returns the WorkloadGroup of a workload.
func (r *Registrar) groupOf(m *member) (*networking.WorkloadGroup, bool) {
	c := r.Get(m.group)
	if c == nil {
		return nil, false
	}
	return c.Spec.(*networking.WorkloadGroup), true
}

// probed reports whether a workload has a probe: of its group or, as with istiod, of the ProxyConfig of its proxy.
func probed(m *member, group *networking.WorkloadGroup) bool {
	return group.GetProbe() != nil || m.proxy.HasReadinessProbe
}

// conclude returns the health of a workload by which it is an endpoint or not, and whether that is checked at all: it has a
// probe, or its agent has reported.
func conclude(m *member, group *networking.WorkloadGroup) (h Health, checked bool) {
	h = m.health.Health
	switch {
	case h.State != Unknown:
		return h, true
	case !probed(m, group):
		return h, false
	case m.health.unchecked:
		h.State, h.Message = Healthy, assumedHealthy
	default:
		h.Message = "no report has come yet"
	}
	return h, true
}

// condition returns the condition Healthy of a WorkloadEntry.
func condition(h Health) *meta.IstioCondition {
	c := &meta.IstioCondition{Type: service.ConditionHealthy, Message: h.Message, Status: map[State]string{Healthy: "True", Unhealthy: "False", Unknown: "Unknown"}[h.State]}
	if !h.Since.IsZero() {
		c.LastTransitionTime, c.LastProbeTime = timestamppb.New(h.Since), timestamppb.New(h.Since)
	}
	return c
}

// setHealth sets what a WorkloadEntry says of the health of its workload.
func setHealth(c *config.Config, m *member, group *networking.WorkloadGroup) {
	h, checked := conclude(m, group)
	if !checked {
		return
	}
	c.Annotations[service.AnnotationHealthChecks] = "true"
	c.Status = &meta.IstioStatus{Conditions: []*meta.IstioCondition{condition(h)}}
}

// Workload is what a registration has led to.
type Workload struct {
	// Name is the namespace and the name of the WorkloadEntry.
	Name string
	// Refused is why the workload is not registered; "" if it is.
	Refused string
	// Checked says that Health decides whether the workload is an endpoint.
	Checked bool
	Health  Health
}

// Workload returns the workload of a connected proxy; nil for one that does not register.
func (r *Registrar) Workload(p *proxy.Proxy) *Workload {
	if p.AutoRegisterGroup == "" {
		return nil
	}
	r.events.Lock()
	defer r.events.Unlock()
	m := r.members[identityOf(p)]
	if m == nil {
		return nil
	}
	w := &Workload{Name: m.key.Namespace + "/" + m.key.Name, Refused: m.refused}
	if doc := r.documents[m.key]; doc != nil {
		if _, isRegistration := r.registrationOf(doc); !isRegistration {
			w.Refused = "a document has this name, and takes precedence"
		}
	}
	if group, ok := r.groupOf(m); ok {
		w.Health, w.Checked = conclude(m, group)
	}
	return w
}
