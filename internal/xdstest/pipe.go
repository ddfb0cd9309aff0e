package xdstest

import (
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// pipeBytes is what one direction of an in-memory connection buffers.
const pipeBytes = 256 << 10

// ErrRefused is what dialing a Pipe gives while nobody listens.
var ErrRefused = errors.New("xdstest: pipe: connection refused")

// Pipe is an in-memory address: something may listen at it, stop, and listen
// again, as a server that restarts does. The zero value is ready; in a synctest
// bubble, use it inside only.
type Pipe struct {
	mu  sync.Mutex
	lis *bufconn.Listener
}

// Listen makes new connections arrive at the listener that it returns, instead
// of at one that was returned before.
func (p *Pipe) Listen() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lis = bufconn.Listen(pipeBytes)
	return p.lis
}

// DialContext connects to the listener. Its address is not looked at, so that it
// fits grpc.WithContextDialer.
func (p *Pipe) DialContext(ctx context.Context, _ string) (net.Conn, error) {
	p.mu.Lock()
	lis := p.lis
	p.mu.Unlock()
	if lis == nil {
		return nil, ErrRefused
	}
	return lis.DialContext(ctx)
}

// Connect is DialContext for what dials networks.
func (p *Pipe) Connect(ctx context.Context, _, addr string) (net.Conn, error) {
	return p.DialContext(ctx, addr)
}

// DialOptions are what grpc.NewClient needs, with any target of the passthrough
// scheme, to connect through the pipe in plaintext.
func (p *Pipe) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(p.DialContext),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	}
}

// Dial returns a client connection through the pipe. The caller closes it.
func (p *Pipe) Dial(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///pipe", append(p.DialOptions(), opts...)...)
}
