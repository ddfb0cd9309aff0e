package downstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// stream is one open stream: a receiver and a sender around a session machine.
type stream struct {
	// Set at the start.
	server *Server
	number uint64
	form   xds.Form
	// typeURL is the only type of the stream; "" for ADS.
	typeURL string
	peer    string
	since   time.Time
	wire    wire
	wake    chan struct{} // the sender has something to do
	written chan struct{} // the large response that was sent last has been written

	// Set by the receiver before the sender starts.
	view View
	log  *slog.Logger
	gate *gate
	// debug: it is worth while to make up what is logged for debugging only.
	debug bool

	// Owned by the receiver; read when it has ended.
	ended bool // the stream ends because of a request

	mu      sync.Mutex
	node    string // the client's id; its Node is large, and the state has it
	machine *session.Session
}

func (st *stream) state() StreamState {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := StreamState{Stream: st.number, NodeID: st.node, Form: st.form, Peer: st.peer, Since: st.since}
	if st.machine != nil {
		s.Types, s.Subscriptions = st.machine.Subscriptions()
	}
	return s
}

// run serves the stream until either side ends it. It is gRPC's handler: a Recv or
// Send that is blocked returns only after the handler has, so the receiver and the
// sender may outlive it; the server waits for them.
func (st *stream) run(ctx context.Context) error {
	req, node, err := st.wire.recv()
	if err != nil {
		return ended(err)
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
			st.view.Close(End{Unanswered: st.machine.Unanswered(), ByServer: st.ended})
			st.log.Info("stream closed", "open_for", time.Since(st.since).Round(time.Millisecond))
		}
	}
	st.server.streaming.Go(func() { ends(st.receiveAll(ctx, req)) })
	st.server.streaming.Go(func() { ends(st.sendAll(ctx)) })
	return ended(<-results)
}

// ended turns the end of a stream into the status that the client gets.
func ended(err error) error {
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
		return nil
	case status.Code(err) != codes.Unknown:
		return err
	}
	return status.Error(codes.Internal, err.Error())
}

// attach opens the view once the client has said who it is.
func (st *stream) attach(node *corev3.Node) (err error) {
	client := Client{Stream: st.number, Node: node, Form: st.form, Peer: st.peer}
	if st.view, err = st.server.attach(client); err != nil {
		return err
	}
	st.log = st.server.cfg.Log.With("stream", st.number, "node", node.GetId(), "form", st.form.String())
	st.debug = st.log.Enabled(context.Background(), slog.LevelDebug)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.node = node.GetId()
	st.machine = session.New(session.Config{
		Form:         st.form,
		NoncePrefix:  strconv.FormatUint(st.number, 10) + ".",
		RemovalDelay: st.server.cfg.RemovalDelay,
		KeepWildcard: node.GetUserAgentName() == xds.EnvoyUserAgent,
		TTL:          enforcesTTL(node),
		HadWildcard:  st.view.HadWildcard,
		Secrets:      &st.server.secrets,
	})
	st.gate = newGate(st.server, st.log)
	st.log.Info("stream opened", "peer", st.peer)
	return nil
}

func (st *stream) receiveAll(ctx context.Context, req *session.Request) error {
	for {
		if err := st.receive(ctx, req); err != nil {
			return err
		}
		var err error
		if req, _, err = st.wire.recv(); err != nil {
			return err
		}
	}
}

// receive feeds one request to the machine, and what it says to the state.
func (st *stream) receive(ctx context.Context, req *session.Request) error {
	if err := implyType(req, st.typeURL); err != nil {
		st.ended = true
		st.log.Warn("request refused", "err", err)
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := st.gate.wait(ctx); err != nil {
		return err
	}
	// The state hears of it before the sender looks again: else a change between
	// the two would be missed, and a NACK be told after the progress it makes.
	st.mu.Lock()
	if !st.gate.admit(req, st.machine) {
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
		if v := eff.Culprit; v != nil {
			st.log.Warn("resource found to be the cause of a NACK", "type", xds.Short(v.Type), "name", v.Nacked.Name,
				"version", v.Nacked.Version, "err", v.Error)
		}
	}
	if st.debug {
		st.log.Debug("request", "type", xds.Short(req.Type), "nonce", req.Nonce, "nack", req.NACK,
			"names", len(req.Names)+len(req.Subscribe), "unsubscribed", len(req.Unsubscribe), "versions", len(req.Initial))
	}
	if idle {
		return nil // it was an ACK, and nobody need be woken for it
	}
	select {
	case st.wake <- struct{}{}:
	default:
	}
	return nil
}

// progress tells the state what the client has answered.
func (st *stream) progress() {
	for _, p := range st.machine.Progress() {
		st.view.Progress(p)
	}
}

func (st *stream) report(req *session.Request, v *session.Answer) {
	st.server.cfg.Observer.Answered(v.Type, st.form.String(), v.NACK)
	switch {
	case v.NACK && v.Nacked != nil:
		st.log.Warn("client refused a resource", "type", xds.Short(v.Type), "name", v.Nacked.Name,
			"version", v.Nacked.Version, "nonce", req.Nonce, "err", v.Error)
	case v.NACK:
		st.log.Warn("client refused a response", "type", xds.Short(v.Type), "suspects", len(v.Suspects),
			"nonce", req.Nonce, "err", v.Error)
	}
}

// check refuses what no client means to send.
func check(req *session.Request) error {
	for _, names := range [][]string{req.Names, req.Subscribe, req.Unsubscribe} {
		for _, name := range names {
			if _, err := xds.CheckName(name); err != nil {
				return fmt.Errorf("%s request: %w", xds.Short(req.Type), err)
			}
		}
	}
	return nil
}

// sendAll sends what the machine owes the client until ctx ends, with nil, or the
// stream breaks.
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
		wake, err := st.flush(ctx)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return nil // nothing more is sent, though there may be something to send
		}
		if wake.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(wake))
		}
	}
}

// flush sends everything that is due now and returns when more will be. Each
// response is built from the state as it is then, and sent without a lock. While a
// large one waits for the client to read, no other is built: it would be held, and
// would be old when its turn comes.
func (st *stream) flush(ctx context.Context) (time.Time, error) {
	for {
		resp, wake := st.next()
		if resp == nil {
			return wake, nil
		}
		if st.debug {
			st.log.Debug("response", "type", xds.Short(resp.Type), "nonce", resp.Nonce, "version", resp.Version,
				"resources", len(resp.Resources), "removed", len(resp.Removed))
		}
		large, err := st.wire.send(resp, st.server.from, st.wasWritten)
		if err != nil {
			return time.Time{}, err
		}
		st.server.cfg.Observer.Pushed(resp.Type, st.form.String(), len(resp.Resources))
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

// wasWritten notes that a large response has been written. It never blocks: when the stream ends,
// nobody may wait for it.
func (st *stream) wasWritten() {
	select {
	case st.written <- struct{}{}:
	default:
	}
}

// build lets the machine build a response of the state at one moment.
func (st *stream) build() (*session.Response, time.Time) {
	v, changed := st.view.Begin()
	defer st.view.End()
	for _, ch := range changed {
		st.machine.Changed(ch.Type, ch.Names, ch.All)
	}
	return st.machine.Next(v, time.Now())
}

// next returns the next response, or when there may be one.
func (st *stream) next() (resp *session.Response, wake time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		resp, wake = st.build()
		interests := st.machine.SubscriptionChanges()
		for _, in := range interests {
			st.view.Subscribe(in)
		}
		for _, claim := range st.machine.Claims() {
			st.view.Answer(claim)
		}
		if resp != nil || len(interests) == 0 {
			st.progress()
			return resp, wake
		}
	}
}
