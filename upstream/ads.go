package upstream

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream/codec"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

// DefaultMaxMessage is the largest message that is accepted from a control plane, in bytes. gRPC's
// default of 4 MiB is below what a mesh of 5,000 clusters sends (protocol.md 7.11).
const DefaultMaxMessage = 256 << 20

// A peer that disappears without closing the connection is detected by the kernel's keepalive,
// which no server can reject, after tcpIdle plus tcpProbes times tcpInterval: 30 s.
const (
	tcpIdle     = 15 * time.Second
	tcpInterval = 5 * time.Second
	tcpProbes   = 3
)

// A server whose process hangs, or that is behind a proxy, is detected by HTTP/2 pings. A gRPC
// server with default settings closes a connection on which pings come more often than every 5
// minutes. Most control planes allow 15 s to 60 s; then Config.KeepaliveTime may be set.
const (
	DefaultKeepaliveTime    = 6 * time.Minute
	DefaultKeepaliveTimeout = 10 * time.Second
)

// addressForms lists the forms of an upstream address, for errors.
const addressForms = "host:port, unix:PATH, dns:///HOST:PORT, http(s)://HOST or file:DIR"

// connectTimeout bounds one attempt to connect to one address.
const connectTimeout = 5 * time.Second

// window is how many bytes a control plane may send before the agent has read them. It is fixed,
// because gRPC would otherwise measure the connection with a PING for each response: a write and a
// read more for an update. It is enough for 40 MB a second over 100 ms.
const window = 4 << 20

// Config configures an ADS or a REST source. Zero durations and sizes take the defaults.
type Config struct {
	// Addr is host:port, unix:PATH or dns:///host:port for ADS. For REST it is
	// http(s)://host[:port][/prefix], to which /v3/discovery:… is appended.
	Addr string
	// Form is the form of ADS streams; 0 means xds.Delta.
	Form xds.Form
	dial.Security
	// Proxy says through which proxy the server is reached. If that does not let an ADS stream through, it is reached directly.
	Proxy dial.Proxy
	// Headers are sent as metadata of every ADS stream, and with every REST request.
	Headers    map[string]string
	MaxMessage int // bytes
	// AckTimeout bounds how long an ACK waits for the answers of the clients.
	AckTimeout time.Duration
	// KeepaliveTime is the silence after which an ADS server is pinged, KeepaliveTimeout the time
	// that it has to answer.
	KeepaliveTime    time.Duration
	KeepaliveTimeout time.Duration
	// RESTRefresh is the pause between two polls of a type; as much again at most is added at
	// random, as Envoy does (protocol.md 9.3).
	RESTRefresh time.Duration
	// RESTTimeout bounds one poll. It must exceed the time for which a server holds a long poll.
	RESTTimeout time.Duration
	// CheckResource, if set, returns why a well-formed resource cannot be used: the response is NACKed with the
	// reason, and the resource is not cached. It must not block.
	CheckResource func(*xds.Resource) error
	// Health, if set, is the health of the workload, which is reported on every ADS stream.
	Health   Health
	Log      *slog.Logger
	Observer Observer
	// Dial replaces the connection in tests; network is tcp or unix.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// options are further options of gRPC, and names makes the resolvers of dns:///, for tests.
	options []grpc.DialOption
	names   resolver.Builder
}

// ADS is a control plane that serves the aggregated discovery service, SotW or Delta.
type ADS struct {
	*server
	target string
	conn   atomic.Pointer[grpc.ClientConn] // of the newest stream; nil for none
}

// NewADS checks the configuration; it does no I/O.
func NewADS(cfg Config) (*ADS, error) {
	t, unix, err := dial.Target("upstream", addressForms, cfg.Addr)
	if err != nil {
		return nil, err
	}
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if unix {
		cfg.Plaintext = true
	}
	cfg.KeepaliveTime = cmp.Or(cfg.KeepaliveTime, DefaultKeepaliveTime)
	cfg.KeepaliveTimeout = cmp.Or(cfg.KeepaliveTimeout, DefaultKeepaliveTimeout)
	cfg.Form = cmp.Or(cfg.Form, xds.Delta)
	return &ADS{server: newServer(cfg), target: t}, nil
}

// Run opens one stream and writes its responses to the state until it ends, and returns why: never nil.
func (a *ADS) Run(ctx context.Context, state State, answered func() error) (err error) {
	dialing, heard, speaks := &dialing{dialer: a.dialer}, false, false
	defer func() {
		if a.ended(err, heard); !speaks {
			a.dialer.unheard()
		}
		err = dialing.classify(a.explain(a.tooLarge(err)))
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, ctx, err := a.connect(ctx, dialing)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	method := discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
	if a.cfg.Form == xds.SotW {
		method = discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName
	}
	stream, err := conn.NewStream(ctx, bidirectional, method, grpc.ForceCodecV2(codec.New(state.Body)))
	if err != nil {
		return fmt.Errorf("opening the ADS stream: %w", err)
	}
	a.conn.Store(conn)
	defer a.conn.CompareAndSwap(conn, nil)
	heard, err = a.server.run(ctx, cancel, grpcWire{stream, a.cfg.Form}, state, func() error {
		speaks = true
		return answered()
	})
	return err
}

var bidirectional = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// Forward opens a stream of another service to the same server, with the headers of the ADS stream.
// It uses the connection of the ADS stream or, if there is none, one that is closed when ctx ends.
// It fails with UNAVAILABLE if the server cannot be reached.
func (a *ADS) Forward(ctx context.Context, method string) (grpc.ClientStream, error) {
	conn := a.conn.Load()
	if conn == nil {
		own, err := a.dial(&dialing{dialer: a.dialer})
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		context.AfterFunc(ctx, func() { _ = own.Close() })
		conn = own
	}
	ctx, err := a.metadata(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return conn.NewStream(ctx, bidirectional, method)
}

// tooLarge adds to the error of a stream what helps against requests that are larger than the server takes.
func (a *ADS) tooLarge(err error) error {
	if a.cfg.Form == xds.SotW && status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "received message larger than max") &&
		!strings.Contains(err.Error(), fmt.Sprintf("vs. %d)", a.cfg.MaxMessage)) { // which is what this side takes
		return fmt.Errorf("%w (a request has all names in state of the world, and is larger than the server takes: raise its limit, or use --upstream-protocol delta, which splits it)", err)
	}
	return err
}

// connect makes the connection of one attempt, and the context of its stream.
func (a *ADS) connect(ctx context.Context, dialing *dialing) (*grpc.ClientConn, context.Context, error) {
	conn, err := a.dial(dialing)
	if err != nil {
		return nil, nil, err
	}
	if ctx, err = a.metadata(ctx); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, ctx, nil
}

// dial makes the connection of one attempt, for which the server's name is looked up again, and the
// files of certificates are read again.
func (a *ADS) dial(dialing *dialing) (*grpc.ClientConn, error) {
	creds, err := a.cfg.Transport()
	if err != nil {
		return nil, err
	}
	target, timeout := a.target, connectTimeout
	if host := a.host(); host != "" {
		if dialing.proxy, err = a.cfg.Proxy.For(host); err != nil {
			return nil, fmt.Errorf("--upstream-proxy %s: %w", a.cfg.Proxy, err)
		}
		if dialing.proxy != nil { // which resolves the name
			target, timeout = "passthrough:///"+host, 3*connectTimeout
		} else {
			a.dialer.took("", false)
		}
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(a.cfg.MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: a.cfg.KeepaliveTime, Timeout: a.cfg.KeepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: timeout}),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithUserAgent(xds.AgentUserAgent),
		grpc.WithContextDialer(dialing.dialGRPC),
		// gRPC would look up a service config in a TXT record, and wait 10 s for a name server
		// that drops such queries.
		grpc.WithDisableServiceConfig(),
		grpc.WithResolvers(inOrder{cmp.Or(a.cfg.names, resolver.Get("dns")), dialing}),
	}
	return grpc.NewClient(target, append(opts, a.cfg.options...)...)
}

// host returns host:port of the server; "" for a Unix socket, and for a name that a name server of its own resolves.
func (a *ADS) host() string {
	for _, prefix := range [...]string{"dns:///", "passthrough:///"} {
		if host, is := strings.CutPrefix(a.target, prefix); is {
			return host
		}
	}
	return ""
}

// metadata adds the headers to the outgoing metadata. They replace those of the client, which the
// server might use otherwise.
func (a *ADS) metadata(ctx context.Context) (context.Context, error) {
	md, _ := metadata.FromOutgoingContext(ctx) // a copy; not nil for a call that is passed through
	if md == nil {
		md = make(metadata.MD)
	}
	if err := a.headers(func(name, value string) { md.Set(name, value) }); err != nil {
		return nil, err
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}

// grpcWire is an ADS stream.
type grpcWire struct {
	grpc.ClientStream
	form xds.Form
}

func (w grpcWire) send(_ context.Context, req *session.Request, node *corev3.Node) error {
	if w.form == xds.SotW {
		return w.SendMsg(req.SotW(node))
	}
	return w.SendMsg(req.Delta(node))
}

func (w grpcWire) recv(context.Context) (message, error) {
	var msg message = &discoveryv3.DeltaDiscoveryResponse{}
	if w.form == xds.SotW {
		msg = &discoveryv3.DiscoveryResponse{}
	}
	return msg, w.RecvMsg(msg)
}
