package listener

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

const (
	// warnEvery is the least interval between two warnings.
	warnEvery = time.Minute
	// patience is how long a connection has no request before it is closed in favour of another: a client that means it sends one at
	// once. A client of another machine may be far away, and has a handshake to make.
	patience    = 100 * time.Millisecond
	patienceFar = time.Second
)

// Pool bounds the open connections of its listeners together, so that descriptors are left for the files and connections of this
// process itself (Room). If there are as many, the one that has had no request for the longest time, and for its patience, is
// closed for a new one; while there is none, new ones wait. Requests are told with Conn.Begin, or Requests.
type Pool struct {
	limit int
	log   *slog.Logger
	full  func()
	warn  *rate.Limiter

	mu      sync.Mutex
	open    map[*Conn]struct{}
	changed chan struct{} // closed and made anew when a connection is closed, or has no request any more
}

// NewPool returns a pool of at most limit connections. It logs, at most once a minute, that connections are closed or wait. full,
// which may be nil, is called each time.
func NewPool(limit int, log *slog.Logger, full func()) *Pool {
	return &Pool{
		limit: max(limit, 1), log: log, full: full, warn: rate.NewLimiter(rate.Every(warnEvery), 1),
		open: make(map[*Conn]struct{}), changed: make(chan struct{}),
	}
}

// Bound returns a listener whose connections are of the pool.
func (p *Pool) Bound(lis net.Listener) net.Listener {
	far := patienceFar
	if lis.Addr().Network() == "unix" {
		far = patience
	}
	return &bounded{Listener: lis, pool: p, patience: far, closed: make(chan struct{})}
}

// Other returns a listener that is not that of clients, but of whom asks how the process is: with a bound of its own, in the reserve.
func Other(lis net.Listener, log *slog.Logger) net.Listener {
	_, others := Room()
	return &bounded{Listener: lis, pool: NewPool(others, log, nil), patience: patience, closed: make(chan struct{})}
}

// bounded is a listener of a pool.
type bounded struct {
	net.Listener
	pool     *Pool
	patience time.Duration
	once     sync.Once
	closed   chan struct{}
}

// Conn is a connection of a pool. A nil Conn has no bounds.
type Conn struct {
	net.Conn
	of       *Pool
	patience time.Duration
	// requests is the number of requests under way, idleSince when it became 0; of.mu guards both.
	requests  int
	idleSince time.Time
}

// Of returns the connection of a pool that is below c; nil for none.
func Of(c net.Conn) *Conn {
	conn, _ := Under[*Conn](c)
	return conn
}

// Under returns the first connection of a type among c and those that it is made of, as NetConn says.
func Under[T any](c net.Conn) (found T, ok bool) {
	for {
		if found, ok = c.(T); ok {
			return found, true
		}
		wrapper, is := c.(interface{ NetConn() net.Conn })
		if !is {
			return found, false
		}
		c = wrapper.NetConn()
	}
}

// NetConn returns the connection below c.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Begin says that a request has begun.
func (c *Conn) Begin() {
	if c == nil {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.requests++
}

// End says that a request has ended.
func (c *Conn) End() {
	if c == nil {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.requests--; c.requests == 0 {
		c.idleSince = time.Now()
		c.of.change()
	}
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.of.forget(c)
	return c.Conn.Close()
}

// change wakes what waits for room. Called with mu held.
func (p *Pool) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Pool) forget(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, open := p.open[c]; open {
		delete(p.open, c)
		p.change()
	}
}

// Requests tells the pool of the requests of an http.Server, whose ConnState it is.
func Requests(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateActive:
		Of(c).Begin()
	case http.StateIdle:
		Of(c).End()
	}
}

// Accept returns the next connection for which there is room. After Close the error is net.ErrClosed.
func (b *bounded) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err != nil {
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			b.isFull("connections wait, because too many files are open", "err", err)
		}
		return nil, err
	}
	conn := &Conn{Conn: c, of: b.pool, patience: b.patience}
	for {
		idle, next, changed, added := b.pool.add(conn)
		switch {
		case added:
			return conn, nil
		case idle != nil:
			b.isFull("a connection without requests was closed for another one, because too many are open")
			_ = idle.Close()
			continue
		}
		b.isFull("connections wait, because too many are open")
		select {
		case <-b.closed:
			_ = c.Close()
			return nil, net.ErrClosed
		case <-changed:
		case <-next:
		}
	}
}

// add adds a connection, or returns which one can be closed for it. If none can be, it returns when one may: after a time, or when
// something has changed.
func (p *Pool) add(conn *Conn) (idle *Conn, next <-chan time.Time, changed <-chan struct{}, added bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.open) < p.limit {
		conn.idleSince = time.Now()
		p.open[conn] = struct{}{}
		return nil, nil, nil, true
	}
	var due time.Time // when one may be closed
	for c := range p.open {
		if c.requests > 0 {
			continue
		}
		at := c.idleSince.Add(c.patience)
		if now := !at.After(time.Now()); now && (idle == nil || c.idleSince.Before(idle.idleSince)) {
			idle = c
		} else if !now && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	if idle == nil && !due.IsZero() {
		next = time.After(time.Until(due))
	}
	return idle, next, p.changed, false
}

func (b *bounded) isFull(message string, args ...any) {
	p := b.pool
	if p.full != nil {
		p.full()
	}
	if p.warn.Allow() {
		p.log.Error(message+": raise the limit of open files (ulimit -n, LimitNOFILE), or find out who holds so many connections",
			append(args, "addr", b.Addr().String(), "limit", p.limit)...)
	}
}

// Close stops listening. Open connections stay.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}
