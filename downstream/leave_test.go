package downstream_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/memory"
	"github.com/holdfast-xds/holdfast/internal/reconnect"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// A connection that is too old gets a GOAWAY, after which no new stream comes over it, and the streams that are left end
// with a status that says that nothing has failed. What is sent until then arrives.
func TestTheStreamsOfAnOldConnectionEndPolitely(t *testing.T) {
	const age = time.Minute
	inBothForms(t, downstream.Config{MaxConnectionAge: age}, func(s *service) {
		conn := s.dial()
		c := s.client(conn)
		begun := time.Now()
		c.Subscribe(xds.ClusterType)
		s.put(xdstest.Cluster("c1", ""))
		s.quiet()
		s.holds(c, "c1")
		for conn.GetState() == connectivity.Ready { // until the GOAWAY
			s.pass(10 * time.Millisecond)
		}
		if after := time.Since(begun); after < age*9/10-time.Second || after > age*11/10+time.Second {
			s.Errorf("GOAWAY after %s, want 10 %% more or less than %s", after, age)
		}
		s.put(xdstest.Cluster("c1", ""), xdstest.Cluster("c2", ""))
		s.pass(900 * time.Millisecond)
		s.holds(c, "c1", "c2")
		s.pass(200 * time.Millisecond)
		if err := c.Err(); !reconnect.IsMoved(err) || status.Code(err) != codes.Unavailable {
			s.Errorf("the stream ended with %v", err)
		}
		if err := c.Reconnect(s.Context()); err != nil {
			s.Fatal(err)
		}
		s.put(xdstest.Cluster("c1", ""), xdstest.Cluster("c2", ""), xdstest.Cluster("c3", ""))
		s.quiet()
		s.holds(c, "c1", "c2", "c3")
	})
}

// Connections that were opened together do not end together.
func TestOldConnectionsEndApart(t *testing.T) {
	const age, clients = time.Minute, 20
	inBothForms(t, downstream.Config{MaxConnectionAge: age}, func(s *service) {
		var open []*xdstest.Client
		for range clients {
			c := s.client(s.dial())
			c.Subscribe(xds.ClusterType)
			open = append(open, c)
		}
		s.pass(age * 9 / 10)
		most := 0
		for range 14 { // seconds, from 9/10 of the age to 11/10 and the time to leave
			before := len(open)
			open = slices.DeleteFunc(open, func(c *xdstest.Client) bool { return c.Err() != nil })
			most = max(most, before-len(open))
			s.pass(time.Second)
		}
		open = slices.DeleteFunc(open, func(c *xdstest.Client) bool { return c.Err() != nil })
		if len(open) > 0 || most > clients*3/4 {
			s.Errorf("%d of %d streams ended within a second, and %d are open", most, clients, len(open))
		}
	})
}

// A server that ends sends its clients away one after the other, and each with a status that says that nothing has
// failed. It returns as soon as the last one has left.
func TestAServerThatEndsSendsItsClientsAwayOneAfterTheOther(t *testing.T) {
	const clients = 100
	inBothForms(t, downstream.Config{Drain: time.Minute}, func(s *service) {
		var all []*xdstest.Client
		for range clients {
			c := s.client(s.dial())
			c.Subscribe(xds.ClusterType)
			all = append(all, c)
		}
		s.put(xdstest.Cluster("c1", ""))
		s.quiet()
		began := time.Now()
		ended := make(chan time.Duration, 1)
		go func() {
			s.end()
			ended <- time.Since(began)
		}()
		s.pass(clients * 10 * time.Millisecond / 2)
		open := 0
		for _, c := range all {
			if c.Err() == nil {
				open++
			}
		}
		if open < clients/10 || open > clients*9/10 {
			s.Errorf("%d of %d streams are open after half of the time", open, clients)
		}
		if took := <-ended; took > clients*10*time.Millisecond+100*time.Millisecond {
			s.Errorf("the end took %s", took)
		}
		s.quiet() // the last one hears of it
		for _, c := range all {
			if err := c.Err(); !reconnect.IsMoved(err) {
				s.Fatalf("a stream ended with %v", err)
			}
		}
	})
}

// A client that does not read, and a stream without a request, hold the end up for a bounded time.
func TestAClientThatDoesNotLeaveIsCut(t *testing.T) {
	inBothForms(t, downstream.Config{Drain: 5 * time.Second}, func(s *service) {
		s.client(s.dial()) // it sends no request
		s.quiet()
		began := time.Now()
		s.end()
		if took := time.Since(began); took < 5*time.Second || took > 7*time.Second {
			s.Errorf("the end took %s", took)
		}
	})
}

// Nothing is allocated when a client goes, so that somebody must say that its memory can be given back.
func TestTheMemoryOfAClientThatLeavesIsGivenBack(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		c := s.client(s.dial())
		c.Subscribe(xds.ClusterType)
		ctx, cancel := context.WithCancel(s.Context())
		defer cancel()
		go memory.GiveBack(ctx, slog.New(slog.DiscardHandler))
		s.pass(10 * time.Second) // what was allocated before
		collections := func() uint32 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.NumForcedGC
		}
		before := collections()
		s.pass(10 * time.Second)
		if n := collections(); n != before {
			s.Errorf("%d collections though nobody left", n-before)
		}
		c.Close()
		s.pass(10 * time.Second)
		if collections() == before {
			s.Error("a client has gone, and nothing was collected")
		}
	})
}

// until is an identity that expires.
type until time.Time

func (u until) ExpiresAt() time.Time { return time.Time(u) }

// Finding S17: a stream ends with the token or the certificate by which it was opened, with a status that says that nothing has failed,
// and not before; another one that proves its identity anew goes on. One whose identity does not expire stays.
func TestStream_EndsWhenItsIdentityExpires(t *testing.T) {
	const lifetime = time.Hour
	expires := true
	inBothForms(t, downstream.Config{Identify: func(context.Context, downstream.Credentials) (any, error) {
		if !expires {
			return until{}, nil
		}
		return until(time.Now().Add(lifetime)), nil
	}}, func(s *service) {
		expires = true
		c := s.client(s.dial())
		c.Subscribe(xds.ClusterType)
		s.put(xdstest.Cluster("c1", ""))
		s.pass(lifetime - time.Second)
		if err := c.Err(); err != nil {
			s.Fatalf("before its time it ended with %v", err)
		}
		s.pass(2 * time.Second)
		if err := c.Err(); !reconnect.IsMoved(err) || status.Code(err) != codes.Unavailable {
			s.Errorf("the stream ended with %v", err)
		}
		expires = false
		if err := c.Reconnect(s.Context()); err != nil {
			s.Fatal(err)
		}
		s.pass(10 * lifetime)
		s.holds(c, "c1")
		if err := c.Err(); err != nil {
			s.Errorf("without an end the stream ended with %v", err)
		}
	})
}

// A connection on which nobody opens a stream ends, and one with a stream that is silent does not.
func TestAConnectionWithoutAStreamEnds(t *testing.T) {
	const idle = time.Minute
	inBothForms(t, downstream.Config{MaxConnectionIdle: idle}, func(s *service) {
		used, unused := s.dial(), s.dial()
		c := s.client(used)
		c.Subscribe(xds.ClusterType)
		unused.Connect()
		s.quiet()
		if unused.GetState() != connectivity.Ready {
			s.Fatal(unused.GetState())
		}
		s.pass(idle - time.Second)
		if unused.GetState() != connectivity.Ready {
			s.Error("it ended early")
		}
		s.pass(30 * time.Second)
		if unused.GetState() == connectivity.Ready {
			s.Error("a connection without a stream is still open")
		}
		s.pass(10 * idle)
		if used.GetState() != connectivity.Ready || c.Err() != nil {
			s.Errorf("a connection with a stream: %s, %v", used.GetState(), c.Err())
		}
	})
}

// A client that opens streams without an end does not fill the log with them.
func TestStreamsOfAPeerAreLoggedSoOften(t *testing.T) {
	var log bytes.Buffer
	inBothForms(t, downstream.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(s *service) {
		log.Reset()
		conn := s.dial()
		for range 300 {
			c := s.client(conn)
			c.Subscribe(xds.ClusterType)
			s.quiet()
			c.Close()
			s.quiet()
		}
		if opened := strings.Count(log.String(), "stream opened"); opened != 60 {
			s.Errorf("%d lines on streams that were opened", opened)
		}
	})
}
