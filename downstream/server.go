package downstream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/downstream/session"
)

// DefaultMaxMessage is the largest request that is taken from a client, in
// bytes. An Envoy's Node alone is 77 KB, and the versions it brings along on a
// reconnect grow with the mesh.
const DefaultMaxMessage = 256 << 20

// Envoy is told to ping every 30 s; gRPC's own limit for clients is one ping in
// 5 minutes, after which it closes the connection.
const minClientPing = 5 * time.Second

// Idle clients over TCP are pinged, so that streams of dead ones end.
const (
	serverPingTime    = 30 * time.Second
	serverPingTimeout = 10 * time.Second
)

// Config configures a Server.
type Config struct {
	State State
	// Identifier is sent as control_plane.identifier.
	Identifier string
	// Credentials of TCP connections; nil for plaintext.
	Credentials credentials.TransportCredentials
	// MaxMessage is DefaultMaxMessage where it is 0.
	MaxMessage int
	// RemovalDelay is session.DefaultRemovalDelay where it is 0.
	RemovalDelay time.Duration
	Log          *slog.Logger
	Observer     Observer
}

// Server serves ADS. Make one with New and run Serve.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	cfg  Config
	from *corev3.ControlPlane

	// streaming waits for the goroutines of all streams.
	streaming sync.WaitGroup

	mu      sync.Mutex
	streams map[*stream]struct{}
	last    uint64
}

// New returns a server; it does no I/O.
func New(cfg Config) *Server {
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = DefaultMaxMessage
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	return &Server{
		cfg:     cfg,
		from:    &corev3.ControlPlane{Identifier: cfg.Identifier},
		streams: make(map[*stream]struct{}),
	}
}

// Serve serves on lis until ctx ends, then cuts the streams: clients keep what
// they have and come back to whoever listens next (protocol.md 11.1). It returns
// when every stream has ended, with nil after ctx ended. lis is closed.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(s.cfg.MaxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPingTime, Timeout: serverPingTimeout}),
		grpc.WaitForHandlers(true),
	}
	if s.cfg.Credentials != nil {
		opts = append(opts, grpc.Creds(s.cfg.Credentials))
	}
	g := grpc.NewServer(opts...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		g.Stop()
	}()
	err := g.Serve(lis)
	if ctx.Err() == nil {
		return err
	}
	<-stopped
	s.streaming.Wait()
	return nil
}

// StreamState is what is known of an open stream.
type StreamState struct {
	Stream uint64
	Node   *corev3.Node // nil before the first request
	Form   session.Form
	Peer   string
	Since  time.Time
	// Types lists the types that were asked for, in push order.
	Types         []string
	Subscriptions int
}

// Streams returns the open streams, oldest first.
func (s *Server) Streams() []StreamState {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]StreamState, 0, len(s.streams))
	for st := range s.streams {
		states = append(states, st.state())
	}
	slices.SortFunc(states, func(a, b StreamState) int { return int(a.Stream) - int(b.Stream) })
	return states
}

// StreamAggregatedResources serves one SotW stream.
func (s *Server) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.serve(g.Context(), session.SotW, sotwWire{g})
}

// DeltaAggregatedResources serves one Delta stream.
func (s *Server) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.serve(g.Context(), session.Delta, deltaWire{g})
}

func (s *Server) serve(ctx context.Context, form session.Form, w wire) error {
	st := &stream{server: s, form: form, wire: w, since: time.Now(), poke: make(chan struct{}, 1)}
	if p, ok := peer.FromContext(ctx); ok && p.Addr.Network() != "unix" {
		st.peer = p.Addr.String()
	}
	s.mu.Lock()
	s.last++
	st.number = s.last
	s.streams[st] = struct{}{}
	s.mu.Unlock()
	s.cfg.Observer.StreamOpened(form.String())
	defer func() {
		s.mu.Lock()
		delete(s.streams, st)
		s.mu.Unlock()
		s.cfg.Observer.StreamClosed(form.String())
	}()
	return st.run(ctx)
}

// wire is a stream in either form.
type wire interface {
	recv() (req *session.Request, node *corev3.Node, err error)
	send(resp *session.Response, from *corev3.ControlPlane) error
}

type sotwWire struct {
	g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
}

func (w sotwWire) recv() (*session.Request, *corev3.Node, error) {
	req, err := w.g.Recv()
	if err != nil {
		return nil, nil, err
	}
	return session.FromSotW(req), req.GetNode(), nil
}

func (w sotwWire) send(resp *session.Response, from *corev3.ControlPlane) error {
	out, err := resp.SotW(from)
	if err != nil {
		return err
	}
	return w.g.Send(out)
}

type deltaWire struct {
	g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
}

func (w deltaWire) recv() (*session.Request, *corev3.Node, error) {
	req, err := w.g.Recv()
	if err != nil {
		return nil, nil, err
	}
	return session.FromDelta(req), req.GetNode(), nil
}

func (w deltaWire) send(resp *session.Response, from *corev3.ControlPlane) error {
	return w.g.Send(resp.Delta(from))
}

// errNoNode refuses a stream whose client does not say who it is: the state it
// should see depends on that.
var errNoNode = errors.New("the first request of a stream must carry a node with an id")

// nodeOf checks the Node of a first request.
func nodeOf(node *corev3.Node) (*corev3.Node, error) {
	if node.GetId() == "" {
		return nil, errNoNode
	}
	return proto.CloneOf(node), nil
}
