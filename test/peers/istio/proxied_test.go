package istio

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"sync"
)

var discard = log.New(io.Discard, "", 0)

// proxiedKey is the key of what a PROXY header said in the context of a request.
type proxiedKey struct{}

// proxyListener accepts connections that may begin with a PROXY header.
type proxyListener struct{ net.Listener }

func (l proxyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &proxiedConn{Conn: conn, r: bufio.NewReader(conn)}, nil
}

// proxiedConn is a connection whose PROXY header is read before anything else.
type proxiedConn struct {
	net.Conn
	r    *bufio.Reader
	once sync.Once
	from string
}

func (c *proxiedConn) Read(p []byte) (int, error) {
	c.once.Do(func() { c.from = readProxyHeader(c.r) })
	return c.r.Read(p)
}

// withProxied adds to a context what the PROXY header says, once a request was read.
func withProxied(ctx context.Context, conn net.Conn) context.Context {
	return proxiedContext{ctx, conn}
}

type proxiedContext struct {
	context.Context
	conn net.Conn
}

func (c proxiedContext) Value(key any) any {
	if _, ok := key.(proxiedKey); ok {
		if p, ok := c.conn.(*proxiedConn); ok && p.from != "" {
			return p.from
		}
		return nil
	}
	return c.Context.Value(key)
}
