package upstream

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/resolver"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// port is an address that accepts connections, or does not.
type port struct {
	open    atomic.Bool
	attempt atomic.Int64
	server  atomic.Pointer[net.Conn] // the server's end of the newest connection
}

func (p *port) connect(context.Context, string, string) (net.Conn, error) {
	p.attempt.Add(1)
	if !p.open.Load() {
		return nil, errDown
	}
	client, server := net.Pipe()
	p.server.Store(&server)
	return client, nil
}

func TestAClosedPortIsTriedEachHalfSecondAndTheConnectionKept(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &port{}
		d := newDialer(p.connect)
		attempt := &dialing{dialer: d}
		if _, err := attempt.dialGRPC(t.Context(), "192.0.2.1:1"); err == nil {
			t.Fatal("nobody accepts")
		}
		var away *unreachable
		if err := attempt.classify(errDown); !errors.As(err, &away) || !errors.Is(err, errDown) {
			t.Fatalf("the reason is %v", err)
		}
		begun := time.Now()
		if away.await(t.Context(), begun) {
			t.Error("nobody accepts, and it says so")
		}
		if took := time.Since(begun); (took - lookupInterval).Abs() > lookupInterval/5 {
			t.Errorf("the name is looked up after %s, want about %s", took, lookupInterval)
		}
		if n := p.attempt.Load(); n < 7 || n > 20 {
			t.Errorf("%d attempts in %s", n, lookupInterval)
		}
		p.open.Store(true)
		begun = time.Now()
		if !away.await(t.Context(), begun) {
			t.Fatal("it is not found")
		}
		if took := time.Since(begun); took > redialInterval*3/2 {
			t.Errorf("found after %s", took)
		}
		// The stream uses that connection: the server sees only one.
		n := p.attempt.Load()
		attempt = &dialing{dialer: d}
		conn, err := attempt.dialGRPC(t.Context(), "192.0.2.1:1")
		if err != nil || p.attempt.Load() != n {
			t.Errorf("%v after %d further attempts", err, p.attempt.Load()-n)
		}
		_ = conn.Close()
		_, _ = conn.Read(make([]byte, 1))
		if err := attempt.classify(errDown); err != errDown {
			t.Errorf("of a server that was reached: %v", err)
		}
		// A connection that the server closes is lost.
		attempt = &dialing{dialer: d}
		if conn, err = attempt.dialGRPC(t.Context(), "192.0.2.1:1"); err != nil {
			t.Fatal(err)
		}
		_ = (*p.server.Load()).Close()
		_, _ = conn.Read(make([]byte, 1))
		var gone *lost
		if err := attempt.classify(errDown); !errors.As(err, &gone) || !errors.Is(err, errDown) {
			t.Errorf("of a connection that is lost: %v", err)
		}
	})
}

// A spare connection is used for its own address only, and not after spareFor.
func TestASpareConnectionIsNotUsedForLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &port{}
		p.open.Store(true)
		d := newDialer(p.connect)
		to := address{"tcp", "192.0.2.1:1"}
		if !d.await(t.Context(), []address{to}, time.Now()) {
			t.Fatal("nobody accepts")
		}
		spare := *p.server.Load()
		if c := d.take(address{"unix", "/x"}); c != nil {
			t.Error("it is taken for another address")
		}
		time.Sleep(spareFor + 1)
		if c := d.take(to); c != nil {
			t.Error("it is taken though it has waited for long")
		}
		if _, err := spare.Read(make([]byte, 1)); err == nil {
			t.Error("it is not closed")
		}
	})
}

// After an hour, attempts become less frequent.
func TestAPortThatIsClosedForLongIsTriedLessOften(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &port{}
		d := newDialer(p.connect)
		long := time.Now()
		time.Sleep(redialEarly + 1)
		d.await(t.Context(), []address{{"tcp", "192.0.2.1:1"}}, long)
		if n := p.attempt.Load(); n > 3 {
			t.Errorf("%d attempts", n)
		}
	})
}

// With the real client: the port is closed for an hour. Within a second after it opens, the stream
// is there, in both forms, and no other source is tried because of it.
func TestAfterAnHourAControlPlaneIsFoundWithinASecond(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		c.cp.Stop()
		pipe := &xdstest.Pipe{}
		c.cfg.Dial = pipe.Connect
		ctx, cancel := context.WithCancel(c.Context())
		defer cancel()
		f := &Failover{Sources: []Source{source(c.T, c.cfg)}}
		ended := make(chan error)
		go func() { ended <- f.Run(ctx, c.state) }()
		time.Sleep(time.Hour - time.Second)
		cp := xdstest.New(xdstest.Config{})
		cp.Set(xdstest.Cluster("c1", ""))
		cp.Serve(pipe.Listen())
		defer cp.Stop()
		time.Sleep(redialInterval * 3 / 2)
		synctest.Wait()
		if !f.States()[0].Active {
			c.Errorf("%+v", f.States()[0])
		}
		cancel()
		<-ended
	})
}

// What a connection meets first after the other side has reset it may be a write or a read: both say that it was lost.
// That this side has closed it does not.
func TestAConnectionIsLostByAReadOrAWrite(t *testing.T) {
	read := func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }
	write := func(c net.Conn) { _, _ = c.Write([]byte{1}) }
	for name, tc := range map[string]struct {
		meets  func(net.Conn)
		closes bool // this side does
		want   bool
	}{
		"a read":                {read, false, true},
		"a write":               {write, false, true},
		"a read after Close":    {read, true, false},
		"a write after Close":   {write, true, false},
		"nothing was exchanged": {func(net.Conn) {}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := &port{}
			p.open.Store(true)
			d := &dialing{dialer: newDialer(p.connect)}
			conn, err := d.dial(t.Context(), "tcp", "127.0.0.1:1")
			if err != nil {
				t.Fatal(err)
			}
			_ = (*p.server.Load()).Close()
			if tc.closes {
				_ = conn.Close()
			}
			tc.meets(conn)
			if got := errors.As(d.classify(errDown), new(*lost)); got != tc.want {
				t.Errorf("lost is %t, want %t", got, tc.want)
			}
		})
	}
}

// A name that is not found is looked up again soon: a name server that was away, or a control plane that was made anew, costs no minute.
func TestANameThatIsNotFoundIsLookedUpAgainSoon(t *testing.T) {
	for away, about := range map[time.Duration]time.Duration{0: relookInterval, 5 * time.Minute: lookupInterval, 2 * time.Hour: 2 * redialLate} {
		bubble.Test(t, func(t *testing.T) {
			d := newDialer(func(context.Context, string, string) (net.Conn, error) { return nil, errDown })
			d.lookup = func(_ context.Context, host string) ([]string, error) {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			attempt := &dialing{dialer: d}
			_, err := attempt.dialName(t.Context(), "tcp", "xds.test:1")
			var missing *unreachable
			if err = attempt.classify(err); !errors.As(err, &missing) || reasonOf(err) != ReasonName {
				t.Fatalf("the reason is %v", err)
			}
			begun := time.Now()
			if missing.await(t.Context(), begun.Add(-away)) {
				t.Error("it was not found, and accepts connections")
			}
			if took := time.Since(begun); (took - about).Abs() > about/5 {
				t.Errorf("after %s it is looked up again after %s, want about %s", away, took, about)
			}
		})
	}
}

// REST and gRPC try every address of a name, each attempt in another order, and first the one that has accepted a connection just now.
func TestEveryAddressOfANameIsTried(t *testing.T) {
	const good = "192.0.2.2:1"
	tried := make(map[string]bool)
	d := newDialer(func(_ context.Context, _, addr string) (net.Conn, error) {
		tried[addr] = true
		if addr != good {
			return nil, errDown
		}
		client, _ := net.Pipe()
		return client, nil
	})
	d.lookup = func(context.Context, string) ([]string, error) {
		return []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"}, nil
	}
	conn, err := (&dialing{dialer: d}).dialName(t.Context(), "tcp", "xds.test:1")
	if err != nil || conn == nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	attempt := &dialing{dialer: d}
	list := attempt.inOrder([]resolver.Address{{Addr: good}, {Addr: "192.0.2.1:1"}, {Addr: "[2001:db8::1]:1"}, {Addr: "192.0.2.9:1"}})
	if list[0].Addr == good || len(list) != 4 {
		t.Errorf("%v: one that was just used is first", list)
	}
	if !d.redial(t.Context(), address{"tcp", good}) {
		t.Fatal("it does not accept")
	}
	if list := attempt.inOrder(list); list[0].Addr != good {
		t.Errorf("%v: one that has just accepted is not first", list)
	}
	d.lookup = func(context.Context, string) ([]string, error) { return []string{"192.0.2.7"}, nil }
	if _, err := attempt.dialName(t.Context(), "tcp", "xds.test:1"); !errors.Is(err, errDown) || d.several() {
		t.Errorf("%v, several %v", err, d.several())
	}
	if _, err := attempt.dialName(t.Context(), "tcp", "[2001:db8::7]:1"); !errors.Is(err, errDown) || !tried["[2001:db8::7]:1"] {
		t.Errorf("an address: %v", err)
	}
	d.drop()
}
