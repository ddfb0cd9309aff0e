package upstream

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/resolver"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/wake"
)

// Timing of the attempts to connect to a server that accepts no connection.
const (
	// redialInterval is the mean time between two attempts to connect; each pause is random, from
	// half of it to one and a half. redialLate is the mean after redialEarly.
	redialInterval = 500 * time.Millisecond
	redialEarly    = time.Hour
	redialLate     = 5 * time.Second
	// redialTimeout bounds one such attempt.
	redialTimeout = 2 * time.Second
	// lookupInterval is the mean time after which the name is looked up and files are read again,
	// if no address has accepted a connection. Each is random, from a fifth less to a fifth more.
	lookupInterval = 5 * time.Second
	// relookInterval is that mean while the name is not found, for relookEarly.
	relookInterval = time.Second
	relookEarly    = time.Minute
	// maxRedialed is how many addresses of one server are tried at once.
	maxRedialed = 8
	// spareFor is how long a connection that such an attempt has made may wait for its stream.
	spareFor = time.Second
)

// address is an address of a server: "tcp" and host:port, or "unix" and a path.
type address struct{ network, addr string }

// dialer makes the connections to one server.
type dialer struct {
	// connect replaces the connection in tests, lookup the name server.
	connect func(ctx context.Context, network, addr string) (net.Conn, error)
	lookup  func(ctx context.Context, host string) ([]string, error)

	mu        sync.Mutex
	addresses addresses
	// spare is a connection to spareTo that an attempt to reconnect made at spareAt; nil for
	// none.
	spare   net.Conn
	spareTo address
	spareAt time.Time
	// route says how the server was reached last, and direct that its proxy did not let through what reached it directly since.
	route  string
	direct bool
}

func newDialer(connect func(context.Context, string, string) (net.Conn, error)) *dialer {
	if connect == nil {
		connect = (&net.Dialer{
			Timeout:         connectTimeout,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: tcpIdle, Interval: tcpInterval, Count: tcpProbes},
		}).DialContext
	}
	return &dialer{connect: connect, lookup: net.DefaultResolver.LookupHost}
}

// dialing tracks the connections of one attempt to open a stream.
type dialing struct {
	*dialer
	proxy *url.URL // nil for none

	mu      sync.Mutex
	reached bool
	lost    bool      // the other side has closed a connection, or it broke
	to      string    // the address that has accepted a connection; "" for none
	closed  []address // addresses that accepted no connection
}

// connection is a connection of an attempt. It records whether it was lost.
type connection struct {
	net.Conn
	of     *dialing
	closed atomic.Bool // closed by this side
}

func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.record(err)
	return n, err
}

// Write fails before Read does if the other side has reset the connection.
func (c *connection) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.record(err)
	return n, err
}

// record records that the connection was lost if it was not closed by this side.
func (c *connection) record(err error) {
	if err == nil || c.closed.Load() {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.lost = true
}

func (c *connection) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

// throughProxy is how Route begins for a server that is reached through a proxy.
const throughProxy = "through the proxy "

// Route says how the server was reached last, if it has a proxy; "" without one.
func (d *dialer) Route() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.route
}

// used records that an address is tried, or was left.
func (d *dialer) used(addr string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addresses.used(addr)
}

// several reports whether the server's name has more than one address.
func (d *dialer) several() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.addresses.count > 1
}

// took records how the server was reached, and whether that was directly because the proxy does not let it through.
func (d *dialer) took(route string, direct bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.route, d.direct = route, direct
}

// unheard makes the next attempt try the proxy first, because nothing was heard on the last one.
func (d *dialer) unheard() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.direct = false
}

// dialThrough connects to host:port through the proxy of the attempt, or directly if that does not let it through.
func (d *dialing) dialThrough(ctx context.Context, addr string) (net.Conn, error) {
	d.dialer.mu.Lock()
	direct := d.direct
	d.dialer.mu.Unlock()
	var refused error
	if !direct {
		within, cancel := context.WithTimeout(ctx, connectTimeout)
		conn, err := dial.Through(within, d.proxy, d.connect, addr)
		cancel()
		if err == nil {
			d.took(throughProxy+redact.MaskURL(d.proxy.String()), false)
			return d.reachedBy(conn, ""), nil
		}
		refused = err
	}
	conn, err := d.dialName(ctx, "tcp", addr)
	switch {
	case err == nil && refused != nil:
		d.took("directly, because the proxy does not let it through: "+redact.Line(refused.Error()), true)
	case err != nil && refused != nil:
		err = fmt.Errorf("%w; directly: %w", refused, err)
	case err != nil:
		d.unheard()
	}
	return conn, err
}

// dialGRPC connects for gRPC, which passes a Unix socket as a URL.
func (d *dialing) dialGRPC(ctx context.Context, addr string) (net.Conn, error) {
	if d.proxy != nil {
		return d.dialThrough(ctx, addr)
	}
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		return d.dial(ctx, "unix", path)
	}
	return d.dial(ctx, "tcp", addr)
}

// dialName connects to host:port. Every address of a name is tried.
func (d *dialing) dialName(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || net.ParseIP(host) != nil {
		return d.dial(ctx, network, addr)
	}
	hosts, err := d.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	list := make([]resolver.Address, len(hosts))
	for i, host := range hosts {
		list[i].Addr = net.JoinHostPort(host, port)
	}
	var conn net.Conn
	for _, to := range d.inOrder(list) {
		if conn, err = d.dial(ctx, network, to.Addr); err == nil || ctx.Err() != nil {
			break
		}
	}
	return conn, err
}

// inOrder puts the addresses of the server in the order in which this attempt tries them.
func (d *dialing) inOrder(list []resolver.Address) []resolver.Address {
	d.dialer.mu.Lock()
	defer d.dialer.mu.Unlock()
	first := ""
	if d.spare != nil {
		first = d.spareTo.addr
	}
	return d.addresses.order(list, first)
}

func (d *dialing) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	to := address{network, addr}
	d.used(addr)
	conn, err := d.take(to), error(nil)
	if conn == nil {
		conn, err = d.connect(ctx, network, addr)
	}
	if err == nil {
		return d.reachedBy(conn, addr), nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.closed) < maxRedialed {
		d.closed = append(d.closed, to)
	}
	return nil, err
}

// reachedBy records that the server was reached, at the address; "" for one that its proxy knows.
func (d *dialing) reachedBy(conn net.Conn, to string) *connection {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reached, d.to = true, cmp.Or(to, d.to)
	return &connection{Conn: conn, of: d}
}

// classify wraps the error that ended an attempt: in an *unreachable if no address accepted a
// connection or the name was not found, in a *lost if the connection was lost.
func (d *dialing) classify(err error) error {
	d.drop()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.to != "" {
		d.used(d.to) // others are tried before it
	}
	switch {
	case err == nil:
		return nil
	case d.lost:
		return &lost{err}
	case d.reached || len(d.closed) == 0 && reasonOf(err) != ReasonName:
		return err
	}
	closed := d.closed
	return &unreachable{err, func(ctx context.Context, since time.Time) bool { return d.await(ctx, closed, since) }}
}

// NotReady wraps the error of a source that has nothing to serve yet. It is run again when changed returns, which waits for
// what may end that, or for ctx.
func NotReady(err error, changed func(ctx context.Context)) error {
	return &unreachable{err, func(ctx context.Context, _ time.Time) bool {
		changed(ctx)
		return false
	}}
}

// unreachable is the error of an attempt in which no address of the server accepted a connection.
type unreachable struct {
	error
	// await waits until an address accepts a connection, and then returns true, or until the name
	// must be looked up again, and then returns false. since is when the server was last reached.
	await func(ctx context.Context, since time.Time) bool
}

func (u *unreachable) Unwrap() error { return u.error }

// lost is the error of an attempt whose connection the other side closed, or whose connection
// broke.
type lost struct{ error }

func (l *lost) Unwrap() error { return l.error }

// await tries to connect to the addresses until one accepts, and keeps that connection for the
// next attempt. It returns false when ctx or the interval of the next lookup ends first.
func (d *dialer) await(ctx context.Context, addrs []address, since time.Time) bool {
	interval, lookup := redialInterval, lookupInterval
	switch away := time.Since(since); {
	case away > redialEarly:
		interval, lookup = redialLate, 2*redialLate
	case away < relookEarly && len(addrs) == 0:
		lookup = relookInterval
	}
	ctx, cancel := context.WithTimeout(ctx, lookup*4/5+rand.N(lookup*2/5))
	defer cancel()
	var trying sync.WaitGroup
	for _, to := range addrs {
		trying.Go(func() {
			for wake.Sleep(ctx, interval/2+rand.N(interval)) {
				if d.redial(ctx, to) {
					cancel()
				}
			}
		})
	}
	if trying.Wait(); len(addrs) == 0 {
		<-ctx.Done()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.spare != nil
}

// redial tries to make the spare connection, and reports whether the address accepted one.
func (d *dialer) redial(ctx context.Context, to address) bool {
	ctx, cancel := context.WithTimeout(ctx, redialTimeout)
	defer cancel()
	conn, err := d.connect(ctx, to.network, to.addr)
	if err != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spare != nil {
		_ = conn.Close()
	} else {
		d.spare, d.spareTo, d.spareAt = conn, to, time.Now()
	}
	return true
}

// take returns the spare connection if it leads to the address and is not older than spareFor,
// else nil.
func (d *dialer) take(to address) net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	conn := d.spare
	if conn == nil || d.spareTo != to {
		return nil
	}
	d.spare = nil
	if time.Since(d.spareAt) > spareFor {
		_ = conn.Close() // the server may have closed it after a timeout
		return nil
	}
	return conn
}

// drop closes the spare connection, if there is one.
func (d *dialer) drop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spare != nil {
		_ = d.spare.Close()
		d.spare = nil
	}
}
