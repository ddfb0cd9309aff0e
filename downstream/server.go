package downstream

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
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
	"github.com/holdfast-xds/holdfast/internal/listener"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/repeats"
	"github.com/holdfast-xds/holdfast/internal/resourceset"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// readBuffer is the size of gRPC's read buffer in bytes, which each connection has as long as it is
// open. Most requests are small.
const readBuffer = 4 << 10

// DefaultMaxMessage is the maximum size of a client's request in bytes. An Envoy's Node alone is
// 77 KB, and the versions that it sends on a reconnect grow with the mesh.
const DefaultMaxMessage = 256 << 20

// DefaultWriteBuffer is the size of gRPC's write buffer in bytes. gRPC's default of 32 KiB costs a
// system call and a wakeup of the client every two frames. An idle connection has no buffer.
const DefaultWriteBuffer = 128 << 10

// requestWindow is how many bytes a client may send before the server has read them. It is fixed,
// because gRPC would otherwise measure the connection with a PING for each request.
const requestWindow = 256 << 10

// minClientPing is the shortest interval of pings that clients may send: the bootstraps of others say what they like, and a ping costs
// nothing. gRPC's default allows clients one ping in 5 minutes, and closes the connection of a client that pings more often
// (istio#15088).
const minClientPing = 50 * time.Millisecond

// Idle clients over TCP are pinged, so that streams of dead clients end.
const (
	serverPingTime    = 30 * time.Second
	serverPingTimeout = 10 * time.Second
)

// Config configures a Server.
type Config struct {
	State State
	// Identifier is sent as control_plane.identifier.
	Identifier string
	// MaxMessage bounds the size of a request in bytes; 0 means DefaultMaxMessage.
	MaxMessage int
	// WriteBuffer is the size in bytes of the buffer of each connection that is being written to; 0 means
	// DefaultWriteBuffer. A server of thousands of clients that get a change at the same time has as many.
	WriteBuffer int
	Limits      Limits
	// Wildcards are types of which an Envoy may ask for all resources, besides those of which it does by itself
	// (xds.NamedByEnvoy).
	Wildcards []string
	// RESTHold is how long a poll whose version is current waits for a change; 0 answers at once.
	// A client's request timeout must exceed it (protocol.md 9.3).
	RESTHold time.Duration
	// RESTHost is the name of the host, if any, under which REST is served on a TCP address.
	RESTHost string
	// NodeID is the node id of clients that send none; "" rejects them.
	NodeID string
	// Forward opens a stream of a full method name, "/package.Service/Method", to the current upstream,
	// with the outgoing metadata of ctx, in which that of the upstream's configuration replaces metadata
	// of the same name. It fails with UNAVAILABLE while no upstream is connected. Only the services in
	// PassThrough, or DefaultPassThrough if that is nil, are passed through; none if Forward is nil.
	Forward     func(ctx context.Context, method string) (grpc.ClientStream, error)
	PassThrough []string
	Register    func(grpc.ServiceRegistrar) // adds further services; may be nil
	// Identify, if set, says who the client of a stream or a request is (Client.Identity), or returns an error of gRPC for one
	// that gets nothing: then its stream does not count, and nothing is read of it. A stream whose identity is an Expirer ends when that
	// has expired.
	Identify func(context.Context, Credentials) (any, error)
	// References, if set, returns what a resource refers to, for session.Config: an Envoy is sent that again after the resource has changed.
	References func(*xds.Resource) []xds.Key
	// ConnectionStreams bounds the open calls of one connection; 0 does not.
	ConnectionStreams uint32
	// MaxConnectionIdle is how long a gRPC connection is open without a stream or call until it gets a GOAWAY and is closed;
	// 0 is for ever. A connection with a stream is not idle.
	MaxConnectionIdle time.Duration
	// MaxConnectionAge is how long a gRPC connection is open until it gets a GOAWAY and its streams end a second later,
	// 10 % more or less at random; 0 for any time. The status of the streams says that nothing has failed (package
	// reconnect), and Envoy and the agent connect again within half a second.
	MaxConnectionAge time.Duration
	// Drain bounds how long the streams go on when Serve ends: the connections get a GOAWAY, and the streams end one after
	// the other, as with MaxConnectionAge, over 10 ms for each of them and Drain at most. 0 cuts the connections at once.
	Drain time.Duration
	// OnConnections, if set, is called with the number of open connections each time that one is
	// opened or closed; by one goroutine at a time.
	OnConnections func(open int)
	Log           *slog.Logger
	Observer      Observer
}

// Server serves the discovery services. Create one with New and run Serve.
type Server struct {
	cfg  Config
	from *corev3.ControlPlane
	// secrets finds secrets in resources, for the reasons of NACKs and for REST on TCP.
	secrets redact.Finder
	// sets has what the clients of the streams have, see session.Config.Sets.
	sets *resourceset.Pool
	// secretsRejected limits the warnings about secrets that REST did not serve to clients, which poll.
	secretsRejected rate.Sometimes
	// repeats limits the lines about streams that their clients can cause, pollRepeats those about requests beyond a limit.
	repeats, pollRepeats *repeats.Limiter

	room      *listener.Pool
	streaming sync.WaitGroup // of the goroutines of all streams
	stopping  atomic.Bool    // the server ends its streams
	// polls remembers the last REST responses, by client and names.
	polls *lru.Cache[[sha256.Size]byte, *session.Response]

	mu      sync.Mutex
	streams map[*stream]struct{}
	last    uint64
	// draining is over which time streams end since Serve has been told to end; 0 before that.
	draining time.Duration

	connected   sync.Mutex
	connections int
}

// New does no I/O.
func New(cfg Config) *Server {
	cfg.MaxMessage = cmp.Or(cfg.MaxMessage, DefaultMaxMessage)
	cfg.WriteBuffer = cmp.Or(cfg.WriteBuffer, DefaultWriteBuffer)
	cfg.Limits = cfg.Limits.orDefault()
	if cfg.PassThrough == nil {
		cfg.PassThrough = DefaultPassThrough
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Observer = cmp.Or(cfg.Observer, Observer(NoObserver{}))
	polls, _ := lru.New[[sha256.Size]byte, *session.Response](maxPolls) // the size is positive
	clients, _ := listener.Room()
	return &Server{
		cfg:             cfg,
		room:            listener.NewPool(clients, cfg.Log, func() { cfg.Observer.LimitExceeded("connections") }),
		from:            &corev3.ControlPlane{Identifier: cfg.Identifier},
		secretsRejected: rate.Sometimes{Interval: time.Minute},
		repeats:         repeats.New(maxLines, linesPerSecond),
		pollRepeats:     repeats.New(1, 1),
		sets:            resourceset.NewPool(resourceset.DefaultMin),
		polls:           polls,
		streams:         make(map[*stream]struct{}),
	}
}

// Serve serves gRPC and REST on lis until ctx ends, and then ends the streams, as Config.Drain says: clients
// keep what they have and reconnect to the server that listens next (protocol.md 11.1). It returns when
// every stream has ended, with nil if ctx ended. lis is closed. Serve may be called for several
// listeners at once.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	s.mu.Lock()
	s.draining = 0
	s.mu.Unlock()
	s.stopping.Store(false)
	g := grpc.NewServer(
		grpc.MaxConcurrentStreams(cmp.Or(s.cfg.ConnectionStreams, math.MaxUint32)),
		grpc.Creds(newHandshake()),
		grpc.ForceServerCodecV2(codec.New()),
		grpc.WriteBufferSize(s.cfg.WriteBuffer),
		grpc.ReadBufferSize(readBuffer),
		grpc.StaticStreamWindowSize(requestWindow),
		grpc.StaticConnWindowSize(requestWindow),
		grpc.MaxRecvMsgSize(s.cfg.MaxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(s.cfg.keepalive()),
		grpc.WaitForHandlers(true),
		grpc.StreamInterceptor(busyStream),
		grpc.UnaryInterceptor(busyCall),
		grpc.UnknownServiceHandler(s.forward),
	)
	s.register(g)
	lis = s.room.Bound(lis)
	split := newMux(lis, s.connection, s.cfg.sendsAway())
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error {
		<-ctx.Done()
		s.stopping.Store(true)
		s.stop(g)
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
	eg.Go(func() error { return s.serveREST(ctx, split.rest, true) })
	err := eg.Wait()
	s.streaming.Wait()
	return err
}

func (s *Server) connection(change int) {
	s.connected.Lock()
	defer s.connected.Unlock()
	s.connections += change
	if s.cfg.OnConnections != nil {
		s.cfg.OnConnections(s.connections)
	}
}

// StreamState describes an open stream.
type StreamState struct {
	ID     uint64 `json:"id"`
	NodeID string `json:"node_id"` // "" before the first request
	// Peer is the client's address, "" on a Unix socket.
	Peer string `json:"peer,omitempty"`
	// Protocol is "sotw" or "delta".
	Protocol string    `json:"protocol"`
	Since    time.Time `json:"since,omitzero"`
	// Types lists the short names of the types that the client subscribes to, in push order.
	Types []string `json:"types,omitempty"`
	// Subscriptions counts the names of all types together.
	Subscriptions int `json:"subscriptions"`
	// Unanswered says, by short name of the type, since when the client has not answered a response. An Envoy that warms
	// a cluster answers later.
	Unanswered map[string]time.Time `json:"unanswered,omitempty"`
}

// Subscribers returns the ids of the open streams whose clients subscribe to a name, itself or with a wildcard, in
// order.
func (s *Server) Subscribers(typeURL, name string) (ids []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.subscribes(typeURL, name) {
			ids = append(ids, st.number)
		}
	}
	slices.Sort(ids)
	return ids
}

// Streams returns the open streams, oldest first.
func (s *Server) Streams() []StreamState {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]StreamState, 0, len(s.streams))
	for st := range s.streams {
		states = append(states, st.state())
	}
	slices.SortFunc(states, func(a, b StreamState) int { return cmp.Compare(a.ID, b.ID) })
	return states
}

// TakeLocks takes and releases the locks of the server and its streams, for a watchdog.
func (s *Server) TakeLocks() {
	s.mu.Lock()
	streams := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	for _, st := range streams {
		watchdog.Lock(&st.mu)
	}
	watchdog.Lock(&s.connected)
}

// serve serves one stream: of all types, or only of typeURL if that is set.
func (s *Server) serve(g grpc.ServerStream, form xds.Form, typeURL string) error {
	who, err := s.identify(g.Context(), CredentialsOf(g.Context()))
	if err != nil {
		return err
	}
	st := &stream{
		server: s, number: s.number(), form: form, typeURL: typeURL, grpc: g, identity: who, since: time.Now(),
		wake: make(chan struct{}, 1), written: make(chan struct{}, 1), logged: make(map[string]bool),
		rate: rate.NewLimiter(rate.Limit(s.cfg.Limits.RequestRate), s.cfg.Limits.RequestBurst),
	}
	if p, ok := peer.FromContext(g.Context()); ok {
		if of, ok := p.Addr.(processAddr); ok {
			st.process = of.process
		}
		if p.Addr.Network() != "unix" {
			st.peer = p.Addr.String()
		}
	}
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
	return st.run(g.Context())
}

// identify returns who the client with these credentials is; nil if nobody asks.
func (s *Server) identify(ctx context.Context, c Credentials) (any, error) {
	if s.cfg.Identify == nil {
		return nil, nil
	}
	return s.cfg.Identify(ctx, c)
}

// number returns the number of a new stream, or of a request without one.
func (s *Server) number() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// newSession returns the state machine of a client with this view.
func (s *Server) newSession(client Client, view View, noncePrefix string) *session.Session {
	var references func(*xds.Resource) []xds.Key
	if client.Node.GetUserAgentName() == xds.EnvoyUserAgent {
		references = s.cfg.References
	}
	return session.New(session.Config{
		Form:         client.Form,
		NoncePrefix:  noncePrefix,
		KeepWildcard: client.Node.GetUserAgentName() == xds.EnvoyUserAgent,
		NamesOnly:    s.namesOnly(client.Node),
		TTL:          enforcesTTL(client.Node),
		HadWildcard:  view.HadWildcard,
		Keeps:        client.Agent,
		References:   references,
		Secrets:      &s.secrets,
		Sets:         s.sets,
	})
}

// namesOnly returns whether a client asks for a type by name only; nil for one that may ask for all resources of any.
func (s *Server) namesOnly(node *corev3.Node) func(typeURL string) bool {
	if node.GetUserAgentName() != xds.EnvoyUserAgent {
		return nil
	}
	return func(typeURL string) bool {
		return xds.NamedByEnvoy(typeURL) && !slices.Contains(s.cfg.Wildcards, typeURL)
	}
}

// enforcesTTL reports whether a client drops a resource when its TTL has passed. Envoy does, though
// it does not list the feature (protocol.md V12, 6.8).
func enforcesTTL(node *corev3.Node) bool {
	return node.GetUserAgentName() == xds.EnvoyUserAgent ||
		slices.Contains(node.GetClientFeatures(), xds.FeatureResourceTTL)
}

// maxNodeID bounds the id of a node, which is in each line of the log. That of a pod in Istio has at most 350 bytes.
const maxNodeID = 1024

// nodeOf checks the Node of a first request, by whose id the state is chosen. Config.NodeID replaces
// a missing id.
func (s *Server) nodeOf(node *corev3.Node) (*corev3.Node, error) {
	switch {
	case len(node.GetId()) > maxNodeID:
		return nil, fmt.Errorf("the id of the node has %d bytes: at most %d are accepted", len(node.GetId()), maxNodeID)
	case node.GetId() != "":
		return node, nil
	case s.cfg.NodeID == "":
		return nil, errors.New("the first request of a stream must carry a node with an id, unless --node-id gives one to all clients without")
	case node == nil:
		return &corev3.Node{Id: s.cfg.NodeID}, nil
	}
	node = proto.CloneOf(node)
	node.Id = s.cfg.NodeID
	return node, nil
}
