// Package downstream serves a state to xDS clients: the aggregated discovery service and the
// services of single types, SotW and Delta, on a Unix socket or on TCP. The agent and the built-in
// control plane serve with it.
//
// It guarantees that a stream is a view of the state and not a queue: a slow client costs only
// the names that changed, and gets the newest versions. It holds no lock while sending, and
// passes each ACK and NACK of a client to the state. The State behind the interface decides what
// is known and which versions may be sent; package session implements the protocol of one stream.
package downstream

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// State is the state that a Server serves.
type State interface {
	// Attach opens the view of a stream after the client sent its Node. If the client cannot be
	// served, the error is a gRPC status, which the client receives.
	Attach(c Client) (View, error)
}

// Client describes the client of a stream.
type Client struct {
	Stream uint64 // the number of the stream in this server
	// Node is the Node of the client's first request; never nil.
	Node *corev3.Node
	Form xds.Form
	// Peer is the network address of the client, "" on a Unix socket.
	Peer string
	// Process is the process of a client on a Unix socket, no other has ever the same; "" if it is not visible, as in another PID namespace.
	Process string
	// Identity is what Config.Identify said of the client; nil without it.
	Identity any
	// Fetch is set for a single request without a stream.
	Fetch bool
	// Gone is closed when the client has gone, at the latest when its call ends; nil for never.
	Gone <-chan struct{}
	// Agent is set if the client is an agent, which keeps what it has.
	Agent bool
}

// View is the state as one stream sees it. Its methods may be called concurrently.
type View interface {
	// Changed receives a value whenever Begin would return a change.
	Changed() <-chan struct{}
	// Begin returns the state at one moment, and what changed since the last Begin. The state
	// does not change until the same goroutine calls End, which it must do soon, because all
	// other streams wait for it.
	Begin() (state session.View, changed []xds.Change)
	End()
	// HadWildcard reports whether any client of the same state ever subscribed to the wildcard of a
	// type (protocol.md V9).
	HadWildcard(typeURL string) bool
	Subscribe(change xds.SubscriptionChange)
	// Sent is called when a response is about to be handed to the transport; began is when it began to be
	// built.
	Sent(resp *session.Response, began time.Time)
	Answer(answer session.Answer)
	// Progress records up to which revision the client has answered.
	Progress(p session.Progress)
	Close(end End)
}

// End describes how a stream ended.
type End struct {
	// Unanswered lists, by type, the names in responses in flight.
	Unanswered map[string][]string
	// ByServer is set if the server ended the stream: because it rejected a request, stops, or sends the client to another connection.
	ByServer bool
}

// Fetched is the form that is passed to Observer for responses to polls. A client that polls does
// not answer with an ACK or NACK.
const Fetched = "fetch"

// Observer counts the events between a server and its clients.
type Observer interface {
	StreamOpened(form string)
	StreamClosed(form string)
	// Pushed counts a response. took is how long it took to build it and to hand it to the transport; 0
	// for a poll.
	Pushed(typeURL, form string, resources int, took time.Duration)
	Answered(typeURL, form string, nack bool)
	LimitExceeded(limit string)
	// PassedThrough counts a call of a service that holdfast does not serve itself when it ends.
	// result is PassedOK, PassedError or NotPassed; service is one of Config.PassThrough, or "other".
	PassedThrough(service, result string)
}

// NoObserver ignores all events. Embed it to observe some.
type NoObserver struct{}

func (NoObserver) StreamOpened(string)                       {}
func (NoObserver) StreamClosed(string)                       {}
func (NoObserver) Pushed(string, string, int, time.Duration) {}
func (NoObserver) Answered(string, string, bool)             {}
func (NoObserver) LimitExceeded(string)                      {}
func (NoObserver) PassedThrough(string, string)              {}
