package listener

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// queue is a listener of connections that a test makes.
type queue struct {
	conns chan net.Conn
	errs  chan error
}

func newQueue() *queue { return &queue{make(chan net.Conn, 100), make(chan error, 100)} }

func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case err := <-q.errs:
		return nil, err
	}
}
func (q *queue) Close() error { q.errs <- net.ErrClosed; return nil }
func (*queue) Addr() net.Addr { return &net.UnixAddr{Name: "/x.sock", Net: "unix"} }

// connects makes a connection, and returns its client's side.
func (q *queue) connects() net.Conn {
	client, server := net.Pipe()
	q.conns <- server
	return client
}

// isClosed reports whether the other side of a connection has closed it.
func isClosed(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	var late net.Error
	return !errors.As(err, &late) || !late.Timeout()
}

type rig struct {
	*testing.T
	log      bytes.Buffer
	full     int
	queue    *queue
	pool     *Pool
	lis      net.Listener
	accepted []*Conn
}

func newRig(t *testing.T, limit int) *rig {
	r := &rig{T: t, queue: newQueue()}
	r.pool = NewPool(limit, slog.New(slog.NewTextHandler(&r.log, nil)), func() { r.full++ })
	r.lis = r.pool.Bound(r.queue)
	return r
}

func (r *rig) accept() *Conn {
	r.Helper()
	c, err := r.lis.Accept()
	if err != nil {
		r.Fatal(err)
	}
	r.accepted = append(r.accepted, Of(c))
	return Of(c)
}

func TestTheConnectionThatIsIdleForTheLongestTimeMakesRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		busy := r.queue.connects()
		r.accept().Begin()
		time.Sleep(time.Minute)
		used := r.queue.connects()
		second := r.accept()
		time.Sleep(time.Second)
		mute := r.queue.connects()
		r.accept()
		time.Sleep(time.Second)
		second.Begin()
		second.End() // idle since later than the one that never said anything
		time.Sleep(time.Minute)
		r.queue.connects()
		r.accept()
		if isClosed(busy) || isClosed(used) || !isClosed(mute) {
			t.Errorf("closed: with a request %t, used %t, mute %t", isClosed(busy), isClosed(used), isClosed(mute))
		}
		if r.full != 1 || strings.Count(r.log.String(), "level=ERROR") != 1 || !strings.Contains(r.log.String(), "LimitNOFILE") || !strings.Contains(r.log.String(), "addr=/x.sock limit=3") {
			t.Errorf("told %d times, logged:\n%s", r.full, r.log.String())
		}
	})
}

// A client has some time for its first request; until then others wait, as they do while all have requests.
func TestNewConnectionsWaitForRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		r.queue.connects()
		first := r.accept()
		first.Begin()
		fresh := r.queue.connects()
		r.accept()
		r.queue.connects()
		began := time.Now()
		third := r.accept()
		if d := time.Since(began); d != patience || !isClosed(fresh) {
			t.Errorf("waited %s, the mute one is closed: %t", d, isClosed(fresh))
		}
		third.Begin()
		r.queue.connects()
		got := make(chan *Conn, 1)
		go func() { got <- r.accept() }()
		time.Sleep(time.Hour)
		select {
		case <-got:
			t.Fatal("a connection was accepted, and all have requests")
		default:
		}
		if strings.Count(r.log.String(), "connections wait") != 1 {
			t.Errorf("logged:\n%s", r.log.String())
		}
		_ = first.Close()
		_ = first.Close() // gRPC closes again
		synctest.Wait()
		select {
		case <-got:
		default:
			t.Error("there is room, and it still waits")
		}
		if len(r.pool.open) != 2 {
			t.Errorf("%d are open", len(r.pool.open))
		}
	})
}

// Whoever waits wakes when a request has ended, and some time has passed.
func TestTheEndOfARequestMakesRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.queue.connects()
		first := r.accept()
		first.Begin()
		r.queue.connects()
		time.AfterFunc(time.Minute, first.End)
		began := time.Now()
		r.accept()
		if d := time.Since(began); d != time.Minute+patience {
			t.Errorf("waited %s", d)
		}
	})
}

func TestTheListenersOfAPoolShareIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		mute := r.queue.connects()
		r.accept()
		time.Sleep(patience)
		other := newQueue()
		other.connects()
		if _, err := r.pool.Bound(other).Accept(); err != nil || !isClosed(mute) {
			t.Errorf("%v, closed: %t", err, isClosed(mute))
		}
	})
}

func TestAListenerThatIsClosedWaitsForNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.queue.connects()
		r.accept().Begin()
		waiting := r.queue.connects()
		ended := make(chan error, 1)
		go func() {
			_, err := r.lis.Accept()
			ended <- err
		}()
		synctest.Wait()
		_ = r.lis.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) || !isClosed(waiting) {
			t.Errorf("%v, the connection is closed: %t", err, isClosed(waiting))
		}
	})
}

func TestTooManyOpenFilesAreLoggedNowAndThen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, 10)
		fails := func(err error) {
			r.queue.errs <- err
			if _, got := r.lis.Accept(); !errors.Is(got, err) {
				t.Fatal(got)
			}
		}
		lines := func() int { return strings.Count(r.log.String(), "level=ERROR") }
		for range 100 {
			fails(&net.OpError{Op: "accept", Err: syscall.EMFILE})
		}
		if lines() != 1 || !strings.Contains(r.log.String(), "too many files are open") || r.full != 100 {
			t.Errorf("told %d times, logged:\n%s", r.full, r.log.String())
		}
		time.Sleep(warnEvery)
		fails(syscall.ENFILE)
		fails(net.ErrClosed)
		if lines() != 2 {
			t.Errorf("after a while:\n%s", r.log.String())
		}
	})
}

func TestWhatIsBelowAConnectionIsFound(t *testing.T) {
	conn := &Conn{}
	if Of(tls.Server(conn, &tls.Config{})) != conn {
		t.Error("not found below TLS")
	}
	client, _ := net.Pipe()
	if c := Of(client); c != nil {
		t.Error("a connection of no pool")
	}
	Of(client).Begin() // nothing happens
	Of(client).End()
}

// A client of another machine has more time, also beside one of this machine that is idle for less.
func TestAClientThatIsFarAwayHasMoreTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		far := &farQueue{newQueue()}
		distant := far.connects()
		if _, err := r.pool.Bound(far).Accept(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(patience)
		near := r.queue.connects()
		r.accept()
		time.Sleep(patience)
		r.queue.connects()
		r.accept()
		if isClosed(distant) || !isClosed(near) {
			t.Errorf("closed: far %t, near %t", isClosed(distant), isClosed(near))
		}
	})
}

type farQueue struct{ *queue }

func (*farQueue) Addr() net.Addr { return &net.TCPAddr{} }

func TestTheReserve(t *testing.T) {
	for limit, want := range map[uint64][2]int{
		16: {4, 5}, 64: {24, 5}, 256: {216, 5}, 1024: {896, 16}, 65536: {64512, 128}, ^uint64(0): {1<<30 - 1024, 128},
	} {
		if clients, others := room(limit); clients != want[0] || others != want[1] {
			t.Errorf("of %d: %d and %d, want %v", limit, clients, others, want)
		}
	}
}
