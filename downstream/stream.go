package downstream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream/codec"
	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/memory"
	"github.com/holdfast-xds/holdfast/internal/procs"
	"github.com/holdfast-xds/holdfast/internal/repeats"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// stream is one open stream: a receiver and a sender that share a session.Session.
type stream struct {
	// Set when the stream is opened.
	server *Server
	number uint64
	form   xds.Form
	// typeURL is the only type of the stream; "" for ADS.
	typeURL  string
	peer     string
	process  string // see Client.Process
	identity any    // of the client, see Client.Identity
	since    time.Time
	grpc     grpc.ServerStream
	wake     chan struct{} // wakes the sender
	written  chan struct{} // the last large response has been written

	// Set by the receiver before the sender starts.
	view View
	log  *slog.Logger

	// Owned by the receiver.
	rate     *rate.Limiter
	logged   map[string]bool // the limits whose first excess was logged
	rejected bool            // the stream ends because of an invalid request; read after the receiver has ended

	moved atomic.Bool // the stream ends because its connection does

	mu      sync.Mutex
	node    string // the id of the client's Node; the Node itself is large
	machine *session.Session
}

func (st *stream) state() StreamState {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := StreamState{ID: st.number, NodeID: st.node, Peer: st.peer, Protocol: st.form.String(), Since: st.since}
	if st.machine == nil {
		return s
	}
	types, names := st.machine.Subscriptions()
	for _, typeURL := range types {
		s.Types = append(s.Types, xds.Short(typeURL))
	}
	s.Subscriptions = names
	for typeURL, since := range st.machine.WaitingSince() {
		if s.Unanswered == nil {
			s.Unanswered = make(map[string]time.Time)
		}
		s.Unanswered[xds.Short(typeURL)] = since
	}
	return s
}

func (st *stream) subscribes(typeURL, name string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.machine != nil && st.machine.Subscribes(typeURL, name)
}

// run serves the stream until either side ends it. It is gRPC's handler. A Recv or Send that
// blocks returns only after the handler has returned, so the receiver and the sender may outlive
// it; the server waits for them.
func (st *stream) run(ctx context.Context) error {
	req, node, err := st.recv()
	// A report before the client has said who it is has no effect, as with istiod.
	for err == nil && isReport(req) && node.GetId() == "" {
		if err = st.rate.Wait(ctx); err == nil {
			req, node, err = st.recv()
		}
	}
	if err != nil {
		return toStatus(err)
	}
	if node, err = st.server.nodeOf(node); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := st.attach(node); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, 2)
	var over atomic.Int32
	ends := func(err error) {
		results <- err
		if over.Add(1) == 2 {
			st.view.Close(End{Unanswered: st.machine.Unanswered(), ByServer: st.rejected || st.moved.Load() || st.server.stopping.Load()})
			memory.Left()
			st.say(slog.LevelInfo, "stream closed", "open_for", time.Since(st.since).Round(time.Millisecond))
		}
	}
	st.server.streaming.Go(func() { ends(st.receiveAll(ctx, req)) })
	st.server.streaming.Go(func() { ends(st.sendAll(ctx)) })
	return st.await(ctx, results)
}

// maxLines is how many lines of one message the streams of a peer cause in a minute: more than an Envoy that rejects much,
// and fewer than one that opens streams or rejects responses without an end. linesPerSecond bounds those of all peers.
const maxLines, linesPerSecond = 60, 50

// say logs what the client causes, at most so often.
func (st *stream) say(level slog.Level, message string, args ...any) {
	st.server.repeats.Log(st.log, level, message+" "+repeats.Peer(st.peer), message, args...)
}

func toStatus(err error) error {
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
		return nil
	case status.Code(err) != codes.Unknown:
		return err
	}
	return status.Error(codes.Internal, err.Error())
}

func (st *stream) attach(node *corev3.Node) (err error) {
	client := Client{Stream: st.number, Node: node, Form: st.form, Peer: st.peer, Process: st.process, Identity: st.identity, Gone: st.grpc.Context().Done(), Agent: isAgent(st.grpc.Context())}
	if st.view, err = st.server.attach(client); err != nil {
		return err
	}
	st.log = st.server.cfg.Log.With("stream", st.number, "node", node.GetId(), "form", st.form.String())
	st.mu.Lock()
	defer st.mu.Unlock()
	st.node = node.GetId()
	st.machine = st.server.newSession(client, st.view, strconv.FormatUint(st.number, 10)+".")
	st.say(slog.LevelInfo, "stream opened", "peer", st.peer)
	return nil
}

// isAgent reports whether the client of a call is an agent.
func isAgent(ctx context.Context) bool {
	is := func(value string) bool {
		return value == xds.AgentUserAgent || strings.HasPrefix(value, xds.AgentUserAgent+" ")
	}
	return slices.ContainsFunc(metadata.ValueFromIncomingContext(ctx, "user-agent"), is)
}

func (st *stream) receiveAll(ctx context.Context, req *session.Request) error {
	for {
		if err := st.receive(ctx, req); err != nil {
			return err
		}
		var err error
		if req, _, err = st.recv(); err != nil {
			return err
		}
	}
}

// receive passes one request to the session, and the result to the state.
func (st *stream) receive(ctx context.Context, req *session.Request) error {
	if err := implyType(req, st.typeURL); err != nil {
		st.rejected = true
		st.say(slog.LevelWarn, "invalid request", "err", err)
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := st.wait(ctx); err != nil {
		return err
	}
	if isReport(req) {
		st.takeReport(req)
		return nil
	}
	// The lock keeps the sender from building a response before the state has the result. It would
	// miss a change in between, and report the progress that a NACK causes before the NACK.
	st.mu.Lock()
	if !st.admit(req) {
		st.mu.Unlock()
		return nil
	}
	eff := st.machine.Request(req)
	if eff.Subscription != nil {
		st.view.Subscribe(*eff.Subscription)
	}
	if eff.Answer != nil {
		st.view.Answer(*eff.Answer)
		if eff.Culprit != nil {
			st.view.Answer(*eff.Culprit)
		}
		st.progress()
	}
	idle := st.machine.Idle()
	st.mu.Unlock()
	if eff.Answer != nil {
		st.report(req, eff.Answer)
		if culprit := eff.Culprit; culprit != nil {
			st.say(slog.LevelWarn, "resource identified as the cause of a NACK", "type", xds.Short(culprit.Type), "name", culprit.Nacked.Name,
				"version", culprit.Nacked.Version, "err", culprit.Error)
		}
	}
	if st.log.Enabled(context.Background(), slog.LevelDebug) {
		st.log.Debug("request", "type", xds.Short(req.Type), "nonce", req.Nonce, "nack", req.NACK,
			"names", len(req.Names)+len(req.Subscribe), "unsubscribed", len(req.Unsubscribe), "versions", len(req.Initial))
	}
	if idle {
		return nil // it was an ACK that leaves nothing to send
	}
	wake.Signal(st.wake)
	return nil
}

func (st *stream) progress() {
	for _, p := range st.machine.Progress() {
		st.view.Progress(p)
	}
}

func (st *stream) report(req *session.Request, answer *session.Answer) {
	st.server.cfg.Observer.Answered(answer.Type, st.form.String(), answer.NACK)
	switch {
	case answer.NACK && answer.Nacked != nil:
		st.say(slog.LevelWarn, "client NACKed a resource", "type", xds.Short(answer.Type), "name", answer.Nacked.Name,
			"version", answer.Nacked.Version, "nonce", req.Nonce, "err", answer.Error)
	case answer.NACK:
		st.say(slog.LevelWarn, "client NACKed a response", "type", xds.Short(answer.Type), "suspects", len(answer.Suspects),
			"nonce", req.Nonce, "err", answer.Error)
	}
}

// sendAll sends responses to the client until ctx ends, and then returns nil, or until the stream
// breaks.
func (st *stream) sendAll(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-st.wake:
		case <-st.view.Changed():
		}
		next, err := st.flush(ctx)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return nil // nothing more is sent, even if a response is due
		}
		wake.Reset(timer, next)
	}
}

// flush sends all responses that are due now and returns when the next one will be. Each response
// is built from the state at that moment, and sent without a lock. While a large response waits
// for the client to read it, no other is built, because that one would use memory and be outdated
// when it can be sent.
func (st *stream) flush(ctx context.Context) (time.Time, error) {
	for {
		began := time.Now()
		resp, next := st.next()
		if resp == nil {
			return next, nil
		}
		if st.log.Enabled(context.Background(), slog.LevelDebug) {
			st.log.Debug("response", "type", xds.Short(resp.Type), "nonce", resp.Nonce, "version", resp.Version,
				"resources", len(resp.Resources), "removed", len(resp.Removed))
		}
		st.view.Sent(resp, began)
		large, err := st.send(resp)
		if err != nil {
			return time.Time{}, err
		}
		took := time.Since(began)
		// gRPC's writer would otherwise write it only when nothing else is to be sent. Twice, because the writer itself
		// lets others run before it writes less than 1,000 bytes.
		procs.Yield()
		procs.Yield()
		st.server.cfg.Observer.Pushed(resp.Type, st.form.String(), len(resp.Resources), took)
		if !large {
			continue
		}
		select {
		case <-st.written:
		case <-ctx.Done():
			return time.Time{}, nil
		}
	}
}

// recv receives the next request, and the Node in it, which may be nil.
func (st *stream) recv() (*session.Request, *corev3.Node, error) {
	if st.form == xds.Delta {
		var req discoveryv3.DeltaDiscoveryRequest
		received := codec.Request{Message: &req}
		err := st.grpc.RecvMsg(&received)
		out := session.FromDelta(&req)
		out.Unreadable = received.Unreadable
		return out, req.GetNode(), err
	}
	var req discoveryv3.DiscoveryRequest
	received := codec.Request{Message: &req}
	err := st.grpc.RecvMsg(&received)
	out := session.FromSotW(&req)
	out.Unreadable = received.Unreadable
	return out, req.GetNode(), err
}

// send sends a response and reports whether it is large. If it is, written receives a value when the
// response was written, as with codec.Tracked.
func (st *stream) send(resp *session.Response) (large bool, err error) {
	m := codec.Tracked{Written: func() { wake.Signal(st.written) }}
	if st.form == xds.Delta {
		m.Message = &codec.Delta{Rest: resp.DeltaRest(st.server.from), Size: resp.Size(), Resource: resp.DeltaResource}
	} else if m.Message, err = resp.SotW(st.server.from); err != nil {
		return false, err
	}
	err = st.grpc.SendMsg(&m)
	return m.Large, err
}

func (st *stream) build() (*session.Response, time.Time) {
	v, changed := st.view.Begin()
	defer st.view.End()
	for _, change := range changed {
		st.machine.Changed(change.Type, change.Names, change.All)
		st.machine.Repeated(change.Type, change.Repeated)
	}
	return st.machine.Next(v, time.Now())
}

// next returns the next response, or when there may be one.
func (st *stream) next() (resp *session.Response, at time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		resp, at = st.build()
		changes := st.machine.SubscriptionChanges()
		for _, change := range changes {
			st.view.Subscribe(change)
		}
		for _, claim := range st.machine.Claims() {
			st.view.Answer(claim)
		}
		if resp != nil || len(changes) == 0 {
			st.progress()
			return resp, at
		}
	}
}
