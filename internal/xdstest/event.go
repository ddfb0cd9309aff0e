package xdstest

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/metadata"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Protocol is one of the two forms of ADS.
type Protocol string

// The wire forms.
const (
	SotW  Protocol = "sotw"
	Delta Protocol = "delta"
)

// Protocols lists both forms, for tests that apply to both.
func Protocols() []Protocol { return []Protocol{SotW, Delta} }

// Kind is the kind of an Event.
type Kind string

const (
	// Opened and Closed are the beginning and the end of a stream. A rejected stream has neither.
	Opened Kind = "opened"
	Closed Kind = "closed"
	// Subscribe is a request that is neither an ACK nor a NACK: a first request, a change of names, or
	// a repetition (protocol.md V1).
	Subscribe Kind = "subscribe"
	// Ack and Nack may also change the subscription.
	Ack  Kind = "ack"
	Nack Kind = "nack"
)

// Event is one request to a control plane, or the beginning or end of a stream.
type Event struct {
	// Stream is the number of the stream of the ControlPlane, counted from 1.
	Stream   int
	Protocol Protocol
	Kind     Kind
	// Type is the type URL, "" for Opened and Closed.
	Type string
	// Version is SotW's version_info.
	Version string
	Nonce   string
	// Names are SotW's resource_names in their original order; Subscribe, Unsubscribe and Initial
	// (initial_resource_versions) are Delta's.
	Names                  []string
	Subscribe, Unsubscribe []string
	Initial                map[string]string
	// Error is the error_detail of a Nack.
	Error *statuspb.Status
	// Node is the node of the message: nil in most messages after the first.
	Node *corev3.Node
	// Metadata is the gRPC metadata of the stream.
	Metadata metadata.MD
}

// String renders the event as a line of a transcript, names sorted.
func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s %s", e.Stream, e.Protocol, e.Kind)
	if e.Kind == Opened || e.Kind == Closed {
		return b.String()
	}
	b.WriteString(" " + xds.Short(e.Type))
	field := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, " %s=%s", key, value)
		}
	}
	field("version", e.Version)
	field("nonce", e.Nonce)
	if e.Protocol == SotW {
		field("names", list(e.Names))
	}
	field("sub", list(e.Subscribe))
	field("unsub", list(e.Unsubscribe))
	initial := make([]string, 0, len(e.Initial))
	for name, version := range e.Initial {
		initial = append(initial, name+":"+version)
	}
	field("irv", list(initial))
	if e.Error != nil {
		fmt.Fprintf(&b, " error=%q", e.Error.GetMessage())
	}
	if e.Node != nil {
		field("node", e.Node.GetId())
	}
	return b.String()
}

// list returns the sorted names for a transcript; "" for none.
func list(names []string) string {
	if len(names) == 0 {
		return ""
	}
	sorted := slices.Clone(names)
	slices.Sort(sorted)
	return "[" + strings.Join(sorted, " ") + "]"
}

// Answer is one response that a control plane sent.
type Answer struct {
	Stream   int
	Protocol Protocol
	Type     string
	// Version is SotW's version_info or Delta's system_version_info.
	Version, Nonce string
	// Names and Removed list the resources put and, in Delta, removed.
	Names, Removed []string
}

// String renders the answer as a line of a transcript.
func (a Answer) String() string {
	s := fmt.Sprintf("%d %s answer %s nonce=%s %s", a.Stream, a.Protocol, xds.Short(a.Type), a.Nonce, list(a.Names))
	if len(a.Removed) > 0 {
		s += " removed=" + list(a.Removed)
	}
	return s
}
