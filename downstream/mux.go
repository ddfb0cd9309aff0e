package downstream

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// preface is how every HTTP/2 connection with prior knowledge begins, and so
// every gRPC connection (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0"

// sniffTimeout is how long a new connection may take to say its first bytes.
const sniffTimeout = 10 * time.Second

// mux splits the connections of one listener into those of gRPC and those of
// REST, by their first bytes: Envoy speaks HTTP/2 for the one and HTTP/1.1 for
// the other (protocol.md 9.1, 9.6).
type mux struct {
	net.Listener
	grpc, rest *half
	sniffing   sync.WaitGroup
	count      func(change int) // told of each connection that is handed on, and closed
}

// half is the listener of one of the two kinds. Its channel is never closed.
type half struct {
	mux   *mux
	conns chan net.Conn
	done  chan struct{} // closed when the mux has ended
}

func newMux(lis net.Listener, count func(change int)) *mux {
	m := &mux{Listener: lis, count: count}
	done := make(chan struct{})
	m.grpc = &half{m, make(chan net.Conn), done}
	m.rest = &half{m, make(chan net.Conn), done}
	return m
}

// run accepts until the listener is closed, and returns when every connection
// was handed on or closed.
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

// sniff reads until the kind of a connection is known, and hands it on.
func (m *mux) sniff(c net.Conn) {
	known := make(chan struct{}) // closed when the kind is known
	defer close(known)
	m.sniffing.Go(func() {
		select {
		case <-known:
		case <-m.grpc.done:
			_ = c.Close() // its client need not be waited for
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
	handed := &sniffed{Conn: c, head: head, closed: sync.OnceFunc(func() { m.count(-1) })}
	select {
	case to.conns <- handed:
	case <-to.done:
		_ = handed.Close()
	}
}

// Accept returns the next connection of the kind.
func (h *half) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close closes the listener of both kinds.
func (h *half) Close() error {
	if err := h.mux.Listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Addr returns the address of the listener.
func (h *half) Addr() net.Addr { return h.mux.Listener.Addr() }

// sniffed is a connection of which the first bytes were read.
type sniffed struct {
	net.Conn
	head []byte // read by one goroutine, as Conn's Read
	// closed says so once.
	closed func()
}

// Close closes the connection, however often it is called.
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

// WriteTo lets the rest of the connection take its fast path.
func (c *sniffed) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(c.head)
	if c.head = c.head[n:]; err != nil {
		return int64(n), err
	}
	m, err := io.Copy(w, c.Conn)
	return int64(n) + m, err
}
