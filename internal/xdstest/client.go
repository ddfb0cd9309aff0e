package xdstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Full gRPC methods of ADS.
const (
	sotwADS  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	deltaADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
)

// ErrDisconnected is what a Client's stream ended with when Disconnect ended it.
var ErrDisconnected = errors.New("xdstest: client disconnected")

// ClientConfig says what a Client is. The zero value is an Envoy on SotW ADS
// with node id "xdstest", which accepts everything.
type ClientConfig struct {
	// Protocol is SotW unless set.
	Protocol Protocol
	// Method is the full gRPC method, ADS unless set: "/package.Service/Method"
	// of a service of one type, which has the same messages.
	Method string
	// Node is sent with the first message of each stream.
	Node *corev3.Node
	// Manual leaves every verdict, and the taking in of what was received, to
	// Ack and Nack. Otherwise each answer gets its verdict at once.
	Manual bool
	// Reject returns why a resource is not acceptable, nil when it is. It is
	// called with the client locked and must not call it.
	Reject func(typeURL string, r *discoveryv3.Resource) error
}

// Received is one answer that a Client got.
type Received struct {
	// Stream numbers the client's streams from 1.
	Stream int
	Type   string
	// Version is SotW's version_info or Delta's system_version_info.
	Version, Nonce string
	// Resources are Delta's as they came. SotW's are unwrapped: Name is set, and
	// Version is the wrapper's or "".
	Resources []*discoveryv3.Resource
	Removed   []string
	// Identifier is control_plane.identifier.
	Identifier string
	// Err is why the client NACKed the answer by itself; nil otherwise.
	Err error
}

// Names lists the resources of the answer in its order.
func (r Received) Names() []string {
	names := make([]string, len(r.Resources))
	for i, w := range r.Resources {
		names[i] = w.GetName()
	}
	return names
}

// String renders the answer as a line of a transcript.
func (r Received) String() string {
	s := fmt.Sprintf("%d %s version=%s nonce=%s %s", r.Stream, xds.Short(r.Type), r.Version, r.Nonce, list(r.Names()))
	if len(r.Removed) > 0 {
		s += " removed=" + list(r.Removed)
	}
	if r.Err != nil {
		s += fmt.Sprintf(" rejected: %v", r.Err)
	}
	return s
}

// Client is an xDS client that subscribes as a script says and otherwise behaves
// as Envoy 1.40 was seen to: it says again what it holds on a new stream
// (protocol.md 11.2), applies the good part of an answer that it NACKs (V6), and
// keeps what it has when its stream ends. Not modelled are Envoy's timers, its
// warming (protocol.md V2; Repeat does V1) and the expiry of TTLs.
type Client struct {
	conn   grpc.ClientConnInterface
	config ClientConfig
	signal signal

	// connecting is held while a stream is opened.
	connecting sync.Mutex

	mu       sync.Mutex
	types    map[string]*view
	order    []string // types as they were first subscribed to
	received []Received
	opened   int
	// out is that of the open stream, nil without one; cancel and ended belong
	// to the newest stream, ended is closed when all its goroutines have ended.
	out    *outbox
	cancel context.CancelCauseFunc
	ended  chan struct{}
	err    error
	// nodeSent says that the stream's first message was sent.
	nodeSent bool
}

// NewClient returns a client without a stream.
func NewClient(conn grpc.ClientConnInterface, config ClientConfig) *Client {
	if config.Protocol == "" {
		config.Protocol = SotW
	}
	if config.Method == "" {
		config.Method = sotwADS
		if config.Protocol == Delta {
			config.Method = deltaADS
		}
	}
	if config.Node == nil {
		config.Node = &corev3.Node{
			Id: "xdstest", Cluster: "xdstest", UserAgentName: "envoy",
		}
	}
	return &Client{conn: conn, config: config, types: make(map[string]*view)}
}

// SetNode changes the node for streams that are opened later.
func (c *Client) SetNode(node *corev3.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config.Node = node
}

// Connect opens a stream, which lives until ctx ends at the longest, and says on
// it what the client subscribes to and holds. It fails when one is open.
func (c *Client) Connect(ctx context.Context) error {
	c.connecting.Lock()
	defer c.connecting.Unlock()
	c.mu.Lock()
	if c.out != nil {
		c.mu.Unlock()
		return errors.New("xdstest: client is connected already")
	}
	c.mu.Unlock()
	c.Disconnect() // waits for the goroutines of a stream that ended by itself
	ctx, cancel := context.WithCancelCause(ctx)
	desc := &grpc.StreamDesc{StreamName: c.config.Method, ServerStreams: true, ClientStreams: true}
	stream, err := c.conn.NewStream(ctx, desc, c.config.Method, grpc.MaxCallRecvMsgSize(messageBytes))
	if err != nil {
		cancel(err)
		return fmt.Errorf("xdstest: client: opening a stream: %w", err)
	}
	out := newOutbox()
	ended := make(chan struct{})
	c.mu.Lock()
	c.opened++
	number := c.opened
	c.out, c.cancel, c.ended, c.err, c.nodeSent = out, cancel, ended, nil, false
	for _, typeURL := range c.order {
		c.types[typeURL].reconnected()
		if req := c.first(typeURL); req != nil {
			c.send(req)
		}
	}
	c.mu.Unlock()
	go c.run(ctx, cancel, stream, number, out, ended)
	return nil
}

// run is a stream's life. It closes ended.
func (c *Client) run(ctx context.Context, cancel context.CancelCauseFunc, stream grpc.ClientStream, number int, out *outbox, ended chan struct{}) {
	defer close(ended)
	received := make(chan struct{})
	var failed error // written before received is closed
	go func() {
		defer close(received)
		failed = c.receive(stream, number)
	}()
	if err := out.run(ctx, received, stream.SendMsg); err != nil && !errors.Is(err, io.EOF) {
		cancel(err) // io.EOF says that the receiver knows why the stream ended
	}
	<-received
	if cause := context.Cause(ctx); errors.Is(cause, ErrDisconnected) {
		failed = cause
	}
	c.mu.Lock()
	c.out, c.err = nil, failed
	c.mu.Unlock()
	cancel(failed)
	c.signal.raise()
}

func (c *Client) receive(stream grpc.ClientStream, number int) error {
	for {
		var r Received
		switch c.config.Protocol {
		case SotW:
			var m discoveryv3.DiscoveryResponse
			if err := stream.RecvMsg(&m); err != nil {
				return err
			}
			r = sotwReceived(&m)
		default:
			var m discoveryv3.DeltaDiscoveryResponse
			if err := stream.RecvMsg(&m); err != nil {
				return err
			}
			r = deltaReceived(&m)
		}
		r.Stream = number
		c.take(r)
		c.signal.raise()
	}
}

func sotwReceived(m *discoveryv3.DiscoveryResponse) Received {
	r := Received{
		Type: m.GetTypeUrl(), Version: m.GetVersionInfo(), Nonce: m.GetNonce(),
		Identifier: m.GetControlPlane().GetIdentifier(),
	}
	for _, body := range m.GetResources() {
		r.Resources = append(r.Resources, unwrap(body))
	}
	return r
}

func deltaReceived(m *discoveryv3.DeltaDiscoveryResponse) Received {
	return Received{
		Type: m.GetTypeUrl(), Version: m.GetSystemVersionInfo(), Nonce: m.GetNonce(),
		Resources: m.GetResources(), Removed: m.GetRemovedResources(),
		Identifier: m.GetControlPlane().GetIdentifier(),
	}
}

// take logs an answer and, unless verdicts are the script's, passes one.
func (c *Client) take(r Received) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.config.Manual {
		v := c.view(r.Type)
		bad := v.judge(c.config.Protocol, r, c.config.Reject)
		r.Err = bad.err()
		v.apply(c.config.Protocol, r, bad)
		c.verdict(r, r.Err)
	}
	c.received = append(c.received, r)
}

// Disconnect ends the stream, if there is one, and returns when its goroutines
// have ended. What the client holds stays.
func (c *Client) Disconnect() {
	c.mu.Lock()
	cancel, ended := c.cancel, c.ended
	c.mu.Unlock()
	if ended == nil {
		return
	}
	cancel(ErrDisconnected)
	<-ended
}

// Reconnect is Disconnect and Connect.
func (c *Client) Reconnect(ctx context.Context) error {
	c.Disconnect()
	return c.Connect(ctx)
}

// Close is Disconnect, for a defer. It leaves the connection open, which is the
// caller's.
func (c *Client) Close() { c.Disconnect() }

// Subscribe adds names to the subscription of a type; no names mean everything,
// said without naming "*", which only some types have (protocol.md 2.1). Without
// a stream it is said on the next one.
func (c *Client) Subscribe(typeURL string, names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, known := c.types[typeURL], slices.Contains(c.order, typeURL)
	if !known {
		v = c.view(typeURL)
		c.order = append(c.order, typeURL)
	}
	v.subscribe(names)
	switch {
	case c.out == nil:
	case !v.said:
		if req := c.first(typeURL); req != nil {
			c.send(req)
		}
	case c.config.Protocol == Delta:
		c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
	default:
		c.send(v.request(typeURL))
	}
}

// Unsubscribe takes names out of the subscription of a type and forgets what was
// held of them; "*" ends the wildcard.
func (c *Client) Unsubscribe(typeURL string, names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.view(typeURL)
	v.unsubscribe(names, c.out == nil)
	switch {
	case c.out == nil:
	case c.config.Protocol == Delta:
		c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesUnsubscribe: names})
	default:
		c.send(v.request(typeURL))
	}
}

// Repeat sends the newest SotW request of a type again, byte for byte, as Envoy
// does for EDS after a cluster changed (protocol.md V1). In Delta, where Envoy
// says nothing then, neither does it.
func (c *Client) Repeat(typeURL string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out != nil && c.config.Protocol == SotW {
		c.send(c.view(typeURL).request(typeURL))
	}
}

// Send sends a request of the script's own, as it is and without a node that it
// does not have: a *discoveryv3.DiscoveryRequest or DeltaDiscoveryRequest. The
// client's own view does not learn of it. It is lost without a stream.
func (c *Client) Send(request proto.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out != nil {
		c.out.put(outgoing{msg: request})
		c.nodeSent = true
	}
}

// Ack takes in an answer as accepted and says so.
func (c *Client) Ack(r Received) {
	c.mu.Lock()
	c.view(r.Type).apply(c.config.Protocol, r, nil)
	c.verdict(r, nil)
	c.mu.Unlock()
	c.signal.raise()
}

// Nack rejects an answer with a message, because of the named resources or,
// without names, of all; what an Envoy would apply of the rest is applied.
func (c *Client) Nack(r Received, message string, names ...string) {
	if len(names) == 0 {
		names = r.Names()
	}
	bad := make(rejected)
	for _, name := range names {
		bad[name] = errors.New(message)
	}
	c.mu.Lock()
	c.view(r.Type).apply(c.config.Protocol, r, bad)
	c.verdict(r, errors.New(message))
	c.mu.Unlock()
	c.signal.raise()
}

// verdict sends an ACK or, with err, a NACK; nothing for an answer of a stream
// that is gone.
func (c *Client) verdict(r Received, err error) {
	v := c.view(r.Type)
	if r.Stream == c.opened {
		v.nonce = r.Nonce
	}
	if c.out == nil || r.Stream != c.opened {
		return
	}
	var detail *statuspb.Status
	if err != nil {
		// Envoy uses code 13 for whatever it rejects (protocol.md 1.3).
		detail = &statuspb.Status{Code: int32(codes.Internal), Message: err.Error()}
	}
	if c.config.Protocol == Delta {
		c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.Type, ResponseNonce: r.Nonce, ErrorDetail: detail})
		return
	}
	req := v.request(r.Type)
	req.ErrorDetail = detail
	c.send(req)
}

// send queues a request of the client's own, the first of a stream with the node.
func (c *Client) send(request proto.Message) {
	if !c.nodeSent {
		switch req := request.(type) {
		case *discoveryv3.DiscoveryRequest:
			req.Node = c.config.Node
		case *discoveryv3.DeltaDiscoveryRequest:
			req.Node = c.config.Node
		}
		c.nodeSent = true
	}
	c.out.put(outgoing{msg: request})
}

func (c *Client) view(typeURL string) *view {
	v := c.types[typeURL]
	if v == nil {
		v = newView(typeURL)
		c.types[typeURL] = v
	}
	return v
}

// first makes the first request of a type on a stream, nil for none.
func (c *Client) first(typeURL string) proto.Message {
	v := c.types[typeURL]
	if c.config.Protocol == Delta {
		if req := v.firstDelta(typeURL); req != nil {
			return req
		}
		return nil
	}
	v.said = true
	return v.request(typeURL)
}
