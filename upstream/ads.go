package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

// DefaultMaxMessage is the largest message that is taken from a control plane,
// in bytes. gRPC's own limit of 4 MiB is below what a mesh of 5,000 clusters
// sends (protocol.md 7.11).
const DefaultMaxMessage = 256 << 20

// A peer that is gone without a word is noticed by the kernel's keepalive, which
// no server can object to: after tcpIdle plus tcpProbes times tcpInterval, 30 s.
const (
	tcpIdle     = 15 * time.Second
	tcpInterval = 5 * time.Second
	tcpProbes   = 3
)

// One whose process hangs, or that hides behind a proxy, is noticed by HTTP/2
// pings. A gRPC server that is not told otherwise closes a connection on which
// they come more often than every 5 minutes, so the default is longer; most
// control planes allow 15 s to 60 s, where ADSConfig.KeepaliveTime may be set.
const (
	DefaultKeepaliveTime    = 6 * time.Minute
	DefaultKeepaliveTimeout = 10 * time.Second
)

// connectTimeout bounds one attempt at one address.
const connectTimeout = 5 * time.Second

// ADSConfig configures an ADS source. Zero durations and sizes take the defaults
// above.
type ADSConfig struct {
	// Addr is host:port, unix:PATH or dns:///host:port.
	Addr string
	Form session.Form
	Security
	// Headers is sent as metadata of every stream.
	Headers map[string]string
	// MaxMessage is the largest message that is accepted, in bytes.
	MaxMessage       int
	AckTimeout       time.Duration
	KeepaliveTime    time.Duration
	KeepaliveTimeout time.Duration
	Log              *slog.Logger
	Observer         Observer
	// Dial replaces the connection in tests.
	Dial []grpc.DialOption
}

// Observer counts what passes between a source and its control plane.
type Observer interface {
	// Received counts a response; Answered an ACK, or a NACK with its reason.
	Received(source, typeURL string, resources int)
	Answered(source, typeURL string, nack bool)
}

// ADS is a control plane that speaks the aggregated discovery service, SotW or
// Delta. It keeps what the server must be told again on its next stream.
type ADS struct {
	cfg    ADSConfig
	target string
	unix   bool
	// versions are the version_info of SotW, by type, over all streams. They
	// are used by one Run at a time for reading and writing; a concurrent probe
	// works on a copy.
	mu       sync.Mutex
	versions map[string]string
	open     int // streams
	last     time.Time
	conn     *grpc.ClientConn // of the newest stream; nil for none
}

// NewADS checks the configuration; it does no I/O.
func NewADS(cfg ADSConfig) (*ADS, error) {
	t, unix, err := target(cfg.Addr)
	if err != nil {
		return nil, err
	}
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if unix {
		cfg.Plaintext = true
	}
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = DefaultMaxMessage
	}
	if cfg.KeepaliveTime == 0 {
		cfg.KeepaliveTime = DefaultKeepaliveTime
	}
	if cfg.KeepaliveTimeout == 0 {
		cfg.KeepaliveTimeout = DefaultKeepaliveTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("upstream", cfg.Addr)
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	return &ADS{cfg: cfg, target: t, unix: unix, versions: make(map[string]string)}, nil
}

type nobody struct{}

func (nobody) Received(string, string, int)  {}
func (nobody) Answered(string, string, bool) {}

// Name returns the address.
func (a *ADS) Name() string { return a.cfg.Addr }

// Run opens one stream and feeds from it until it ends, and returns why: never
// nil. All goroutines that it started have ended then.
func (a *ADS) Run(ctx context.Context, feed Feed, answered func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := a.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, err = a.headers(ctx)
	if err != nil {
		return err
	}
	wire, err := a.dialStream(ctx, conn)
	if err != nil {
		return fmt.Errorf("opening the ADS stream: %w", err)
	}
	interest := feed.Interest()
	defer interest.Close()
	a.mu.Lock()
	a.open++
	a.conn = conn
	versions := maps.Clone(a.versions)
	a.mu.Unlock()
	st := &stream{
		ads: a, feed: feed, interest: interest, wire: wire, answered: answered,
		poke: make(chan struct{}, 1),
		machine: session.New(session.Config{
			Form:       a.cfg.Form,
			AckTimeout: a.cfg.AckTimeout,
			Versions:   versions,
			Held:       func(typeURL string) map[string]string { return feed.Held(a.Name(), typeURL) },
		}),
	}
	err = st.run(ctx, cancel)
	a.mu.Lock()
	a.open--
	if a.conn == conn {
		a.conn = nil
	}
	a.versions = versions
	a.mu.Unlock()
	return err
}

// Forward opens a stream of another service to the same server, on the connection
// of the ADS stream and with the same headers. It fails with UNAVAILABLE while
// there is none.
func (a *ADS) Forward(ctx context.Context, method string) (grpc.ClientStream, error) {
	a.mu.Lock()
	conn := a.conn
	a.mu.Unlock()
	if conn == nil {
		return nil, status.Errorf(codes.Unavailable, "upstream %s is away", a.Name())
	}
	ctx, err := a.headers(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
}

// Open reports whether a stream is open, answered or not.
func (a *ADS) Open() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open > 0
}

// LastMessage returns when a response last came; the zero time for never.
func (a *ADS) LastMessage() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// dial makes the connection of one attempt: a fresh one each time, so that
// names are looked up and files read again.
func (a *ADS) dial() (*grpc.ClientConn, error) {
	creds, err := a.cfg.transport()
	if err != nil {
		return nil, err
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(a.cfg.MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: a.cfg.KeepaliveTime, Timeout: a.cfg.KeepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithUserAgent("holdfast"),
	}
	if !a.unix {
		opts = append(opts, grpc.WithContextDialer(dialTCP))
	}
	return grpc.NewClient(a.target, append(opts, a.cfg.Dial...)...)
}

// dialTCP connects with the kernel's keepalive on.
func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: tcpIdle, Interval: tcpInterval, Count: tcpProbes}}
	return d.DialContext(ctx, "tcp", addr)
}

// headers puts the token and the configured metadata on the stream.
func (a *ADS) headers(ctx context.Context) (context.Context, error) {
	token, err := a.cfg.token()
	if err != nil {
		return nil, err
	}
	for k, v := range a.cfg.Headers {
		ctx = metadata.AppendToOutgoingContext(ctx, k, v)
	}
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return ctx, nil
}

// wire is a stream in either form.
type wire interface {
	// send writes a request, with a Node on the first of the stream.
	send(req *session.Request, node *corev3.Node) error
	// recv blocks for a response; ingest feeds it to the machine.
	recv() (message, error)
}

// message is a response that was received, in either form.
type message interface {
	GetTypeUrl() string
	GetNonce() string
	proto.Message
}

type sotwWire struct {
	stream grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
}

func (w sotwWire) send(req *session.Request, node *corev3.Node) error {
	return w.stream.Send(req.SotW(node))
}
func (w sotwWire) recv() (message, error) { return w.stream.Recv() }

type deltaWire struct {
	stream grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]
}

func (w deltaWire) send(req *session.Request, node *corev3.Node) error {
	return w.stream.Send(req.Delta(node))
}
func (w deltaWire) recv() (message, error) { return w.stream.Recv() }

func (a *ADS) dialStream(ctx context.Context, conn *grpc.ClientConn) (wire, error) {
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if a.cfg.Form == session.SotW {
		s, err := client.StreamAggregatedResources(ctx)
		return sotwWire{s}, err
	}
	s, err := client.DeltaAggregatedResources(ctx)
	return deltaWire{s}, err
}

// stream is one open stream: a receiver and a sender around the machine.
type stream struct {
	// Set at the start.
	ads      *ADS
	feed     Feed
	interest Interest
	wire     wire
	answered func() error
	poke     chan struct{} // the sender has something to do

	// Owned by the receiver.
	started bool

	mu      sync.Mutex
	machine *session.Session
}

// run receives until the stream ends; the sender ends with it.
func (st *stream) run(ctx context.Context, cancel context.CancelFunc) error {
	sent := make(chan error, 1)
	go func() {
		err := st.sendAll(ctx)
		cancel() // ends the receiver
		sent <- err
	}()
	err := st.receiveAll()
	cancel()
	if sendErr := <-sent; sendErr != nil && errors.Is(err, context.Canceled) {
		err = sendErr
	}
	return err
}

func (st *stream) receiveAll() error {
	for {
		msg, err := st.wire.recv()
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
		if !st.started {
			if err := st.answered(); err != nil {
				return err
			}
			st.started = true
		}
		st.receive(msg)
	}
}

// receive feeds one response to the machine, and what it says to the state.
func (st *stream) receive(msg message) {
	now := time.Now()
	st.ads.mu.Lock()
	st.ads.last = now
	st.ads.mu.Unlock()
	var u *session.Update
	var err error
	st.mu.Lock()
	switch m := msg.(type) {
	case *discoveryv3.DiscoveryResponse:
		u, err = st.machine.SotW(m, now)
	case *discoveryv3.DeltaDiscoveryResponse:
		u, err = st.machine.Delta(m, now)
	}
	st.mu.Unlock()
	log := st.ads.cfg.Log.With("type", xds.Short(msg.GetTypeUrl()), "nonce", msg.GetNonce())
	if err != nil {
		log.Warn("response ignored", "err", err)
		return
	}
	log.Debug("response", "resources", len(u.Put), "removed", len(u.Remove), "complete", u.Complete, "errors", len(u.Errors))
	for _, e := range u.Errors {
		log.Warn("resource not usable; what is held of it stays in use", "name", e.Name, "err", e.Err)
	}
	st.ads.cfg.Observer.Received(st.ads.Name(), u.Type, len(u.Put))
	typeURL, nonce := u.Type, u.Nonce
	st.feed.Apply(st.ads.update(u), func(verdict error) { st.verdict(typeURL, nonce, verdict) })
	st.wakeSender()
}

// verdict takes in what the clients made of a response.
func (st *stream) verdict(typeURL, nonce string, err error) {
	st.mu.Lock()
	late := st.machine.Verdict(typeURL, nonce, err, time.Now())
	st.mu.Unlock()
	if late {
		st.ads.cfg.Log.Warn("clients refused a response that was already ACKed", "type", xds.Short(typeURL), "nonce", nonce, "err", err)
	}
	st.wakeSender()
}

func (st *stream) wakeSender() {
	select {
	case st.poke <- struct{}{}:
	default:
	}
}

// update says what the machine read in the words of the Feed.
func (a *ADS) update(u *session.Update) Update {
	out := Update{Source: a.Name(), Type: u.Type, Put: u.Put, Remove: u.Remove, Complete: u.Complete}
	for _, r := range u.Refresh {
		out.Refresh = append(out.Refresh, Refresh(r))
	}
	for _, e := range u.Errors {
		out.Errors = append(out.Errors, ResourceError(e))
	}
	return out
}

// sendAll sends what the machine owes the server until ctx ends or the stream
// breaks. It returns nil when ctx ended.
func (st *stream) sendAll(ctx context.Context) error {
	node := st.feed.Node()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-st.poke:
		case <-st.interest.Changed():
			st.mu.Lock()
			for _, w := range st.interest.Take() {
				st.machine.Want(w.Type, w.Wildcard, w.Add, w.Drop)
			}
			st.mu.Unlock()
		}
		wake, err := st.flush(&node)
		if err != nil {
			return err
		}
		if wake.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(wake))
		}
	}
}

// flush sends everything that is due now and returns when more will be. The Node
// goes with the first request of the stream (protocol.md 7.10).
func (st *stream) flush(node **corev3.Node) (time.Time, error) {
	for {
		now := time.Now()
		st.mu.Lock()
		settled, settle := st.machine.Settled(now)
		req, wake := st.machine.Next(now)
		st.mu.Unlock()
		for _, typeURL := range settled {
			st.feed.Synced(st.ads.Name(), typeURL)
		}
		if req == nil {
			if wake.IsZero() || !settle.IsZero() && settle.Before(wake) {
				wake = settle
			}
			return wake, nil
		}
		if err := st.wire.send(req, *node); err != nil {
			return time.Time{}, fmt.Errorf("sending: %w", err)
		}
		*node = nil
		st.log(req)
	}
}

func (st *stream) log(req *session.Request) {
	log := st.ads.cfg.Log.With("type", xds.Short(req.Type))
	switch {
	case req.NACK != "":
		log.Warn("response refused", "nonce", req.Nonce, "err", req.NACK)
		st.ads.cfg.Observer.Answered(st.ads.Name(), req.Type, true)
	case req.Nonce != "":
		log.Debug("response ACKed", "nonce", req.Nonce)
		st.ads.cfg.Observer.Answered(st.ads.Name(), req.Type, false)
	default:
		log.Debug("subscribed", "names", len(req.Names)+len(req.Subscribe), "dropped", len(req.Unsubscribe), "held", len(req.Initial))
	}
}
