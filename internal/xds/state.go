package xds

import "errors"

// What a control plane may say of a name instead of a resource. What is held of
// it stays in use (protocol.md 3.14).
var (
	// ErrNotFound says that it reported that the resource does not exist.
	ErrNotFound = errors.New("the control plane says that it does not exist")
	// ErrNoAnswer says that it was asked for the name and has said nothing of it
	// in time (gRFC A57, protocol.md 5.3).
	ErrNoAnswer = errors.New("the control plane was asked for it and says nothing of it")
)

// Knowledge is how much is known of everything of a type: of the set that a
// wildcard names (design.md section 3).
type Knowledge int

const (
	// Unknown: nobody has said anything yet. A wildcard is not answered: an
	// empty answer would wipe a running Envoy (design.md I1, protocol.md V7).
	Unknown Knowledge = iota
	// Partial: what is held may be served, but there may be more: it was
	// restored, or a Delta upstream is still telling. Absence means nothing.
	Partial
	// Complete: a synced upstream has told all it has. What is absent does not
	// exist.
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

// Status is what the clients made of the newest content of a resource
// (design.md I7).
type Status uint8

const (
	// Pending: no client has answered yet.
	Pending Status = iota
	// Acked: a client has ACKed it.
	Acked
	// Suspect: it was new in a response that was NACKed, together with others.
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

// Item is what the state holds under one name.
type Item struct {
	// Current is the newest content, nil when nothing is held.
	Current *Resource
	// Acked is the content that a client last accepted, nil when there is none.
	Acked *Resource
	// Status is that of Current.
	Status Status
	// NotFound says that an upstream reported that the name does not exist: only
	// then may a client be told so (protocol.md 3.4).
	NotFound bool
}
