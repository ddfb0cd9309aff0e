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

// ErrDisconnected is the end of a stream that Disconnect has ended.
var ErrDisconnected = errors.New("xdstest: client disconnected")

// ClientConfig configures a Client. The zero value is an Envoy on SotW ADS with node id "xdstest" that
// ACKs every response.
type ClientConfig struct {
	// Protocol is SotW by default.
	Protocol Protocol
	// Method is the full gRPC method, by default that of ADS: "/package.Service/Method" of a service of
	// one type, which has the same messages.
	Method string
	// Node is sent with the first message of each stream.
	Node *corev3.Node
	// Manual leaves every ACK and NACK, and applying the responses, to the methods Ack and Nack.
	// Otherwise each response is processed immediately.
	Manual bool
	// Reject returns why a resource must be NACKed, nil for an ACK. It is called with the client locked
	// and must not call it.
	Reject func(typeURL string, r *discoveryv3.Resource) error
}

// Received is a response that a Client received.
type Received struct {
	// Stream is the number of the client's stream, counted from 1.
	Stream int
	Type   string
	// Version is SotW's version_info or Delta's system_version_info.
	Version, Nonce string
	// Resources are Delta's resources unchanged. SotW's are unwrapped: Name is set, and Version is the
	// wrapper's or "".
	Resources []*discoveryv3.Resource
	Removed   []string
	// Identifier is control_plane.identifier.
	Identifier string
	// Err is the NACK that the client sent by itself; nil for an ACK.
	Err error
}

// Names lists the resources of the response in their order.
func (r Received) Names() []string {
	names := make([]string, len(r.Resources))
	for i, w := range r.Resources {
		names[i] = w.GetName()
	}
	return names
}

// String returns the response as a line of a transcript.
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

// Client is an xDS client that subscribes as a script says and otherwise behaves as Envoy 1.40 was
// observed to: it announces its resources on a new stream (protocol.md 11.2), applies the valid part of
// a response that it NACKs (V6), and keeps its resources when its stream ends. It does not model
// Envoy's timers, its warming (protocol.md V2; Repeat does V1) and the expiry of TTLs.
type Client struct {
	conn   grpc.ClientConnInterface
	config ClientConfig
	signal signal

	// connecting is held while a stream is opened.
	connecting sync.Mutex

	mu       sync.Mutex
	types    map[string]*view
	order    []string // the types in the order of their first subscription
	received []Received
	opened   int
	// out is the outbox of the open stream, nil without one; cancel and ended belong to the newest
	// stream. ended is closed when all its goroutines have ended.
	out    *outbox
	cancel context.CancelCauseFunc
	ended  chan struct{}
	err    error
	// nodeSent is set once the stream's first message was sent.
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

// SetNode sets the node for later streams.
func (c *Client) SetNode(node *corev3.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config.Node = node
}

// Connect opens a stream, which ends with ctx at the latest, and sends the client's subscriptions and
// versions on it. It fails if a stream is open.
func (c *Client) Connect(ctx context.Context) error {
	c.connecting.Lock()
	defer c.connecting.Unlock()
	c.mu.Lock()
	if c.out != nil {
		c.mu.Unlock()
		return errors.New("xdstest: client is connected already")
	}
	c.mu.Unlock()
	c.Disconnect() // waits for the goroutines of a stream that has ended
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

// run runs a stream and closes ended.
func (c *Client) run(ctx context.Context, cancel context.CancelCauseFunc, stream grpc.ClientStream, number int, out *outbox, ended chan struct{}) {
	defer close(ended)
	received := make(chan struct{})
	var failed error // written before received is closed
	go func() {
		defer close(received)
		failed = c.receive(stream, number)
	}()
	if err := out.run(ctx, received, stream.SendMsg); err != nil && !errors.Is(err, io.EOF) {
		cancel(err) // after io.EOF, the receiver returns why the stream ended
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
		c.receiveResponse(r)
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

// receiveResponse records a response and, unless configured as Manual, ACKs or NACKs it.
func (c *Client) receiveResponse(r Received) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.config.Manual {
		v := c.view(r.Type)
		bad := v.check(c.config.Protocol, r, c.config.Reject)
		r.Err = bad.err()
		v.apply(c.config.Protocol, r, bad)
		c.acknowledge(r, r.Err)
	}
	c.received = append(c.received, r)
}

// Disconnect ends the stream, if there is one, and returns when its goroutines have ended. The client
// keeps its resources.
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

// Close is Disconnect, for use with defer. The caller closes the connection.
func (c *Client) Close() { c.Disconnect() }

// Subscribe adds names to the subscription of a type. Without names it subscribes to everything without
// naming "*", which only some types support (protocol.md 2.1). Without a stream, the next one sends the
// request.
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
	case !v.announced:
		if req := c.first(typeURL); req != nil {
			c.send(req)
		}
	case c.config.Protocol == Delta:
		c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
	default:
		c.send(v.request(typeURL))
	}
}

// Unsubscribe removes names from the subscription of a type, and their resources; "*" ends the
// wildcard.
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

// Repeat sends the last SotW request of a type again, byte for byte, as Envoy does for EDS after a
// cluster has changed (protocol.md V1). In Delta it sends nothing, like Envoy.
func (c *Client) Repeat(typeURL string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out != nil && c.config.Protocol == SotW {
		c.send(c.view(typeURL).request(typeURL))
	}
}

// Send sends a prepared request, a *discoveryv3.DiscoveryRequest or DeltaDiscoveryRequest, unchanged
// and without adding a node. It does not affect the client's own subscriptions. Without a stream it is
// dropped.
func (c *Client) Send(request proto.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out != nil {
		c.out.put(outgoing{msg: request})
		c.nodeSent = true
	}
}

// Ack applies a response and ACKs it.
func (c *Client) Ack(r Received) {
	c.mu.Lock()
	c.view(r.Type).apply(c.config.Protocol, r, nil)
	c.acknowledge(r, nil)
	c.mu.Unlock()
	c.signal.raise()
}

// Nack NACKs a response with a message, because of the named resources or, without names, of all; the
// client applies the part that an Envoy would apply.
func (c *Client) Nack(r Received, message string, names ...string) {
	if len(names) == 0 {
		names = r.Names()
	}
	bad := make(nackReasons)
	for _, name := range names {
		bad[name] = errors.New(message)
	}
	c.mu.Lock()
	c.view(r.Type).apply(c.config.Protocol, r, bad)
	c.acknowledge(r, errors.New(message))
	c.mu.Unlock()
	c.signal.raise()
}

// acknowledge sends an ACK or, with err, a NACK; nothing for a response of an earlier stream.
func (c *Client) acknowledge(r Received, err error) {
	v := c.view(r.Type)
	if r.Stream == c.opened {
		v.nonce = r.Nonce
	}
	if c.out == nil || r.Stream != c.opened {
		return
	}
	var detail *statuspb.Status
	if err != nil {
		// Envoy uses code 13 for every NACK (protocol.md 1.3).
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

// send queues a request of the client, with the node if it is the first of the stream.
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

// first returns the first request of a type on a stream, nil for none.
func (c *Client) first(typeURL string) proto.Message {
	v := c.types[typeURL]
	if c.config.Protocol == Delta {
		if req := v.firstDelta(typeURL); req != nil {
			return req
		}
		return nil
	}
	v.announced = true
	return v.request(typeURL)
}
