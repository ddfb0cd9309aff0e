package xds

import "errors"

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
	// NotFound says that an upstream reported that the name does not exist: only then may clients
	// be sent its removal (protocol.md 3.4).
	NotFound bool
}
