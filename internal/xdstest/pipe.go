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

// pipeBytes is the size of the buffer of one direction of an in-memory connection.
const pipeBytes = 256 << 10

// ErrRefused is the error of dialing a Pipe without a listener.
var ErrRefused = errors.New("xdstest: pipe: connection refused")

// Pipe is an in-memory address with at most one listener, which may be replaced as by a server that
// restarts. The zero value is ready to use. A Pipe must not be shared between synctest bubbles.
type Pipe struct {
	mu  sync.Mutex
	lis *bufconn.Listener
}

// Listen returns a new listener that receives all new connections instead of the previous one.
func (p *Pipe) Listen() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lis = bufconn.Listen(pipeBytes)
	return &pipeListener{Listener: p.lis, pipe: p}
}

// pipeListener takes itself out of its Pipe when it is closed: bufconn allocates both buffers of a connection before it notices that
// nobody listens, which made hours of virtual time without a server cost seconds of a test.
type pipeListener struct {
	*bufconn.Listener
	pipe *Pipe
}

func (l *pipeListener) Close() error {
	l.pipe.mu.Lock()
	if l.pipe.lis == l.Listener {
		l.pipe.lis = nil
	}
	l.pipe.mu.Unlock()
	return l.Listener.Close()
}

// DialContext connects to the listener. It ignores the address, and fits grpc.WithContextDialer.
func (p *Pipe) DialContext(ctx context.Context, _ string) (net.Conn, error) {
	p.mu.Lock()
	lis := p.lis
	p.mu.Unlock()
	if lis == nil {
		return nil, ErrRefused
	}
	return lis.DialContext(ctx)
}

// Connect is DialContext with a network argument.
func (p *Pipe) Connect(ctx context.Context, _, addr string) (net.Conn, error) {
	return p.DialContext(ctx, addr)
}

// DialOptions are the options for grpc.NewClient to connect through the pipe in plaintext, with any
// target of the passthrough scheme.
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
