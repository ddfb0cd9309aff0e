// Package upstream contains the sources that write to the state (an ADS server over SotW or
// Delta, a directory of files). They convert what a control plane sends into updates. Its
// Failover chooses among several sources in order of priority.
//
// It guarantees that only well-formed resources reach the state; that a source that becomes
// unreachable removes nothing; and that every nonce of a control plane gets one ACK or NACK. It does
// not decide what is served: the State does. Every Run method returns when all goroutines that it
// started have ended.
package upstream

import (
	"context"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// State is the state of one group of clients, as a source sees it.
type State interface {
	// Node returns the Node that the group presents to a control plane.
	Node() *corev3.Node
	// Apply applies one update. answer, which may be nil, is called with the clients' answer:
	// nil for an ACK, their error for a NACK (design.md I6). It is called at least once, possibly
	// before Apply returns and from any goroutine; once more if a NACK comes after an ACK. It
	// must not block and must not call the State.
	Apply(update xds.Update, answer func(error))
	// Synced records that the source has sent all resources of a wildcard type: from now on a
	// missing resource is known not to exist (design.md section 3). requestedAt is
	// Update.RequestedAt.
	Synced(source, typeURL string, requestedAt time.Time)
	// Agreed records that the source has the versions of a type that Cached returned, and has said nothing of them because of that.
	Agreed(source, typeURL string)
	// RequestAgain returns a time: a source whose stream was opened before it must request
	// everything again on a new stream, because removals are delayed until they are confirmed. It
	// is the zero time while no removal is delayed. The channels of all Subscriptions receive a
	// value when the time changes.
	RequestAgain() time.Time
	// AgentReport returns what holdfast-mesh is told of the agent. Subscriptions.Changed gets a value
	// when it changes.
	AgentReport() xds.AgentReport
	// Cached returns the names of the cached resources of a type that are still subscribed, each
	// with the version that this source issued for it; "" if it issued none (design.md I2).
	Cached(source, typeURL string) map[string]string
	// Nacked lists the cached resources of a type that this source sent and clients NACKed, which
	// it must request again; xds.Wildcard if an update was NACKed as a whole.
	Nacked(source, typeURL string) []string
	// Body returns the cached body of a type and name, whichever source sent it; nil for none. It
	// is called for each resource that is received, to share an unchanged body.
	Body(typeURL string, name []byte) *anypb.Any
	// Subscriptions opens a view of the clients' subscriptions. The caller must close it.
	Subscriptions() Subscriptions
}

// Subscriptions is a view of the union of all subscriptions of a group.
type Subscriptions interface {
	// Changed receives a value whenever Changes would return a change.
	Changed() <-chan struct{}
	// Changes returns what changed since the last call, in push order; the first call returns
	// everything.
	Changes() []xds.SubscriptionChange
	// Optional returns names of a type that a request in state of the world may leave out: gone at once, because they are endpoints of clusters
	// that have gone, and leased if the server is silent, because no client subscribes to them now. Changed receives a value when one is
	// gone no longer.
	Optional(typeURL string) (gone, leased []string)
	Close()
}

// Health is the health of the workload beside the agent.
type Health interface {
	// Health returns the health now, and a channel that is closed when it changes.
	Health() (now xds.Health, changed <-chan struct{})
}

// Source is one upstream.
type Source interface {
	// Name identifies the source in logs, metrics and versions. Two sources of one agent have
	// different names.
	Name() string
	// Run writes to the state until ctx ends or the source fails, and returns why. It calls
	// answered once, at the first response and before that is applied. If answered fails, another
	// source was preferred: Run then returns its error and has applied nothing.
	Run(ctx context.Context, state State, answered func() error) error
}
