package xds

import (
	"errors"
	"time"
)

// Key identifies one resource or, with the name Wildcard, all resources of a type.
type Key struct{ Type, Name string }

// Update is the content of one answer of a source about one type. It takes effect as a whole
// (design.md I4).
type Update struct {
	// Source is the name of the source, Type the type URL of everything in the update.
	Source, Type string
	// Contact is since when the agent has been in contact with the source without a break, but for streams that it
	// has opened anew itself; the zero time for ever. A source that was just born knows nothing yet.
	Contact time.Time
	// RequestedAt is when the stream of the answer was opened, or its directory was read; the zero
	// time if that is not known. Only a later request confirms removals that are held back.
	RequestedAt time.Time
	// ReceivedAt is when the answer was received; the zero time if that is not known.
	ReceivedAt time.Time
	// Resources lists new and unchanged resources, each name once. A repeated pointer shows that
	// the resource has not changed.
	Resources []*Resource
	// Removed lists names that do not exist.
	Removed []string
	// Complete says that Resources is the complete set of the type, so that all other resources
	// were removed. Only full-state types have it (design.md I3).
	Complete bool
	// Wildcard says that the update is at least a part of the answer for the wildcard.
	Wildcard bool
	// Timeout says that there was no answer in time for the names in Errors.
	Timeout bool
	// KeepUnsubscribed says that the source reports all resources, whatever is subscribed to: they
	// are kept without a subscription.
	KeepUnsubscribed bool
	// Heartbeats lists resources whose TTL starts again.
	Heartbeats []Heartbeat
	// Errors lists the unusable parts of the answer, and the errors that the control plane
	// reported.
	Errors []ResourceError
}

// Heartbeat restarts the TTL of one resource (xDS specification, "TTL"; protocol.md 6.1).
type Heartbeat struct {
	Name string
	// Version is the upstream's version of the content whose TTL is restarted; the heartbeat has no
	// effect on another content. AnyVersion says that it is for any content from its source.
	Version    string
	AnyVersion bool
	TTL        time.Duration
	Deadline   time.Time
}

// ResourceError is an error about one resource; a cached resource of that name stays in use. Name
// is "" if the error is about no resource in particular.
type ResourceError struct {
	Name string
	Err  error
}

// Change lists what changed of one type since the last one.
type Change struct {
	Type  string
	Names []string
	// All says that the knowledge of the wildcard changed, so that any name may have changed. Names
	// need not list cached resources then.
	All bool
	// Repeated are names whose resources came again, and that clients need again although nothing has changed (Resource.GoesStale).
	Repeated []string
}

// SubscriptionChange is a change of the subscriptions to one type.
type SubscriptionChange struct {
	Type string
	// Wildcard says whether the wildcard is subscribed to now.
	Wildcard bool
	// Complete says that the cache has all resources of the type.
	Complete bool
	// Subscribe lists names that are subscribed to now and were not before, Unsubscribe the opposite.
	Subscribe, Unsubscribe []string
	// Holds says that the client has something of the type from an earlier stream, as its first request says.
	Holds bool
}

// Errors of a control plane about a name. A cached resource of that name stays in use (protocol.md
// 3.14).
var (
	// ErrNotFound: it reported that the resource does not exist.
	ErrNotFound = errors.New("the control plane reported that the resource does not exist")
	// ErrNoAnswer: it did not answer the request for the resource in time (gRFC A57, protocol.md
	// 5.3).
	ErrNoAnswer = errors.New("no answer from the control plane for the requested resource")
)

// Form is the wire form of an xDS stream. The zero value is neither.
type Form uint8

const (
	// SotW is the state-of-the-world form: a request lists all names that are subscribed to.
	SotW Form = iota + 1
	// Delta is the incremental form: a request lists what changed of the subscription.
	Delta
)

// String returns "sotw" or "delta", as in flags, logs and metrics.
func (f Form) String() string { return [...]string{"unknown", "sotw", "delta"}[f] }

// Knowledge is how much is known of the wildcard of a type, that is, of the set of all its
// resources (design.md section 3).
type Knowledge int

const (
	// Unknown: no source has answered yet. A request for the wildcard is not answered, because an
	// empty answer would make a running Envoy delete everything (design.md I1, protocol.md V7).
	Unknown Knowledge = iota
	// Partial: there may be more than the cached resources, because those were restored or a Delta
	// upstream is still sending. Absence means nothing.
	Partial
	// Complete: an upstream has sent all resources. A resource that is not cached does not exist.
	Complete
)

// String returns the name of the constant in lower case.
func (k Knowledge) String() string { return [...]string{"unknown", "partial", "complete"}[k] }

// Status is the clients' answer to the newest content of a resource (design.md I7).
type Status uint8

const (
	// Pending: no client has answered yet.
	Pending Status = iota
	// Acked: a client has ACKed it.
	Acked
	// Suspect: it was one of several new resources in a response that was NACKed.
	Suspect
	// Nacked: it was the only new resource in a response that was NACKed.
	Nacked
)

// String returns the status as people read it.
func (s Status) String() string { return [...]string{"pending", "accepted", "suspect", "rejected"}[s] }

// MarshalText returns the name.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Item is the state of one name.
type Item struct {
	// Current is the newest content; nil if there is none.
	Current *Resource
	// Acked is the content that a client ACKed last; nil if there is none.
	Acked *Resource
	// Status is the status of Current.
	Status Status
	// Offer is not 0 if Current is offered again to clients that NACKed it, and another number each time (design.md I7).
	Offer uint8
	// Ended says that a client ended while Current was offered to it: it is sent to none, whatever that leaves out.
	Ended bool
	// NotFound says that an upstream reported that the name does not exist: only then may clients
	// be sent its removal (protocol.md 3.4).
	NotFound bool
}

// NackedOrSuspect reports whether clients NACKed it, alone or together with others.
func (s Status) NackedOrSuspect() bool { return s == Suspect || s == Nacked }

// Sent returns the content that clients are sent; nil for none.
func (i Item) Sent() *Resource {
	if i.Status == Nacked || i.Status == Suspect && i.Acked != nil {
		return i.Acked
	}
	return i.Current
}
