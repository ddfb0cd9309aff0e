package xds

import "time"

// Key names one resource, or with the name Wildcard everything of a type.
type Key struct{ Type, Name string }

// Update is what one answer of a source says of the resources of one type. It takes effect as a
// whole (design.md I4).
type Update struct {
	// Source is the name of the source, Type the type URL of everything in the update.
	Source, Type string
	// RequestedAt is when the stream was opened, before its first request, or the directory
	// read, of which this is an answer; the zero time if that is not known. Only an answer to a
	// later request confirms removals that the removal guard holds back.
	RequestedAt time.Time
	// Resources lists new and unchanged resources, each name once. A source that repeats a
	// resource may repeat the pointer: it is then known to be unchanged.
	Resources []*Resource
	// Removed lists names that do not exist.
	Removed []string
	// Complete says that Resources is all there is of the type, so that whatever else is held
	// of it was deleted. Only full-state types have it (design.md I3).
	Complete bool
	// Wildcard says that it answers, in part or as a whole, the subscription to everything of
	// the type.
	Wildcard bool
	// Timeout says that it is no answer: the source was asked for the names in Errors and has
	// not answered in time.
	Timeout bool
	// KeepUnsubscribed says that the source reports everything it has, whatever is subscribed
	// to: its resources are kept though nobody subscribes to them.
	KeepUnsubscribed bool
	// Heartbeats lists resources whose TTL starts again.
	Heartbeats []Heartbeat
	// Errors lists what the answer held that could not be used, and what the control plane
	// reported as an error.
	Errors []ResourceError
}

// Heartbeat starts the TTL of one resource again (xDS specification, "TTL"; protocol.md 6.1).
type Heartbeat struct {
	Name string
	// Version is what the upstream calls the content that the heartbeat is about: it holds only
	// while that is held. AnyVersion says that it holds for whatever content of its source is.
	Version    string
	AnyVersion bool
	TTL        time.Duration
	Deadline   time.Time
}

// ResourceError is an error about one resource, of which what is held stays in use. Name is "" if
// the error is about no resource in particular.
type ResourceError struct {
	Name string
	Err  error
}

// Change says what changed of one type since the last look at it.
type Change struct {
	Type  string
	Names []string
	// All says that what is known of the wildcard changed, so that anything may have. Names need
	// not list what is held then.
	All bool
}

// SubscriptionChange is a change of what is subscribed to of one type.
type SubscriptionChange struct {
	Type string
	// Wildcard says whether everything of the type is subscribed to now.
	Wildcard bool
	// Complete says, toward a source, that everything that there is of the type is held: a
	// source that reported it need say only what changed since.
	Complete bool
	// Subscribe lists names that are subscribed to now and were not before, Unsubscribe the
	// opposite.
	Subscribe, Unsubscribe []string
}
