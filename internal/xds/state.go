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

// Knowledge is how much is known of the wildcard of a type, that is, of the set of all its
// resources (design.md section 3).
type Knowledge int

const (
	// Unknown: no source has answered yet. A request for the wildcard is not answered, because an
	// empty answer would make a running Envoy delete everything (design.md I1, protocol.md V7).
	Unknown Knowledge = iota
	// Partial: the cached resources may be served, but there may be more, because they were
	// restored or a Delta upstream is still sending. Absence means nothing.
	Partial
	// Complete: an upstream has sent all resources. A resource that is not cached does not exist.
	Complete
)

// String returns "unknown", "partial" or "complete".
func (k Knowledge) String() string {
	switch k {
	case Unknown:
		return "unknown"
	case Partial:
		return "partial"
	default:
		return "complete"
	}
}

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
func (s Status) String() string {
	switch s {
	case Pending:
		return "pending"
	case Acked:
		return "accepted"
	case Suspect:
		return "suspect"
	default:
		return "rejected"
	}
}

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
