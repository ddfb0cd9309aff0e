package downstream

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"github.com/holdfast-xds/holdfast/internal/reconnect"
)

// How clients are sent to another connection. An Envoy keeps an open stream after a GOAWAY (protocol.md 11.6), and gRPC
// ends streams only by closing the connection, which clients take for a failure. So the streams of a connection that
// got a GOAWAY are ended here, with a status that says that nothing has failed.
const (
	// leaveAfter is how long the streams of a connection that is too old go on after its GOAWAY, in which a client may
	// open another one first.
	leaveAfter = time.Second
	// closeAfter is how long after its GOAWAY a connection that is too old is closed, whatever is left on it.
	closeAfter = 10 * time.Second
	// leaveInterval is the mean time between the ends of two streams when the server stops.
	leaveInterval = 10 * time.Millisecond
)

// keepalive returns when connections are pinged, and sent away.
func (c Config) keepalive() keepalive.ServerParameters {
	return keepalive.ServerParameters{
		Time: serverPingTime, Timeout: serverPingTimeout,
		MaxConnectionIdle: c.MaxConnectionIdle,
		MaxConnectionAge:  c.MaxConnectionAge, MaxConnectionAgeGrace: closeAfter, // gRPC makes the age 10 % longer or shorter at random
	}
}

// sendsAway reports whether connections may get a GOAWAY while they have streams.
func (c Config) sendsAway() bool { return c.MaxConnectionAge > 0 || c.Drain > 0 }

// stop ends the connections and streams of a gRPC server.
func (s *Server) stop(g *grpc.Server) {
	if s.cfg.Drain == 0 {
		g.Stop()
		return
	}
	s.mu.Lock()
	spread := min(s.cfg.Drain, time.Duration(len(s.streams))*leaveInterval)
	s.draining = max(s.draining, spread, 1) // several listeners are drained at once
	s.mu.Unlock()
	late := time.AfterFunc(s.cfg.Drain+leaveAfter, g.Stop)
	g.GracefulStop()
	late.Stop()
}

// leaveIn returns how long a stream goes on after the GOAWAY of its connection, and the status with which it ends.
func (s *Server) leaveIn() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining > 0 {
		return rand.N(s.draining), reconnect.Moved(reconnect.Stopping)
	}
	return leaveAfter, reconnect.Moved(reconnect.MaxAge)
}

// Expirer is an identity (Config.Identify) that holds for a time only.
type Expirer interface {
	// ExpiresAt is when what proves the identity expires; the zero time for never.
	ExpiresAt() time.Time
}

// await waits for the first result of the receiver or the sender, or until the stream must end, after a GOAWAY or because its client's identity has expired.
func (st *stream) await(ctx context.Context, results <-chan error) error {
	leaving := leavingOf(ctx)
	var due <-chan time.Time
	var moved error
	var expired <-chan time.Time
	if of, ok := st.identity.(Expirer); ok && !of.ExpiresAt().IsZero() {
		expired = time.After(max(0, time.Until(of.ExpiresAt())))
	}
	for {
		select {
		case <-expired:
			st.moved.Store(true)
			return reconnect.Moved(reconnect.Expired)
		case err := <-results:
			return toStatus(err)
		case <-leaving:
			var in time.Duration
			in, moved = st.server.leaveIn()
			leaving, due = nil, time.After(in)
		case <-due:
			st.moved.Store(true)
			return moved
		}
	}
}

// leavingOf returns the channel that is closed when the connection of a call gets a GOAWAY; nil for never.
func leavingOf(ctx context.Context) <-chan struct{} {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	info, _ := p.AuthInfo.(authInfo)
	return info.leaving
}

// departing is a connection that gRPC writes to. It says when gRPC has sent a GOAWAY, for which gRPC has no callback.
// Close may be called by any goroutine, Write by one at a time.
type departing struct {
	net.Conn
	frames  frames
	leaving chan struct{}
	once    sync.Once
}

// NetConn returns the connection that gRPC writes to.
func (c *departing) NetConn() net.Conn { return c.Conn }

func (c *departing) Write(p []byte) (int, error) {
	if c.frames.goAway(p) {
		c.once.Do(func() { close(c.leaving) })
	}
	return c.Conn.Write(p)
}

const (
	frameHeader  = 9 // bytes: length (3), type, flags, stream (RFC 9113, section 4.1)
	goAwayType   = 7
	goAwayFixed  = 8 // bytes: last stream, error code (RFC 9113, section 6.8)
	goAwayNoFlaw = 0 // NO_ERROR
)

// frames follows the frames of one direction of an HTTP/2 connection, from their first byte, in pieces of any sizes.
type frames struct {
	head []byte // the beginning of a frame, until its header is complete, and of a GOAWAY its fixed part
	skip int    // bytes of the frame that are left
}

// goAway reads a piece, and reports whether it completes the fixed part of a GOAWAY without an error.
func (f *frames) goAway(p []byte) (found bool) {
	for len(p) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(p))
			f.skip, p = f.skip-n, p[n:]
			continue
		}
		need := frameHeader
		if len(f.head) >= frameHeader {
			need += goAwayFixed
		}
		n := min(need-len(f.head), len(p))
		f.head, p = append(f.head, p[:n]...), p[n:]
		if len(f.head) < need {
			return found
		}
		length := int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		switch {
		case f.head[3] == goAwayType && length >= goAwayFixed && need == frameHeader:
			continue // its fixed part follows
		case need > frameHeader:
			found = found || binary.BigEndian.Uint32(f.head[frameHeader+4:]) == goAwayNoFlaw
			length -= goAwayFixed
		}
		f.head, f.skip = f.head[:0], length
	}
	return found
}
