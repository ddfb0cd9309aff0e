// Package admin serves the admin interface of an agent over HTTP, on a Unix socket or a TCP port:
// health for the kubelet, metrics for Prometheus, and status and dump for operators.
//
// It guarantees that no secret is served (a dump is redacted), that actions can be requested on a
// Unix socket only, and that the health listener, which a whole cluster may reach, serves health and
// metrics only.
//
// It reads what it serves from a State, which the agent implements, and depends on neither the cache
// nor the protocol. New fields may be added to the types of the JSON forms (Status, Resource), but no
// field is ever renamed.
//
// All exported methods may be called concurrently.
package admin

import (
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/agent/probe"
	"github.com/holdfast-xds/holdfast/agent/shadow"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds"
)

// State is the state of an agent. Its methods are called concurrently, with each request, and must not
// block.
type State interface {
	// Live returns an error if the process must be restarted. An unreachable control plane is no
	// reason for that.
	Live() error
	// Ready returns the conditions that must hold for clients to be served, the basic ones first.
	Ready() []Condition
	// Started reports whether the start is complete, so that Ready is meaningful.
	Started() bool
	Status() Status
	// Resources visits the resources that pass the filter, in push order of the types and then by
	// name. No lock is held while the visitor runs, which may take long.
	Resources(f Filter) iter.Seq[Resource]
}

// Condition is a condition of readiness.
type Condition struct {
	// Name is short and constant, such as "socket" or "upstream".
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Reason explains, if the condition does not hold, what is wrong and what to do.
	Reason string `json:"reason,omitempty"`
	// Since is when the condition ceased to hold, within a second; the zero time if it holds.
	Since time.Time `json:"since,omitzero"`
}

// Holds returns a condition that holds if err is nil, which is the reason otherwise.
func Holds(name string, err error) Condition {
	if err != nil {
		return Condition{Name: name, Reason: err.Error()}
	}
	return Condition{Name: name, OK: true}
}

// Filter selects resources. Empty fields match everything.
type Filter struct {
	// Type is a type URL.
	Type string
	Name string
}

// Admits reports whether a resource passes the filter.
func (f Filter) Admits(typeURL, name string) bool {
	return (f.Type == "" || f.Type == typeURL) && (f.Name == "" || f.Name == name)
}

// Status is the status of the agent, without the resources themselves.
type Status struct {
	// Admin is the --admin with which a command reaches this agent; "" for the default. The server sets it;
	// who reaches the agent by another address sets that before WriteText.
	Admin   string    `json:"admin,omitempty"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Now is when the status was taken; the server sets it.
	Now time.Time `json:"now,omitzero"`
	// Conditions is what Ready returned; the server sets it.
	Conditions []Condition `json:"conditions"`
	// Found is what Problems returned; the server sets it.
	Found   []Problem `json:"problems"`
	Groups  []Group   `json:"groups"`
	Streams []Stream  `json:"streams"`
	// Events counts the events that were recorded since the start, and EventsLost those of them that are
	// missing on disk.
	Events     uint64 `json:"events"`
	EventsLost uint64 `json:"events_lost"`
	// Publishing is the seed that the agent publishes; nil if it publishes none.
	Publishing *Publishing `json:"publishing,omitempty"`
	// Files lists the files that a file source could not use.
	Files []FileError `json:"files,omitempty"`
	// NoEnvoySince is since when no Envoy is connected, although one was or is configured; the zero time if one is. It is not while the agent
	// drains.
	NoEnvoySince time.Time `json:"no_envoy_since,omitzero"`
	// Output is what became of the lines of the log; nil if that is not known. The server sets it.
	Output *Output `json:"log,omitempty"`
	// Storage is the last known good on disk; nil if there is none.
	Storage *Storage `json:"storage,omitempty"`
	// Envoy is the agent's child; nil if there is none.
	Envoy *envoy.Status `json:"envoy,omitempty"`
	// Workload is the health of the application; nil if the agent does not probe it.
	Workload *probe.Status `json:"workload,omitempty"`
	// Certificates are issued by the agent; nil if it issues none.
	Certificates *sds.Status `json:"certificates,omitempty"`
	// Shadow is what an agent that serves nobody has found; nil for an agent that serves.
	Shadow *shadow.Report `json:"shadow,omitempty"`
}

// Output describes the lines that go to standard error.
type Output struct {
	// Dropped counts those that were not written, by where they came from: "holdfast", or "envoy" for Envoy as a child.
	Dropped map[string]uint64 `json:"dropped_lines"`
	// Stuck is since when standard error has taken nothing, and Error why it does not; "" for a write that does not return.
	Stuck time.Time `json:"stuck,omitzero"`
	Error string    `json:"error,omitempty"`
}

// Storage is the last known good on disk.
type Storage struct {
	Dir       string `json:"dir"`
	Encrypted bool   `json:"encrypted"`
	// Durable is set if changes are written to disk; otherwise they are in memory only.
	Durable    bool   `json:"durable"`
	Generation uint64 `json:"generation"`
	Bytes      int64  `json:"bytes"`
	// Committed is when something was last written.
	Committed time.Time `json:"committed,omitzero"`
	// Error is the last problem, Since is the time of the first one after everything was well.
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since,omitzero"`
	// Aside lists files that were set aside and are not used: they are damaged, have another owner
	// or a later version, or are encrypted with another key.
	Aside []string `json:"aside,omitempty"`
	// Damage describes the damage of the state that was read at the start; "" for none.
	Damage string `json:"damage,omitempty"`
	// NotStored counts, by reason, the resources that would be missing after a restart now without
	// the control plane.
	NotStored map[string]int `json:"not_stored,omitempty"`
	// Skipped counts, by reason, all records that were not stored or not used since the start.
	// WriteErrors counts failed writes.
	Skipped     map[string]int `json:"skipped,omitempty"`
	WriteErrors uint64         `json:"write_errors"`
	// Missing names resources that NotStored counts, but not all if there are many.
	Missing []NotStored `json:"missing,omitempty"`
	// Lost names resources of the previous agent that were not stored, and are missing until an
	// upstream answers.
	Lost []NotStored `json:"lost,omitempty"`
}

// NotStored is a resource that would be missing after a restart without the control plane.
type NotStored struct {
	Type   string `json:"type"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Group is a group of clients and its cache (design.md section 3).
type Group struct {
	NodeID    string     `json:"node_id"`
	Cluster   string     `json:"cluster"`
	UserAgent string     `json:"user_agent"`
	Upstreams []Upstream `json:"upstreams"`
	Types     []Type     `json:"types"`
	// Contact is when an upstream last answered, possibly before the last restart; the zero time
	// for never.
	Contact time.Time `json:"contact,omitzero"`
	// NotServedFrom is when new clients are not served any more if no upstream answers until then
	// (--max-stale); the zero time for never.
	NotServedFrom time.Time `json:"not_served_from,omitzero"`
	// Opened is when the group was created.
	Opened time.Time `json:"opened,omitzero"`
	// Dangling are the first clusters that routes and listeners lead to and that are not there, and
	// DanglingTotal counts all of them. The server sets them.
	Dangling      []Dangling `json:"dangling,omitempty"`
	DanglingTotal int        `json:"dangling_total,omitempty"`
	// Restored counts the resources that were read from disk and not mentioned by an upstream since.
	Restored int `json:"restored"`
	// Fallback lists what is held back because Envoy crashed with it; nil for nothing.
	Fallback *Fallback `json:"fallback,omitempty"`
	// Bytes is the size of the resources that are cached, in their newest versions.
	Bytes int64 `json:"bytes"`
	// HistoryBytes is the size of the earlier versions that are kept.
	HistoryBytes int64 `json:"history_bytes"`
	// Freeze is what is frozen; nil for nothing.
	Freeze *Freeze `json:"freeze,omitempty"`
	// Seed is the seed that is served, or why none is; nil if none was needed.
	Seed *Seed `json:"seed,omitempty"`
	// OtherNode is since when a client is connected that has the node id, and another cluster, locality or metadata than the control plane
	// was told; the zero time for none. It gets what the control plane makes for the other.
	OtherNode time.Time `json:"other_node,omitzero"`
	// ShortLives counts the Envoys that disconnected within a minute of their start, in a row; it is
	// 0 for fewer than three within ten minutes. ShortLivesTotal counts all of them. If Envoy is the
	// agent's child, its exits are counted instead.
	ShortLives      int    `json:"short_lives,omitempty"`
	ShortLivesTotal uint64 `json:"short_lives_total"`
}

// Seed is the seed of a group: what an agent of the same role had published, which is served because no control plane
// answers and nothing is stored.
type Seed struct {
	Used bool   `json:"used"`
	Role string `json:"role,omitempty"`
	// At is the time of the seed, and Since is when it was first served.
	At    time.Time `json:"at,omitzero"`
	Since time.Time `json:"since,omitzero"`
	// Resources counts what was taken from it.
	Resources int `json:"resources,omitempty"`
	// SignedBy is the fingerprint of the key that signed it; "" if no signature was needed.
	SignedBy string `json:"signed_by,omitempty"`
	// Error is why no seed could be used.
	Error string `json:"error,omitempty"`
}

// Publishing is the state of the seed that the agent publishes.
type Publishing struct {
	Place string `json:"place"`
	// At is when this agent last published, and There the time of the seed that is there, by whichever agent.
	At    time.Time `json:"at,omitzero"`
	There time.Time `json:"there,omitzero"`
	// Bytes is the size of what this agent last published.
	Bytes int `json:"bytes,omitempty"`
	// Waits is why there is nothing to publish yet.
	Waits string `json:"waits,omitempty"`
	// Error is why the last attempt failed, and Failures counts all that did.
	Error    string `json:"error,omitempty"`
	Failures uint64 `json:"failures"`
}

// Dangling is a cluster that a resource leads to and that is not there.
type Dangling struct {
	Type    string `json:"type"` // the short name, "RDS"
	Name    string `json:"name"`
	Cluster string `json:"cluster"`
	// Since is when the resource came to lead there, or the cluster was removed, whichever is later; the zero
	// time if neither has happened since the start.
	Since time.Time `json:"since,omitzero"`
}

// Fallback describes what is held back after crashes of Envoy. In place of each suspect, its stable
// version, with which a client has run for a minute, is served, if there is one.
type Fallback struct {
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`
	Suspects []Suspect `json:"suspects"`
}

// Suspect is one resource that is held back.
type Suspect struct {
	// Type is the customary short name, "CDS".
	Type string `json:"type"`
	Name string `json:"name"`
}

// Upstream is one source of a group.
type Upstream struct {
	Name string `json:"name"`
	// Priority counts from 0, which is tried first.
	Priority int `json:"priority"`
	// Active is set if the group takes its resources from it.
	Active bool `json:"active"`
	// Connected is set if a stream to it is open.
	Connected bool `json:"connected"`
	// Stale is set if it is in use and has sent nothing for --stale-after.
	Stale bool `json:"stale"`
	// Since is when Connected last changed.
	Since       time.Time `json:"since,omitzero"`
	LastMessage time.Time `json:"last_message,omitzero"`
	LastError   string    `json:"last_error,omitempty"`
	// Route says through which proxy it was reached last, or why directly; "" without a proxy.
	Route string `json:"route,omitempty"`
	// Attempts counts the attempts since the last message.
	Attempts int `json:"attempts"`
}

// Type describes the resources of one type in the cache of a group.
type Type struct {
	// Type is the customary short name, "CDS"; TypeURL the full one.
	Type    string `json:"type"`
	TypeURL string `json:"type_url"`
	// Knowledge is "unknown", "partial" or "complete" (xds.Knowledge) if clients subscribe to the
	// wildcard, and "by name" if they subscribe to names.
	Knowledge string `json:"knowledge"`
	// Resources counts by standing ("pending", "accepted", "suspect", "rejected").
	Resources map[string]int `json:"resources"`
	// Subscriptions counts the names that clients subscribe to, the wildcard as one. Leased counts
	// those that are kept for clients that disconnected.
	Subscriptions int `json:"subscriptions"`
	Leased        int `json:"leased"`
	// NotAccepted is when a source sent the oldest of the contents that are rejected or suspect; the zero time for
	// none. NotAcceptedNames are some of them, and NotAcceptedReason is why clients NACKed the first. NotAcceptedNew counts those of which
	// clients get nothing, since they accepted no earlier one. The server sets them.
	NotAccepted       time.Time `json:"not_accepted_since,omitzero"`
	NotAcceptedNames  []string  `json:"not_accepted_names,omitempty"`
	NotAcceptedReason string    `json:"not_accepted_reason,omitempty"`
	NotAcceptedNew    int       `json:"not_accepted_new,omitempty"`
	// Errors counts the names for which an upstream reported an error, did not answer, or sent an
	// unusable resource, and has not corrected it since.
	Errors int `json:"errors"`
	// ErrorsSince is since when there are some, WithheldSince since when removals are held back.
	ErrorsSince   time.Time `json:"errors_since,omitzero"`
	WithheldSince time.Time `json:"withheld_since,omitzero"`
	// WithheldUntil is when the control plane is asked for what confirms what is held back, and Had how many
	// resources clients have meanwhile that are not empty; the zero values while nothing is held back.
	WithheldUntil time.Time `json:"withheld_until,omitzero"`
	Had           int       `json:"had,omitempty"`
	// ErrorNames are some of these names; the server sets it.
	ErrorNames []string `json:"error_names,omitempty"`
	// ErrorReason is the error of the first of ErrorNames.
	ErrorReason string `json:"error_reason,omitempty"`
	// Withheld counts removals that are held back because they look like an accident, and what was emptied and
	// is. Expired counts
	// the resources whose TTL expired since the start.
	Withheld int `json:"withheld"`
	// ChangesWithheld counts the other changes that are held back with them.
	ChangesWithheld int    `json:"changes_withheld,omitempty"`
	Expired         uint64 `json:"expired"`
	// LastUpdate is when a source last sent an update of the type.
	LastUpdate time.Time `json:"last_update,omitzero"`
}

// Stream is one open stream of a client.
type Stream = downstream.StreamState

// FileError is the error of a file of a file source; its last valid content stays in use.
type FileError struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// Tries is how a resource that clients rejected is offered to them again.
type Tries struct {
	// Together says that it was rejected with others of which it is not known which is to blame, Accepted that another client has accepted it,
	// and Killed that a client ended while it was tried.
	Together bool `json:"together,omitempty"`
	Accepted bool `json:"accepted_by_another,omitempty"`
	Killed   bool `json:"killed,omitempty"`
	// Offers counts how often it was, since it was first rejected. Last is when it was last rejected.
	Offers int       `json:"offers"`
	Last   time.Time `json:"last"`
	// Since is since when it is offered; the zero time if it is not now. Next is when it is the next time, if nothing else happens; the zero
	// time if that needs a reason: that Envoy accepts something else, or that the control plane repeats it. After is before when no such
	// reason counts.
	Since time.Time `json:"since,omitzero"`
	Next  time.Time `json:"next,omitzero"`
	After time.Time `json:"after"`
}

// Line says it in words.
func (t *Tries) Line(now time.Time) string {
	return t.kind() + t.offered(now)
}

// kind says what is particular of it.
func (t *Tries) kind() string {
	switch {
	case t.Killed:
		return "an Envoy ended within a minute of being sent it, and may have ended because of it, so that no other is: "
	case t.Accepted:
		return "one client accepted it, and another did not; "
	case t.Together:
		return "rejected with others; "
	}
	return ""
}

func (t *Tries) offered(now time.Time) string {
	often := "not offered again yet"
	if t.Offers > 0 {
		often = "offered again " + plural(t.Offers, "time")
	}
	switch {
	case !t.Since.IsZero():
		return often + ", and now"
	case t.Next.After(now):
		return often + ", next in " + age(t.Next, now)
	case !t.Next.IsZero():
		return often + ", next as soon as it may be"
	case t.After.After(now):
		return often + ", without a cause not within " + age(t.After, now)
	}
	return often + ", next when something that it refers to changes, Envoy accepts something else, or the control plane repeats it"
}

// Resource is one resource of one group. The tags are those of a dump.
type Resource struct {
	// Group is the id of the group's node.
	Group string `json:"-"`
	// Type is the type URL.
	Type string `json:"type_url"`
	Name string `json:"name"`
	// Version is the content hash, UpstreamVersion the version from Source.
	Version         string     `json:"version"`
	UpstreamVersion string     `json:"upstream_version,omitempty"`
	Source          string     `json:"source,omitempty"`
	Standing        xds.Status `json:"standing"`
	// Reason is the reason of the client's NACK of this content.
	Reason string `json:"reason,omitempty"`
	// Tries is how it is offered again; nil if no client NACKed it.
	Tries *Tries `json:"tries,omitempty"`
	// Build accepted BuildVersion last, another content than other clients: its clients are served that first.
	Build        string `json:"build,omitempty"`
	BuildVersion string `json:"build_version,omitempty"`
	// BuildEnded says that one of them ended while it was offered the newest content: the next ones are not, for a day.
	BuildEnded bool `json:"build_ended,omitempty"`
	// Error is the last error of the upstream for this resource: one that it reported, or an unusable
	// body. The cached content stays in use.
	Error string `json:"error,omitempty"`
	// GoodVersion is the version that clients get, if it is another one; Good is its content.
	GoodVersion string     `json:"good_version,omitempty"`
	Good        *anypb.Any `json:"-"`
	// Deadline is when the resource expires; the zero time for never.
	Deadline time.Time `json:"deadline,omitzero"`
	// Changed is when a source last changed the content; the zero time if none has since the start.
	Changed time.Time `json:"changed,omitzero"`
	// Restored says that it was read from disk and that no upstream has confirmed it since,
	// RemovalHeldBack that an upstream removed it and the guard of removals holds that back, and ChangeHeldBack that it changed it
	// and that is held back with what it led to.
	Restored        bool `json:"restored,omitempty"`
	RemovalHeldBack bool `json:"removal_held_back,omitempty"`
	ChangeHeldBack  bool `json:"change_held_back,omitempty"`
	// Going says that an upstream removed it, which takes effect in a moment.
	Going bool `json:"-"`
	// Frozen says that clients are not served this version because of a freeze, but GoodVersion, or
	// nothing if that is empty. Without a Version an upstream removed the resource.
	Frozen bool `json:"frozen,omitempty"`
	// FellBack says the same of what is held back because Envoy crashed with it.
	FellBack bool `json:"fell_back,omitempty"`
	// Body is the content, which must not be modified; nil for an alias without a resource.
	Body *anypb.Any `json:"-"`
}

// Served reports whether clients get the resource, in whichever version.
func (r *Resource) Served() bool { return r.served() != nil }

// served returns the content that clients get.
func (r *Resource) served() *anypb.Any {
	if r.GoodVersion != "" && r.Good != nil || r.Frozen || r.FellBack {
		return r.Good
	}
	return r.Body
}
