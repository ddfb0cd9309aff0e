// Package upstream holds the sources that write to the state (an ADS server over SotW or Delta, a
// directory of files): they turn what a control plane says into updates, and the
// Failover that chooses among several of them in order of priority.
//
// It promises that only well-formed resources reach the state, each with its
// name and content hash; that a source which goes away removes nothing; and that
// every nonce of a control plane gets one answer. It does not decide what is
// served: that is the state's, behind the interfaces State and Subscriptions.
//
// Everything that runs is owned by a Run method, which returns when all its
// goroutines have ended.
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
	// Node is the identity that the group presents to a control plane.
	Node() *corev3.Node
	// Apply takes in one answer. verdict, which may be nil, is told what the
	// clients make of it: nil for an ACK, their error for a NACK (design.md
	// I6). It is called at least once, possibly before Apply returns and from
	// any goroutine; once more if a NACK comes after an ACK. It must not block
	// and must not call the State.
	Apply(u xds.Update, verdict func(error))
	// Synced says that the source has told all it has of a wildcard type: from
	// now on what is absent is known to be absent (design.md section 3). asked is as
	// in Update.
	Synced(source, typeURL string, asked time.Time)
	// AskAgain returns since when a source is to ask anew for everything, on a new
	// stream, because what it removed is held back until it confirms it; the zero time
	// for no need to. A source that has asked since need not. The channel of each
	// Interest gets a value when it changes.
	AskAgain() time.Time
	// Held lists what is held and still subscribed of a type, with the version
	// that this source issued for it, "" where it issued none (design.md I2).
	Held(source, typeURL string) map[string]string
	// Nacked lists what this source is to be asked for again: what it gave of a type, and is
	// held, and clients NACKed; xds.Wildcard if an update was refused as a whole.
	Nacked(source, typeURL string) []string
	// Body returns what is held of a type under a name, whoever sent it; nil for nothing. It
	// is called with each resource that comes, to share the body with what came before.
	Body(typeURL string, name []byte) *anypb.Any
	// Subscriptions opens a view of what the clients subscribe to. Close it.
	Subscriptions() Subscriptions
}

// Subscriptions is a view of the union of all subscriptions of a group.
type Subscriptions interface {
	// Changed holds a value whenever Take has something new to say.
	Changed() <-chan struct{}
	// Changes returns what changed since the last Take, in push order; the first
	// Take returns everything.
	Changes() []xds.SubscriptionChange
	// Close ends the view.
	Close()
}

// Source is one upstream.
type Source interface {
	// Name identifies the source in logs, metrics and versions. Two sources of
	// one agent have different names.
	Name() string
	// Run writes to the state until ctx ends or the source fails, and returns why. It calls
	// answered once, at the first answer and before that is applied; when
	// answered fails, another source was preferred: Run returns its error and
	// has applied nothing.
	Run(ctx context.Context, state State, answered func() error) error
}
