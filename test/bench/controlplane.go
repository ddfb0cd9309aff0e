package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// maxMessage is the largest message that the bench takes.
const maxMessage = 512 << 20

// A controlPlane serves its sets on a Unix socket, aggregated and per type. It can
// go away and come back. All methods may be called concurrently, except that only
// one goroutine waits at a time.
type controlPlane struct {
	path string
	form form
	// forgetful makes it resend everything on a new stream, whatever
	// initial_resource_versions says.
	forgetful bool
	// part is how many resources one Delta response holds at most, 0 for no limit.
	part int

	nonce    atomic.Uint64
	sent     atomic.Int64 // bytes of resources
	opened   atomic.Int64 // streams, ever
	requests atomic.Int64
	stirred  chan struct{} // holds an item after something was received

	mu       sync.Mutex
	server   *grpc.Server
	done     chan struct{} // closed when server has ended
	conns    map[net.Conn]struct{}
	accepted time.Time // the newest connection
	sets     map[string]*set
	streams  map[*stream]struct{}
	acked    uint64 // the newest nonce that was
	failure  error
}

func newControlPlane(path string, f form, sets ...*set) *controlPlane {
	cp := &controlPlane{path: path, form: f, sets: make(map[string]*set), streams: make(map[*stream]struct{}),
		conns: make(map[net.Conn]struct{}), stirred: make(chan struct{}, 1)}
	for _, s := range sets {
		cp.sets[s.typeURL] = s
	}
	return cp
}

// start listens and serves until stop.
func (cp *controlPlane) start() error {
	lis, err := net.Listen(network(cp.path), cp.path)
	if err != nil {
		return err
	}
	if network(cp.path) == "tcp" {
		cp.path = lis.Addr().String() // the same when it is started again
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(maxMessage), grpc.UnknownServiceHandler(cp.serve))
	done := make(chan struct{})
	cp.mu.Lock()
	cp.server, cp.done = server, done
	cp.mu.Unlock()
	go func() {
		defer close(done)
		_ = server.Serve(&watched{Listener: lis, cp: cp})
	}()
	return nil
}

// stop ends the server and its connections; nobody listens at the path then.
func (cp *controlPlane) stop() {
	cp.mu.Lock()
	server, done := cp.server, cp.done
	cp.server = nil
	cp.mu.Unlock()
	if server == nil {
		return
	}
	cp.cut()
	server.Stop()
	<-done
	if network(cp.path) == "unix" {
		_ = os.Remove(cp.path)
	}
}

// cut ends all connections; new ones are welcome.
func (cp *controlPlane) cut() {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	for c := range cp.conns {
		_ = c.Close()
		delete(cp.conns, c)
	}
}

// watched notes the connections that are accepted.
type watched struct {
	net.Listener
	cp *controlPlane
}

func (w *watched) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err == nil {
		w.cp.mu.Lock()
		w.cp.conns[c] = struct{}{}
		w.cp.accepted = time.Now()
		w.cp.mu.Unlock()
	}
	return c, err
}

// acceptedAt is when the newest connection came.
func (cp *controlPlane) acceptedAt() time.Time {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return cp.accepted
}

// stream is a client of the control plane.
type stream struct {
	cp   *controlPlane
	send sync.Mutex
	wire grpc.ServerStream
	subs map[string]*subscription // under cp.mu
}

// subscription is what a stream wants of a type: everything, or names.
type subscription struct {
	wildcard bool
	names    map[string]bool
}

func (cp *controlPlane) serve(_ any, wire grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(wire)
	if (method[strings.LastIndex(method, "/")+1:][:5] == "Delta") != (cp.form == delta) {
		return status.Errorf(codes.Unimplemented, "this control plane speaks %s", cp.form)
	}
	st := &stream{cp: cp, wire: wire, subs: make(map[string]*subscription)}
	cp.opened.Add(1)
	cp.mu.Lock()
	cp.streams[st] = struct{}{}
	cp.mu.Unlock()
	defer func() {
		cp.mu.Lock()
		delete(cp.streams, st)
		cp.mu.Unlock()
	}()
	for {
		var f frame
		if err := wire.RecvMsg(&f); err != nil {
			return err
		}
		b := f.data.MaterializeToBuffer(mem.DefaultBufferPool())
		req, err := scanRequest(b.ReadOnlyData(), cp.form)
		b.Free()
		f.data.Free()
		if err != nil {
			return err
		}
		if err := st.handle(req); err != nil {
			return err
		}
	}
}

func (st *stream) handle(req request) error {
	cp := st.cp
	cp.mu.Lock()
	if req.rejected {
		cp.failure = fmt.Errorf("the control plane was answered with a NACK: %s", req.reason)
	}
	if n, err := strconv.ParseUint(req.nonce, 10, 64); err == nil {
		cp.acked = max(cp.acked, n)
	}
	answer := st.answer(req)
	cp.mu.Unlock()
	cp.requests.Add(1)
	select {
	case cp.stirred <- struct{}{}:
	default:
	}
	return st.transmit(answer...)
}

// answer takes in a request and returns the responses it asks for. It is called
// under cp.mu.
func (st *stream) answer(req request) []mem.BufferSlice {
	cp := st.cp
	s, sub := cp.sets[req.typeURL], st.subs[req.typeURL]
	first := sub == nil
	if s == nil || !first && len(req.names) == 0 {
		return nil
	}
	if first {
		sub = &subscription{names: make(map[string]bool)}
		st.subs[req.typeURL] = sub
		sub.wildcard = len(req.names) == 0
	}
	var wanted []int
	whole := sub.wildcard && first
	for _, name := range req.names {
		switch i, known := s.indexOf(name); {
		case name == "*":
			whole = whole || !sub.wildcard
			sub.wildcard = true
		case known && !sub.names[name]:
			sub.names[name] = true
			wanted = append(wanted, i)
		}
	}
	switch {
	case whole && len(req.held) > 0 && !cp.forgetful:
		for i := range s.size {
			if req.held[nameOf(i)] != marker(s.version[i]) {
				wanted = append(wanted, i)
			}
		}
		return []mem.BufferSlice{s.some(cp.nonce.Add(1), wanted...)}
	case whole && cp.part > 0 && cp.form == delta:
		var parts []mem.BufferSlice
		for i := 0; i < s.size; i += cp.part {
			parts = append(parts, s.response(cp.nonce.Add(1), s.body[i*s.entry:min(i+cp.part, s.size)*s.entry]))
		}
		return parts
	case whole:
		return []mem.BufferSlice{s.all(cp.nonce.Add(1))}
	case len(wanted) == 0:
		return nil
	case cp.form == sotw:
		return []mem.BufferSlice{s.some(cp.nonce.Add(1), sub.indices(s)...)}
	}
	return []mem.BufferSlice{s.some(cp.nonce.Add(1), wanted...)}
}

func (sub *subscription) indices(s *set) []int {
	var all []int
	for name := range sub.names {
		if i, known := s.indexOf(name); known {
			all = append(all, i)
		}
	}
	return all
}

func (st *stream) transmit(messages ...mem.BufferSlice) error {
	st.send.Lock()
	defer st.send.Unlock()
	for _, m := range messages {
		if len(m) > 1 {
			st.cp.sent.Add(int64(m[1].Len()))
		}
		if err := st.wire.SendMsg(m); err != nil {
			return err
		}
	}
	return nil
}

// push is one change on its way.
type push struct {
	at     time.Time // before it was handed to gRPC
	marker uint64
	nonce  uint64 // of the last stream's message
}

// change changes a resource and sends what follows of that to every stream that
// wants it.
func (cp *controlPlane) change(typeURL string, i int) (push, error) {
	return cp.push(typeURL, func(s *set) uint64 { return s.change(i) }, i)
}

// changeAll changes all resources and sends them.
func (cp *controlPlane) changeAll(typeURL string) (push, error) {
	return cp.push(typeURL, (*set).changeAll, -1)
}

// push changes a set and sends it: in Delta the changed resource, or all for -1.
func (cp *controlPlane) push(typeURL string, change func(*set) uint64, i int) (push, error) {
	type sending struct {
		to *stream
		m  mem.BufferSlice
	}
	var all []sending
	cp.mu.Lock()
	s := cp.sets[typeURL]
	p := push{marker: change(s)}
	for st := range cp.streams {
		sub := st.subs[typeURL]
		if sub == nil || !sub.wildcard && (i < 0 || !sub.names[nameOf(i)]) {
			continue
		}
		p.nonce = cp.nonce.Add(1)
		switch {
		case cp.form == delta && i >= 0:
			all = append(all, sending{st, s.some(p.nonce, i)})
		case !sub.wildcard:
			all = append(all, sending{st, s.some(p.nonce, sub.indices(s)...)})
		default:
			all = append(all, sending{st, s.all(p.nonce)})
		}
	}
	cp.mu.Unlock()
	p.at = time.Now()
	for _, one := range all {
		if err := one.to.transmit(one.m); err != nil {
			return p, fmt.Errorf("pushing change %d: %w", p.marker, err)
		}
	}
	return p, nil
}

// alter changes a resource without telling anybody.
func (cp *controlPlane) alter(typeURL string, i int) uint64 {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return cp.sets[typeURL].change(i)
}

// awaitAck waits until the nonce was acknowledged.
func (cp *controlPlane) awaitAck(ctx context.Context, nonce uint64) error {
	return cp.await(ctx, "an ACK at the control plane", func() bool { return cp.acked >= nonce })
}

// await waits for a condition, which is asked under cp.mu whenever a request came.
func (cp *controlPlane) await(ctx context.Context, what string, condition func() bool) error {
	for {
		cp.mu.Lock()
		holds, err := condition(), cp.failure
		cp.mu.Unlock()
		switch {
		case err != nil:
			return err
		case holds:
			return nil
		}
		select {
		case <-cp.stirred:
		case <-ctx.Done():
			return awaited(ctx, what)
		}
	}
}

// awaited says what did not come.
func awaited(ctx context.Context, what string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s did not come in time", what)
	}
	return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
}
