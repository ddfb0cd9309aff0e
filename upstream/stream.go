package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

// Observer counts what passes between a source and its control plane.
type Observer interface {
	// Received counts a response; Answered an ACK, or a NACK with its reason.
	Received(source, typeURL string, resources int)
	Answered(source, typeURL string, nack bool)
}

type nobody struct{}

func (nobody) Received(string, string, int)  {}
func (nobody) Answered(string, string, bool) {}

// server is what sources have in common that speak to a control plane: what is
// remembered of it from one stream to the next.
type server struct {
	name       string
	form       xds.Form
	ackTimeout time.Duration
	log        *slog.Logger
	observer   Observer
	secrets    secrets

	mu sync.Mutex
	// versions are the version_info of SotW, by type, over all streams. A stream
	// works on a copy, since another may be open beside it.
	versions map[string]session.Version
	// rechecks count, by type, how often the control plane was asked again for what clients
	// refused.
	rechecks map[string]int
	// leftOut are the types for which the control plane ended the stream.
	leftOut map[string]exclusion
	// answered are the types that the control plane has ever answered, suspect one of them for
	// which the last stream seemed to end, "" for none.
	answered map[string]bool
	suspect  string
	open     int // streams
	last     time.Time
}

// exclusion is that a control plane ends the stream when it is asked for a type.
type exclusion struct {
	times int       // in a row
	until time.Time // it is not asked again before
}

func newServer(name string, form xds.Form, ackTimeout time.Duration, log *slog.Logger, observer Observer) *server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if observer == nil {
		observer = nobody{}
	}
	return &server{
		name: name, form: form, ackTimeout: ackTimeout,
		log: log.With("upstream", name), observer: observer, versions: make(map[string]session.Version), rechecks: make(map[string]int),
		leftOut: make(map[string]exclusion), answered: make(map[string]bool),
	}
}

// Name returns the address.
func (s *server) Name() string { return s.name }

// Open reports whether a stream is open, answered or not.
func (s *server) Open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open > 0
}

// LastMessage returns when a response last came; the zero time for never.
func (s *server) LastMessage() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *server) received(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = now
}

// run writes what an open stream brings to the state until it ends, and returns why: never nil. ctx is
// that of the stream, cancel ends it.
func (s *server) run(ctx context.Context, cancel context.CancelFunc, w wire, state State, answered func() error) error {
	interest := state.Subscriptions()
	defer interest.Close()
	// After the Interest was opened, which so hears of each later AskAgain.
	opened := time.Now()
	s.mu.Lock()
	s.open++
	versions, rechecks := maps.Clone(s.versions), maps.Clone(s.rechecks)
	notBefore := make(map[string]time.Time, len(s.leftOut))
	for typeURL, r := range s.leftOut {
		notBefore[typeURL] = r.until
	}
	s.mu.Unlock()
	st := &stream{
		server: s, state: state, subscriptions: interest, wire: w, onAnswer: answered, opened: opened,
		wake: make(chan struct{}, 1),
		machine: session.New(session.Config{
			Form:       s.form,
			AckTimeout: s.ackTimeout,
			Versions:   versions,
			Held:       func(typeURL string) map[string]string { return state.Held(s.name, typeURL) },
			Nacked:     func(typeURL string) []string { return state.Nacked(s.name, typeURL) },
			Rechecks:   rechecks,
			NotBefore:  notBefore,
		}),
	}
	err := st.run(ctx, cancel)
	s.mu.Lock()
	s.open--
	s.versions, s.rechecks = versions, rechecks
	s.mu.Unlock()
	s.blame(st, err)
	return err
}

// A control plane may end the whole stream because of one type, each time that it is asked
// for it (istiod does so for istio.io/debug). It is left out of the streams that follow, for a
// time that doubles.
const (
	minLeftOut = 30 * time.Second
	maxLeftOut = time.Hour
	// blamedFor is how long after the first request for a type the end of the stream may
	// be put down to it.
	blamedFor = 5 * time.Second
)

// blames reports whether a status that ends a stream may be said because of one request:
// not that the server or the connection goes, nor that the client is not who it should be.
func blames(code codes.Code) bool {
	switch code {
	case codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented, codes.NotFound, codes.FailedPrecondition, codes.OutOfRange, codes.Unknown:
		return true
	}
	return false
}

// blame finds the type because of which a control plane has ended a stream, if it is one,
// and leaves it out. It has answered others, so that it is not the client that it refuses.
func (s *server) blame(st *stream, err error) {
	end, ok := status.FromError(err)
	if err == nil || !ok || !blames(end.Code()) {
		return
	}
	culprit, names := st.culprit(end.Message())
	if culprit == "" {
		return
	}
	s.mu.Lock()
	r := s.leftOut[culprit]
	pause := min(minLeftOut<<min(r.times, 10), maxLeftOut)
	if s.answered[culprit] {
		// It does serve this type: what ails it passes, and clients need what comes then.
		if s.suspect != culprit {
			s.suspect = culprit
			s.mu.Unlock()
			return
		}
		pause = minLeftOut
	}
	s.leftOut[culprit] = exclusion{times: r.times + 1, until: time.Now().Add(pause)}
	s.mu.Unlock()
	s.log.Warn("the control plane ended the stream when it was asked for a type; that is left out for now, and the others go on",
		"type", xds.Short(culprit), "left_out_for", pause, "err", s.secrets.hide(err))
	if len(names) > 0 {
		u := xds.Update{Source: s.name, Type: culprit, Timeout: true}
		why := fmt.Errorf("the control plane ended the stream when it was asked for this type; it is asked again in %s: %w", pause, s.secrets.hide(err))
		for _, name := range names {
			u.Errors = append(u.Errors, xds.ResourceError{Name: name, Err: why})
		}
		st.state.Apply(u, nil)
	}
}

// culprit returns the type because of which the server may have ended the stream, saying
// why, and the names of it that are wanted; "" if there is none.
func (st *stream) culprit(why string) (culprit string, names []string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	unanswered, others := st.machine.Unanswered(time.Now().Add(-blamedFor))
	if !others || len(unanswered) == 0 {
		return "", nil
	}
	// Servers take requests in their order: it is the one that was asked for last, if the
	// server does not name another.
	culprit = unanswered[0]
	for _, typeURL := range unanswered {
		if strings.Contains(why, typeURL) {
			culprit = typeURL
			break
		}
	}
	return culprit, st.machine.Subscribed(culprit)
}

// typeAnswered takes in that the control plane has answered for a type.
func (s *server) typeAnswered(typeURL string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leftOut, typeURL)
	s.answered[typeURL] = true
	if s.suspect == typeURL {
		s.suspect = ""
	}
}

// wire is a stream in either form. One goroutine sends and another receives; ctx is
// that of the stream.
type wire interface {
	// send writes a request, with a Node on the first of the stream.
	send(ctx context.Context, req *session.Request, node *corev3.Node) error
	// recv blocks for a response; ingest hands it to the machine.
	recv(ctx context.Context) (message, error)
}

// message is a response that was received, in either form.
type message interface {
	GetTypeUrl() string
	GetNonce() string
	proto.Message
}

// stream is one open stream: a receiver and a sender around the machine.
type stream struct {
	// Set at the start.
	server        *server
	state         State
	subscriptions Subscriptions
	wire          wire
	onAnswer      func() error
	wake          chan struct{} // the sender has something to do
	opened        time.Time     // before the first request
	// armed is when the sender looks again by itself; the zero time for never. Under mu.
	armed time.Time

	// Owned by the receiver.
	started bool

	mu      sync.Mutex
	machine *session.Session
}

// run receives until the stream ends; the sender ends with it.
func (st *stream) run(ctx context.Context, cancel context.CancelFunc) error {
	sent := make(chan error, 1) // holds a value when the sender has ended
	go func() {
		// A failed Send ends the stream, and the receiver is told why.
		err := st.sendAll(ctx)
		cancel()
		sent <- err
	}()
	err := st.receiveAll(ctx)
	cancel()
	if why := <-sent; errors.Is(why, errReopen) {
		return why
	}
	return err
}

// errReopen ends a stream in favour of another to the same server.
var errReopen = errors.New("a new stream is needed to learn what there is of a type")

func (st *stream) receiveAll(ctx context.Context) error {
	for {
		msg, err := st.wire.recv(ctx)
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
		if !st.started {
			if err := st.onAnswer(); err != nil {
				return err
			}
			st.started = true
		}
		if _, ok := msg.(unmodified); ok {
			st.server.received(time.Now())
			st.mu.Lock()
			st.machine.NotModified()
			st.mu.Unlock()
			continue
		}
		st.receive(msg)
	}
}

// receive hands one response to the machine, and what it says to the state.
func (st *stream) receive(msg message) {
	now := time.Now()
	st.server.received(now)
	var u *session.Response
	var err error
	st.mu.Lock()
	switch m := msg.(type) {
	case *discoveryv3.DiscoveryResponse:
		u, err = st.machine.SotW(m, now)
	case *discoveryv3.DeltaDiscoveryResponse:
		u, err = st.machine.Delta(m, now)
	}
	late := err == nil && (st.armed.IsZero() || u.Wake.Before(st.armed))
	st.mu.Unlock()
	st.logResponse(msg, u, err)
	if err != nil {
		return
	}
	if u.First {
		st.server.typeAnswered(u.Type)
	}
	st.server.observer.Received(st.server.name, u.Type, len(u.Resources))
	typeURL, nonce := u.Type, u.Nonce
	st.apply(u.Update, func(verdict error) { st.answer(typeURL, nonce, verdict) })
	if late {
		st.wakeSender()
	}
}

// logResponse logs a response. Most of what it could say is for debugging: only that it
// is wanted makes it worth its price, as messages come by the thousand.
func (st *stream) logResponse(msg message, u *session.Response, err error) {
	log := st.server.log
	if err == nil && len(u.Errors) == 0 && !log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	log = log.With("type", xds.Short(msg.GetTypeUrl()), "nonce", msg.GetNonce())
	if err != nil {
		log.Warn("response ignored", "err", err)
		return
	}
	log.Debug("response", "resources", len(u.Resources), "removed", len(u.Removed), "complete", u.Complete, "errors", len(u.Errors))
	for _, e := range u.Errors {
		log.Warn("resource not usable; what is held of it stays in use", "name", e.Name, "err", e.Err)
	}
}

// answer takes in what the clients made of a response.
func (st *stream) answer(typeURL, nonce string, err error) {
	st.mu.Lock()
	late := st.machine.Answer(typeURL, nonce, err, time.Now())
	st.mu.Unlock()
	if late {
		st.server.log.Warn("clients refused a response that was already ACKed", "type", xds.Short(typeURL), "nonce", nonce, "err", err)
	}
	st.wakeSender()
}

func (st *stream) wakeSender() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// apply hands an update to the state.
func (st *stream) apply(u xds.Update, verdict func(error)) {
	u.Source, u.RequestedAt = st.server.name, st.opened
	st.state.Apply(u, verdict)
}

// sendAll sends what the machine owes the server until ctx ends or the stream
// breaks. It returns nil when ctx ended.
func (st *stream) sendAll(ctx context.Context) error {
	node := st.state.Node()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-st.wake:
		case <-st.subscriptions.Changed():
			again := st.opened.Before(st.state.AskAgain())
			st.mu.Lock()
			if again {
				st.machine.AskAgain()
			}
			for _, w := range st.subscriptions.Changes() {
				if w.Wildcard && !w.Complete {
					st.machine.Forget(w.Type)
				}
				st.machine.Subscribe(w.Type, w.Wildcard, w.Subscribe, w.Unsubscribe)
			}
			st.mu.Unlock()
		}
		wake, err := st.flush(ctx, &node)
		if err != nil {
			return err
		}
		if wake.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(wake))
		}
	}
}

// flush sends everything that is due now and returns when more will be. The Node
// goes with the first request of the stream (protocol.md 7.10).
func (st *stream) flush(ctx context.Context, node **corev3.Node) (time.Time, error) {
	for {
		now := time.Now()
		st.mu.Lock()
		settled, settle := st.machine.Completed(now)
		overdue, miss := st.machine.Overdue(now)
		var req *session.Request
		var wake time.Time
		reopen := st.machine.Reopen()
		if !reopen {
			req, wake = st.machine.Next(now)
		}
		wake = earliest(wake, settle, miss)
		st.armed = wake
		if req != nil {
			st.armed = time.Time{}
		}
		st.mu.Unlock()
		for _, typeURL := range settled {
			st.state.Synced(st.server.name, typeURL, st.opened)
		}
		for _, u := range overdue {
			st.server.log.Warn("the control plane says nothing of names that it was asked for",
				"type", xds.Short(u.Type), "silent", len(u.Errors), "missing", len(u.Removed), "names", someNames(u))
			st.apply(*u, nil)
		}
		if reopen {
			return time.Time{}, errReopen
		}
		if req == nil {
			return wake, nil
		}
		if err := st.wire.send(ctx, req, *node); err != nil {
			return time.Time{}, fmt.Errorf("sending: %w", err)
		}
		*node = nil
		st.log(req)
	}
}

// someNames lists the names that an update of silence is about, or the first of them.
func someNames(u *xds.Update) []string {
	const most = 5
	names := slices.Clone(u.Removed)
	for _, e := range u.Errors {
		names = append(names, e.Name)
	}
	if len(names) > most {
		names = append(names[:most:most], fmt.Sprintf("… and %d more", len(names)-most))
	}
	return names
}

// earliest returns the earliest of times; a zero one is never.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

func (st *stream) log(req *session.Request) {
	log, typ := st.server.log, xds.Short(req.Type)
	if req.Nonce != "" {
		st.server.observer.Answered(st.server.name, req.Type, req.NACK != "")
	}
	switch {
	case req.NACK != "":
		log.Warn("response refused", "type", typ, "nonce", req.Nonce, "err", req.NACK)
	case !log.Enabled(context.Background(), slog.LevelDebug):
	case req.Nonce != "":
		log.Debug("response ACKed", "type", typ, "nonce", req.Nonce)
	default:
		log.Debug("subscribed", "type", typ, "names", len(req.Names)+len(req.Subscribe), "dropped", len(req.Unsubscribe), "held", len(req.Initial))
	}
}
