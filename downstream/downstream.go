// Package downstream serves a state to xDS clients: the aggregated discovery
// service and those of single types, SotW and Delta, on a Unix socket or on TCP. It is the one server of
// holdfast: the agent serves its state with it, and the built-in control plane
// its directory.
//
// It promises that a stream is a view of the state and not a queue: a slow client
// costs the names that changed, and sees the newest; that no lock is held while
// sending; and that what a client says of a response reaches the state. What is
// known and what may be sent is the state's affair, behind the interface State;
// the protocol of one stream is that of the package session.
package downstream

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// State is what a Server serves.
type State interface {
	// Attach opens the view of a stream whose client has said who it is. Its error, a gRPC
	// status, is what the client gets where it cannot be served.
	Attach(c Client) (View, error)
}

// Client is who is at the other end of a stream.
type Client struct {
	// Stream numbers the streams of a server.
	Stream uint64
	// Node is what the client said on its first request; never nil.
	Node *corev3.Node
	Form xds.Form
	// Peer is the network address of the client, "" on a Unix socket.
	Peer string
	// Fetch says that it is one request without a stream.
	Fetch bool
}

// View is the state as one stream sees it. Its methods may be called concurrently.
type View interface {
	// Changed holds a value whenever Begin has something new to return.
	Changed() <-chan struct{}
	// Begin returns the state at one moment, and what changed since the last Begin. The state
	// stays so until End, which the same goroutine calls soon: all other streams wait for it.
	Begin() (v session.View, changed []xds.Change)
	End()
	// HadWildcard reports whether a client of this kind ever subscribed to
	// everything of a type (protocol.md V9).
	HadWildcard(typeURL string) bool
	// Subscribe takes in a change of the subscription.
	Subscribe(in xds.SubscriptionChange)
	// Answer takes in what the client made of a response.
	Answer(v session.Answer)
	// Progress takes in how far the client has come.
	Progress(p session.Progress)
	// Close ends the view.
	Close(end End)
}

// End is how a stream ended.
type End struct {
	// Unanswered lists, by type, the names in responses that the client has not
	// answered.
	Unanswered map[string][]string
	// ByServer says that the server ended the stream because of a request that it does
	// not accept.
	ByServer bool
}

// Fetched is the form, as Observer is told, of what a client that polls is sent: it does not
// answer.
const Fetched = "fetch"

// Observer counts what passes between a server and its clients.
type Observer interface {
	StreamOpened(form string)
	StreamClosed(form string)
	Pushed(typeURL, form string, resources int)
	Answered(typeURL, form string, nack bool)
	// LimitExceeded counts what went beyond a limit.
	LimitExceeded(limit string)
	// PassedThrough counts a call of a service that is not served here when it ends, with
	// PassedOK, PassedError or NotPassed. service is one of Config.PassThrough, or "other".
	PassedThrough(service, result string)
}

type nobody struct{}

func (nobody) StreamOpened(string)           {}
func (nobody) StreamClosed(string)           {}
func (nobody) Pushed(string, string, int)    {}
func (nobody) Answered(string, string, bool) {}
func (nobody) LimitExceeded(string)          {}
func (nobody) PassedThrough(string, string)  {}
