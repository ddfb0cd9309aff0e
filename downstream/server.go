package downstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/downstream/codec"
	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// DefaultMaxMessage is the largest request that is taken from a client, in
// bytes. An Envoy's Node alone is 77 KB, and the versions it brings along on a
// reconnect grow with the mesh.
const DefaultMaxMessage = 256 << 20

// writeBuffer is how much is written at once, in bytes. gRPC's own 32 KiB is a system call
// and a wakeup of the client every two frames. An idle connection has no buffer.
const writeBuffer = 128 << 10

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
	// MaxMessage is DefaultMaxMessage where it is 0.
	MaxMessage int
	// RemovalDelay is session.DefaultRemovalDelay where it is 0.
	RemovalDelay time.Duration
	// Limits bound what a client may cost.
	Limits Limits
	// RESTHold is how long a poll whose version is current waits for a change;
	// 0 answers at once. A client's request timeout must exceed it (protocol.md
	// 9.3).
	RESTHold time.Duration
	// RESTHost is the name of the host, if any, where REST is served on a TCP address.
	RESTHost string
	// NodeID is who a client is that does not say so; "" to refuse it.
	NodeID string
	// Forward takes the streams of the services in PassThrough, full names such as
	// "envoy.service.load_stats.v3.LoadReportingService"; nil refuses them. PassThrough is
	// DefaultPassThrough where it is nil.
	Forward     Forwarder
	PassThrough []string
	// Register adds further services; nil for none.
	Register func(grpc.ServiceRegistrar)
	// OnConnections, if set, is told how many connections there are, each time that one comes
	// or goes; by one goroutine at a time.
	OnConnections func(open int)
	Log           *slog.Logger
	Observer      Observer
}

// Server serves the discovery services. Make one with New and run Serve.
type Server struct {
	cfg  Config
	from *corev3.ControlPlane
	// secrets finds what is secret in resources, for what clients say of them and for REST on TCP.
	secrets redact.Finder
	// secretsRefused limits the warnings about secrets that REST refused: clients poll.
	secretsRefused rate.Sometimes

	// streaming waits for the goroutines of all streams.
	streaming sync.WaitGroup
	// polls remembers the last answers over REST, by client and names.
	polls *lru.Cache[string, *session.Response]

	mu      sync.Mutex
	streams map[*stream]struct{}
	last    uint64

	connected   sync.Mutex
	connections int
}

// New returns a server; it does no I/O.
func New(cfg Config) *Server {
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = DefaultMaxMessage
	}
	cfg.Limits = cfg.Limits.orDefault()
	if cfg.PassThrough == nil {
		cfg.PassThrough = DefaultPassThrough
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	polls, _ := lru.New[string, *session.Response](maxPolls) // the size is positive
	return &Server{
		cfg:   cfg,
		from:  &corev3.ControlPlane{Identifier: cfg.Identifier},
		polls: polls,

		secretsRefused: rate.Sometimes{Interval: time.Minute},

		streams: make(map[*stream]struct{}),
	}
}

// Serve serves gRPC and REST on lis until ctx ends, then cuts the streams: clients
// keep what they have and come back to whoever listens next (protocol.md 11.1). It
// returns when every stream has ended, with nil after ctx ended. lis is closed. It
// may be called for several listeners at once.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	g := grpc.NewServer(
		grpc.ForceServerCodecV2(codec.New()),
		grpc.WriteBufferSize(writeBuffer),
		grpc.MaxRecvMsgSize(s.cfg.MaxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPingTime, Timeout: serverPingTimeout}),
		grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(s.forward),
	)
	s.register(g)
	split := newMux(lis, s.connection)
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error {
		<-ctx.Done()
		g.Stop()
		return nil
	})
	eg.Go(func() error {
		split.run()
		if ctx.Err() == nil {
			return fmt.Errorf("listener %s ended", lis.Addr())
		}
		return nil
	})
	eg.Go(func() error {
		if err := g.Serve(split.grpc); ctx.Err() == nil {
			return err
		}
		return nil
	})
	eg.Go(func() error { return s.serveREST(ctx, split.rest, anything) })
	err := eg.Wait()
	s.streaming.Wait()
	return err
}

// connection counts connections that came, or went.
func (s *Server) connection(change int) {
	s.connected.Lock()
	defer s.connected.Unlock()
	s.connections += change
	if s.cfg.OnConnections != nil {
		s.cfg.OnConnections(s.connections)
	}
}

// StreamState is what is known of an open stream.
type StreamState struct {
	Stream uint64
	NodeID string // "" before the first request
	Form   xds.Form
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

// serve serves one stream: of all types, or of the one that typeURL names.
func (s *Server) serve(ctx context.Context, form xds.Form, typeURL string, w wire) error {
	st := &stream{server: s, form: form, typeURL: typeURL, wire: w, since: time.Now(), wake: make(chan struct{}, 1), written: make(chan struct{}, 1)}
	if p, ok := peer.FromContext(ctx); ok && p.Addr.Network() != "unix" {
		st.peer = p.Addr.String()
	}
	st.number = s.number()
	s.mu.Lock()
	full := len(s.streams) >= s.cfg.Limits.Streams
	if !full {
		s.streams[st] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		return s.exhausted("streams", "more than %d streams", s.cfg.Limits.Streams)
	}
	s.cfg.Observer.StreamOpened(form.String())
	defer func() {
		s.mu.Lock()
		delete(s.streams, st)
		s.mu.Unlock()
		s.cfg.Observer.StreamClosed(form.String())
	}()
	return st.run(ctx)
}

// errNoNode refuses a stream whose client does not say who it is: the state it
// should see depends on that.
var errNoNode = errors.New("the first request of a stream must carry a node with an id (or --node-id say who clients without one are)")

// enforcesTTL tells whether a client drops a resource when its TTL has passed.
// Envoy does, and does not say so (protocol.md V12, 6.8).
func enforcesTTL(node *corev3.Node) bool {
	return node.GetUserAgentName() == xds.EnvoyUserAgent ||
		slices.Contains(node.GetClientFeatures(), xds.FeatureResourceTTL)
}

// nodeOf checks the Node of a first request. One without an id is who Config.NodeID says.
func (s *Server) nodeOf(node *corev3.Node) (*corev3.Node, error) {
	switch {
	case node.GetId() != "":
		return node, nil
	case s.cfg.NodeID == "":
		return nil, errNoNode
	case node == nil:
		return &corev3.Node{Id: s.cfg.NodeID}, nil
	}
	node = proto.CloneOf(node)
	node.Id = s.cfg.NodeID
	return node, nil
}
