package register

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	meta "istio.io/api/meta/v1alpha1"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// What the annotations of a WorkloadEntry say that a replica has published, besides service.AnnotationAutoGroup. All but the
// last one are those of istiod (pilot/pkg/autoregistration, Istio 1.30).
const (
	// AnnotationController names the replica to which the proxy is connected: its replica.Record.ID.
	AnnotationController = "istio.io/workloadController"
	// AnnotationConnectedAt is since when, and AnnotationDisconnectedAt since when it is not any more; as in RFC 3339, with
	// nanoseconds. A replica that takes a workload over writes a later time than the one before, whatever its clock says.
	AnnotationConnectedAt    = "istio.io/connectedAt"
	AnnotationDisconnectedAt = "istio.io/disconnectedAt"
	// AnnotationAccount is the service account of the proxy. Without it, a WorkloadEntry is not a registration of
	// holdfast-mesh, and only a person deletes it: one that was copied from a cluster is a document like any other.
	AnnotationAccount = "holdfast.dev/service-account"
)

// bookkeeping are the annotations that say who has a registration. They make no difference for an endpoint.
var bookkeeping = []string{AnnotationController, AnnotationConnectedAt, AnnotationDisconnectedAt, AnnotationAccount}

// maxAhead is how far in the future a time of connection may be that counts: clocks differ by less.
const maxAhead = 24 * time.Hour

// registration is what a published WorkloadEntry says of its workload.
type registration struct {
	group, replica, account string
	connected, disconnected time.Time // the zero time for none
}

// IsRegistration reports whether a document was published by a replica for a proxy that has registered.
func IsRegistration(c *config.Config) bool {
	_, ok := registrationOf(c)
	return ok
}

// registrationOf returns what a document says of a registration; false if it is none, or nil.
func registrationOf(c *config.Config) (reg registration, ok bool) {
	if c == nil || c.Kind != config.WorkloadEntry {
		return reg, false
	}
	reg.group, reg.replica = c.Annotations[service.AnnotationAutoGroup], c.Annotations[AnnotationController]
	reg.account, ok = c.Annotations[AnnotationAccount]
	reg.connected, reg.disconnected = timeOf(c.Annotations[AnnotationConnectedAt]), timeOf(c.Annotations[AnnotationDisconnectedAt])
	return reg, ok && reg.group != "" && reg.replica != ""
}

// timeOf reads the time of an annotation; the zero time if it cannot be one.
func timeOf(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || time.Until(at) > maxAhead {
		return time.Time{}
	}
	return at
}

// groupKey returns the WorkloadGroup of a registration in a namespace.
func (reg registration) groupKey(namespace string) config.Key {
	return config.Key{Kind: config.WorkloadGroup, Namespace: namespace, Name: reg.group}
}

// is reports whether a registration is one of the workload: the key is the same, and so is the account.
func (m *member) is(reg registration) bool { return m.authenticated && m.account == reg.account }

// newer reports whether the proxy has connected here after it connected to the replica that has the registration.
func (m *member) newer(reg registration) bool { return m.since.After(reg.connected) }

// document returns the document of a workload that has registered at a replica.
func document(m *member, replica string) *config.Config {
	c := *m.entry
	c.Annotations = maps.Clone(c.Annotations)
	c.Annotations[AnnotationController] = replica
	c.Annotations[AnnotationAccount] = m.account
	c.Annotations[AnnotationConnectedAt] = m.since.UTC().Format(time.RFC3339Nano)
	if !m.left.IsZero() {
		c.Annotations[AnnotationDisconnectedAt] = m.left.UTC().Format(time.RFC3339Nano)
	}
	c.Created, c.Origin = time.Time{}, "" // those of the group
	return &c
}

// alike reports whether two WorkloadEntries, nil for none, are the same for the registries: they are the same document, or
// registrations of a workload at different replicas or times.
func alike(a, b *config.Config) bool {
	switch {
	case a == b:
		return true
	case a == nil || b == nil || a.Annotations[service.AnnotationAutoGroup] == "" || b.Annotations[service.AnnotationAutoGroup] == "":
		return false
	}
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(unbooked(a), unbooked(b)) && healthOf(a).same(healthOf(b)) && proto.Equal(a.Spec.(proto.Message), b.Spec.(proto.Message))
}

// unbooked returns the annotations of a document without those of the bookkeeping.
func unbooked(c *config.Config) map[string]string {
	out := maps.Clone(c.Annotations)
	for _, name := range bookkeeping {
		delete(out, name)
	}
	return out
}

// equal reports whether two registrations say the same.
func equal(a, b *config.Config) bool {
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) && proto.Equal(a.Spec.(proto.Message), b.Spec.(proto.Message)) && proto.Equal(statusOf(a), statusOf(b))
}

func statusOf(c *config.Config) *meta.IstioStatus {
	status, ok := c.Status.(*meta.IstioStatus)
	if !ok {
		return &meta.IstioStatus{}
	}
	return status
}

// healthOf returns the health in the condition of a WorkloadEntry; Unknown for none.
func healthOf(c *config.Config) Health {
	conditions := statusOf(c).GetConditions()
	i := slices.IndexFunc(conditions, func(c *meta.IstioCondition) bool { return c.GetType() == service.ConditionHealthy })
	if i < 0 {
		return Health{State: Unknown}
	}
	h := Health{State: Unknown, Message: redact.Brief(conditions[i].GetMessage(), maxHealthMessage)}
	switch conditions[i].GetStatus() {
	case "True":
		h.State = Healthy
	case "False":
		h.State = Unhealthy
	}
	if at := conditions[i].GetLastTransitionTime(); at.IsValid() {
		h.Since = at.AsTime()
	}
	return h
}

// adopt takes the health of a workload from its registration at another replica: what was reported there holds here.
func (m *member) adopt(doc *config.Config) {
	h := healthOf(doc)
	unchecked := doc.Annotations[service.AnnotationHealthChecks] == ""
	switch {
	case unchecked:
		h = Health{State: Unknown}
	case h.State == Unknown:
		h = Health{State: Unknown}
	case h.State == Healthy && h.Message == assumedHealthy:
		h, unchecked = Health{State: Unknown}, true
	}
	m.health.Health, m.health.unchecked = h, unchecked
}
