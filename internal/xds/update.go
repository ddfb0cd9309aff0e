package xds

import "time"

// Key identifies one resource or, with the name Wildcard, all resources of a type.
type Key struct{ Type, Name string }

// Update is the content of one answer of a source about one type. It takes effect as a whole
// (design.md I4).
type Update struct {
	// Source is the name of the source, Type the type URL of everything in the update.
	Source, Type string
	// RequestedAt is when the stream of the answer was opened, or its directory was read; the zero
	// time if that is not known. Only a later request confirms removals that are held back.
	RequestedAt time.Time
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
}
