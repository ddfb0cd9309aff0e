package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// Envoy's windows (connection, stream), for which the client stands.
const (
	connWindow   = 24 << 20
	streamWindow = 16 << 20
)

// retryEvery is how often a socket is tried on which nobody listens yet.
const retryEvery = 200 * time.Microsecond

const adsPath = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"

var adsMethods = map[form]string{sotw: adsPath + "StreamAggregatedResources", delta: adsPath + "DeltaAggregatedResources"}

// clientConfig says what a client does.
type clientConfig struct {
	form    form
	typeURL string
	names   []string // none: everything
	method  string   // "": that of ADS
	// deaf: it never reads. mute: it never acknowledges.
	deaf, mute bool
	// remembers makes it come back after its stream ended, with the versions it holds.
	remembers bool
}

// event is a response that a client received.
type event struct {
	response
	at time.Time
}

// A client is one xDS stream. It reads what it must of each response, acknowledges
// it, and passes it on to whoever awaits it.
type client struct {
	clientConfig
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup
	dial   func(ctx context.Context) (net.Conn, error)
	conn   *grpc.ClientConn // of several streams, or nil

	events    chan event
	received  atomic.Int64 // bytes of resources
	connected atomic.Int64 // when the first connection was made, in ns
	failed    chan error

	held map[string]string // owned by run
}

// dialer returns a function that connects to a socket as soon as somebody listens.
func dialer(socket string) func(ctx context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		for {
			c, err := net.Dial(network(socket), socket)
			if err == nil {
				return c, nil
			}
			select {
			case <-time.After(retryEvery):
			case <-ctx.Done():
				return nil, fmt.Errorf("nobody listens at %s: %w", socket, err)
			}
		}
	}
}

func connect(dial func(ctx context.Context) (net.Conn, error)) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///bench",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithInitialConnWindowSize(connWindow), grpc.WithInitialWindowSize(streamWindow),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.WaitForReady(true)))
}

// startClient starts a client on the socket; shared may be a connection that it
// has in common with others, or nil.
func startClient(ctx context.Context, socket string, shared *grpc.ClientConn, cfg clientConfig) *client {
	if cfg.method == "" {
		cfg.method = adsMethods[cfg.form]
	}
	c := &client{clientConfig: cfg, conn: shared, events: make(chan event, 1024), failed: make(chan error, 1), held: make(map[string]string)}
	c.ctx, c.cancel = context.WithCancel(ctx)
	raw := dialer(socket)
	c.dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := raw(ctx)
		if err == nil {
			c.connected.CompareAndSwap(0, time.Now().UnixNano())
		}
		return conn, err
	}
	c.ended.Go(c.run)
	return c
}

// stop ends the client.
func (c *client) stop() {
	c.cancel()
	c.ended.Wait()
}

func (c *client) run() {
	for {
		err := c.stream()
		if c.ctx.Err() != nil {
			return
		}
		if !c.remembers {
			c.failed <- err
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// stream is the client's life on one stream.
func (c *client) stream() error {
	conn := c.conn
	if conn == nil {
		var err error
		if conn, err = connect(c.dial); err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
	}
	wire, err := conn.NewStream(c.ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, c.method)
	if err != nil {
		return err
	}
	first := request{typeURL: c.typeURL, names: c.names}
	if c.form == delta {
		first.held = c.held
	}
	if err := send(wire, c.form, first, appendNode(nil, "bench")); err != nil {
		return err
	}
	if c.deaf {
		<-c.ctx.Done()
		return nil
	}
	for {
		var f frame
		if err := wire.RecvMsg(&f); err != nil {
			return err
		}
		r, err := scanResponse(f.data, c.form, c.each())
		f.data.Free()
		if err != nil {
			return err
		}
		c.received.Add(int64(r.body))
		if !c.mute {
			ack := request{typeURL: r.typeURL, nonce: r.nonce}
			if c.form == sotw {
				ack.version, ack.names = r.version, c.names
			}
			if err := send(wire, c.form, ack, nil); err != nil {
				return err
			}
		}
		select {
		case c.events <- event{response: r, at: f.at}:
		case <-c.ctx.Done():
			return nil
		}
	}
}

func (c *client) each() func(name, version string) {
	if !c.remembers {
		return nil
	}
	return func(name, version string) { c.held[name] = version }
}

func send(wire grpc.ClientStream, f form, r request, node []byte) error {
	return wire.SendMsg(mem.BufferSlice{mem.SliceBuffer(appendRequest(nil, f, r, node))})
}

// next returns the next response.
func (c *client) next(ctx context.Context, what string) (event, error) {
	select {
	case e := <-c.events:
		return e, nil
	case err := <-c.failed:
		return event{}, fmt.Errorf("the client's stream ended while it waited for %s: %w", what, err)
	case <-ctx.Done():
		return event{}, awaited(ctx, what+" at the client")
	}
}

// full waits until the client has n resources, and returns the response that made
// it so. There is always one, even for none.
func (c *client) full(ctx context.Context, n int) (event, error) {
	for have := 0; ; {
		e, err := c.next(ctx, fmt.Sprintf("%d resources (so far %d)", n, have))
		if err != nil {
			return e, err
		}
		if c.form == sotw {
			have = 0
		}
		if have += e.resources; have >= n {
			return e, nil
		}
	}
}

// change waits for a response with the marker of a change, or a newer one.
func (c *client) change(ctx context.Context, marker uint64) (event, error) {
	for {
		e, err := c.next(ctx, fmt.Sprintf("change %d", marker))
		if err != nil || e.marker >= marker {
			return e, err
		}
	}
}
