// Package admin shows an agent to the people and programs that look after it:
// health for the kubelet, metrics for Prometheus, status and dump for a person,
// over HTTP on a Unix socket or a TCP port.
//
// It promises that no secret leaves it (a dump is redacted), that what changes
// the process can be asked for on a Unix socket only, and that the health
// listener, which a whole cluster may reach, answers health and metrics and
// nothing else.
//
// What it shows it reads from a State, which the agent implements; the package
// knows neither the cache nor the protocol. Types of the JSON forms (Status,
// Resource) grow by new fields; a field is never renamed.
//
// All exported methods may be called concurrently.
package admin

import (
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// State is what the surface reads. Its methods are called concurrently, at every
// request, and must not block.
type State interface {
	// Live returns nil while the process can do its work, else why it must be
	// restarted. A control plane that is away is no reason.
	Live() error
	// Ready returns everything that must hold for clients to be served, in an
	// order for people.
	Ready() []Condition
	// Started reports whether the start is over: from then on Ready counts.
	Started() bool
	Status() Status
	// Resources visits what the filter admits, in push order of the types and
	// then by name. It may take long: no lock is held while the visitor runs.
	Resources(f Filter) iter.Seq[Resource]
}

// Condition is one thing that must hold for the agent to be ready.
type Condition struct {
	// Name is short and constant, such as "socket" or "upstream".
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Reason says, where it does not hold, what is wrong and what to do.
	Reason string `json:"reason,omitempty"`
}

// Filter chooses resources. Empty fields admit everything.
type Filter struct {
	// Type is a type URL.
	Type string
	Name string
}

// Admits reports whether a resource passes the filter.
func (f Filter) Admits(typeURL, name string) bool {
	return (f.Type == "" || f.Type == typeURL) && (f.Name == "" || f.Name == name)
}

// Status is what the agent knows, without the resources themselves.
type Status struct {
	// Admin is the --admin that a command needs to ask this agent; "" for the default. It is set
	// by whoever writes text of it.
	Admin   string    `json:"-"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Now is when the status was taken; the server sets it.
	Now time.Time `json:"now,omitzero"`
	// Conditions is what Ready returned; the server sets it.
	Conditions []Condition `json:"conditions"`
	Groups     []Group     `json:"groups"`
	Streams    []Stream    `json:"streams"`
	// Files lists what a file source could not use.
	Files []FileError `json:"files,omitempty"`
	// Storage is the last known good on disk; nil where there is none.
	Storage *Storage `json:"storage,omitempty"`
	// Envoy is the one that the agent runs; nil where it runs elsewhere.
	Envoy *Envoy `json:"envoy,omitempty"`
	// Certificates are those that the agent makes; nil where it makes none.
	Certificates *Certificates `json:"certificates,omitempty"`
}

// Envoy is the one that the agent runs as its child.
type Envoy struct {
	PID   int `json:"pid"` // 0 while none runs
	Epoch int `json:"epoch"`
	// Version and State are what it says of itself.
	Version string    `json:"version,omitempty"`
	State   string    `json:"state,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Restarts counts crashes, LastExit is the code of the last one: 128 and the
	// signal where it was killed.
	Restarts int  `json:"restarts"`
	LastExit int  `json:"last_exit_code"`
	Draining bool `json:"draining"`
}

// Storage is the last known good on disk.
type Storage struct {
	Dir       string `json:"dir"`
	Encrypted bool   `json:"encrypted"`
	// Durable says that changes go to disk; otherwise they are in memory only.
	Durable    bool   `json:"durable"`
	Generation uint64 `json:"generation"`
	Bytes      int64  `json:"bytes"`
	// Committed is when something was last written.
	Committed time.Time `json:"committed,omitzero"`
	// Error is the last problem since everything was well, Since when the first
	// one came.
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since,omitzero"`
	// Aside lists files that are kept though they are not used: damaged, of
	// another identity, of a later version, or encrypted with another key.
	Aside []string `json:"aside,omitempty"`
	// Damage says what was wrong with the state that was read at the start; "" for nothing.
	Damage string `json:"damage,omitempty"`
	// NotStored counts what is missing after a restart without the control plane,
	// by the reason.
	NotStored map[string]int `json:"not_stored,omitempty"`
	// Skipped counts, by the reason, what was ever not stored or not used since the start, also
	// what is no longer missing; WriteErrors the writes that failed.
	Skipped     map[string]int `json:"skipped,omitempty"`
	WriteErrors uint64         `json:"write_errors"`
	// Missing names what is missing for the reasons in NotStored, not all where it is much.
	Missing []NotStored `json:"missing,omitempty"`
	// Lost names what was there before this agent started, was not stored, and is missing until
	// an upstream answers.
	Lost []NotStored `json:"lost,omitempty"`
}

// NotStored is a resource that is missing after a restart without the control plane.
type NotStored struct {
	Type   string `json:"type"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Group is the clients of one kind and what is held for them (design.md section 3).
type Group struct {
	NodeID    string     `json:"node_id"`
	Cluster   string     `json:"cluster"`
	UserAgent string     `json:"user_agent"`
	Upstreams []Upstream `json:"upstreams"`
	Types     []Type     `json:"types"`
	// Contact is when an upstream last answered; the zero time for never, also
	// before the last restart.
	Contact time.Time `json:"contact,omitzero"`
	// Opened is when the group began.
	Opened time.Time `json:"opened,omitzero"`
	// Restored counts what was read from disk and no upstream has spoken of since.
	Restored int `json:"restored"`
	// Fallback says what is held back because Envoy crashed with it; nil for nothing.
	Fallback *Fallback `json:"fallback,omitempty"`
	// ShortLives counts the Envoys that, one after the other, disconnected within a minute
	// of their start, 0 for fewer than three within ten minutes; ShortLivesTotal those of
	// all time. Of an Envoy that is the agent's child, its exits are counted instead.
	ShortLives      int    `json:"short_lives,omitempty"`
	ShortLivesTotal uint64 `json:"short_lives_total"`
}

// Fallback is what is held back after crashes of Envoy. The stable version of each
// suspect, which a client has lived with for a minute, is served in its place; where there
// is none, nothing is.
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
	// Active says that the group takes its resources from it.
	Active bool `json:"active"`
	// Connected says that a stream to it is open.
	Connected bool `json:"connected"`
	// Stale says that it is in use and has said nothing for --stale-after.
	Stale bool `json:"stale"`
	// Since is when Connected last changed.
	Since       time.Time `json:"since,omitzero"`
	LastMessage time.Time `json:"last_message,omitzero"`
	LastError   string    `json:"last_error,omitempty"`
	// Attempts counts the attempts since a message last came.
	Attempts int `json:"attempts"`
}

// Type is what a group holds of one type.
type Type struct {
	// Type is the customary short name, "CDS"; TypeURL the full one.
	Type    string `json:"type"`
	TypeURL string `json:"type_url"`
	// Knowledge is "unknown", "partial" or "complete" (xds.Knowledge) where
	// clients ask for everything, and "by name" where they name what they want.
	Knowledge string `json:"knowledge"`
	// Resources counts by standing ("pending", "accepted", "suspect", "rejected").
	Resources map[string]int `json:"resources"`
	// Subscriptions counts names (the wildcard is one) that clients subscribe
	// to, Leased those that are kept for clients that went away.
	Subscriptions int `json:"subscriptions"`
	Leased        int `json:"leased"`
	// Errors counts the names that an upstream reported an error about, or sent in a
	// form that could not be used, and has not mended since.
	Errors int `json:"errors"`
	// Withheld counts removals that are held back because they look like an
	// accident, Expired what outlived its TTL since the start.
	Withheld int    `json:"withheld"`
	Expired  uint64 `json:"expired"`
	// LastUpdate is when a source last said anything of the type.
	LastUpdate time.Time `json:"last_update,omitzero"`
}

// Stream is one open stream of a client.
type Stream struct {
	ID     uint64 `json:"id"`
	NodeID string `json:"node_id"`
	// Peer is the client's address, "" on a Unix socket.
	Peer string `json:"peer,omitempty"`
	// Protocol is "sotw" or "delta".
	Protocol string    `json:"protocol"`
	Since    time.Time `json:"since,omitzero"`
	// Types lists the short names of the types that it asked for.
	Types []string `json:"types,omitempty"`
	// Subscriptions counts the names of all types together.
	Subscriptions int `json:"subscriptions"`
}

// FileError is what is wrong with a file of a file source; the last good content
// of the file stays in use.
type FileError struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// Resource is one resource of one group.
type Resource struct {
	// Group is the id of the group's node.
	Group string
	// Type is the type URL.
	Type, Name string
	// Version is the content hash, UpstreamVersion what Source called it.
	Version, UpstreamVersion string
	Source                   string
	Standing                 xds.Status
	// Reason is what the client said where it refused this content.
	Reason string
	// Error is what was last wrong with the resource above: an error that the
	// upstream reported, or a body that could not be used. What is held stays in
	// use.
	Error string
	// GoodVersion is the version that clients get, where it is another one;
	// Good is its content.
	GoodVersion string
	Good        *anypb.Any
	// Deadline is when the resource expires; the zero time for never.
	Deadline time.Time
	// Body is the content, never modified here; nil for an alias that resolves
	// to nothing.
	Body *anypb.Any
}
