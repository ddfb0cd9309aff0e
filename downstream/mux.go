package downstream

import (
	"errors"
	"net"
	"sync"
	"time"
)

// preface is the beginning of every HTTP/2 connection with prior knowledge, and so of every gRPC
// connection (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0"

const sniffTimeout = 10 * time.Second // for the first bytes of a connection

// mux splits the connections of one listener into gRPC and REST connections by their first bytes:
// Envoy uses HTTP/2 for gRPC and HTTP/1.1 for REST (protocol.md 9.1, 9.6).
type mux struct {
	net.Listener
	grpc, rest *half
	sniffing   sync.WaitGroup
	count      func(change int) // called for each connection that is handed on, and closed
	departing  bool             // gRPC connections are a departing
}

// half is the listener of gRPC or of REST connections. Its channel is never closed.
type half struct {
	net.Listener // the common listener of both kinds
	conns        chan net.Conn
	done         chan struct{} // closed when the mux has ended
}

func newMux(lis net.Listener, count func(change int), watch bool) *mux {
	done := make(chan struct{})
	return &mux{
		Listener: lis, count: count, departing: watch,
		grpc: &half{lis, make(chan net.Conn), done},
		rest: &half{lis, make(chan net.Conn), done},
	}
}

// run accepts connections until the listener is closed, and returns when every connection was
// handed on or closed.
func (m *mux) run() {
	for {
		c, err := m.Accept()
		if err != nil {
			var temporary interface{ Temporary() bool }
			if !errors.Is(err, net.ErrClosed) && errors.As(err, &temporary) && temporary.Temporary() {
				time.Sleep(10 * time.Millisecond) // out of file descriptors, mostly
				continue
			}
			break
		}
		m.sniffing.Go(func() { m.sniff(c) })
	}
	close(m.grpc.done) // shared with rest
	m.sniffing.Wait()
}

// sniff reads from a connection until it is known to be gRPC or REST, and hands it on.
func (m *mux) sniff(c net.Conn) {
	known := make(chan struct{}) // closed when the kind is known
	defer close(known)
	m.sniffing.Go(func() {
		select {
		case <-known:
		case <-m.grpc.done:
			_ = c.Close() // do not wait for its client
		}
	})
	_ = c.SetReadDeadline(time.Now().Add(sniffTimeout))
	head := make([]byte, 0, len(preface))
	to := m.grpc
	for len(head) < len(preface) {
		n, err := c.Read(head[len(head):cap(head)])
		head = head[:len(head)+n]
		if string(head) != preface[:len(head)] {
			to = m.rest
			break
		}
		if err != nil {
			_ = c.Close()
			return
		}
	}
	_ = c.SetReadDeadline(time.Time{})
	m.count(1)
	under := c
	if m.departing && to == m.grpc {
		under = &departing{Conn: c, leaving: make(chan struct{})}
	}
	handed := &sniffed{Conn: under, from: addressOf(c), head: head, closed: sync.OnceFunc(func() { m.count(-1) })}
	select {
	case to.conns <- handed:
	case <-to.done:
		_ = handed.Close()
	}
}

func (h *half) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// sniffed is a connection whose first bytes were already read.
type sniffed struct {
	net.Conn
	from   net.Addr
	head   []byte // read by one goroutine, like Conn
	closed func() // may be called several times
}

// NetConn returns the connection whose first bytes were read.
func (c *sniffed) NetConn() net.Conn { return c.Conn }

// RemoteAddr returns the address of the client, which is a processAddr if its process is known.
func (c *sniffed) RemoteAddr() net.Addr { return c.from }

func (c *sniffed) Close() error {
	c.closed()
	return c.Conn.Close()
}

func (c *sniffed) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}
