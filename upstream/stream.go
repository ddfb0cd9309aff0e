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

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

// Observer counts the messages between a source and its control plane.
type Observer interface {
	// Received counts a response; Answered counts an ACK or a NACK.
	Received(source, typeURL string, resources int)
	Answered(source, typeURL string, nack bool)
}

type nobody struct{}

func (nobody) Received(string, string, int)  {}
func (nobody) Answered(string, string, bool) {}

// server is the common part of sources that connect to a control plane: what is remembered of the
// server from one stream to the next.
type server struct {
	name       string
	form       xds.Form
	ackTimeout time.Duration
	log        *slog.Logger
	observer   Observer
	secrets    secrets

	mu sync.Mutex
	// versions are the version_info of SotW, by type, over all streams. A stream works on a copy,
	// since another stream may be open at the same time.
	versions map[string]session.Version
	// rechecks counts, by type, how often the control plane was asked again for resources that
	// clients NACKed.
	rechecks map[string]int
	// leftOut are the types for which the control plane ended the stream.
	leftOut map[string]exclusion
	// answered are the types for which the control plane has ever sent a response. suspect is the
	// one of them because of which the last stream seemed to end; "" for none.
	answered map[string]bool
	suspect  string
	open     int // number of open streams
	last     time.Time
}

// exclusion is a type that is not requested, because the control plane ends the stream for it.
type exclusion struct {
	times int       // in a row
	until time.Time // the type is not requested before
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

// Open reports whether a stream is open, whether or not it was answered.
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

// run writes the responses of an open stream to the state until the stream ends, and returns why:
// never nil. ctx is the context of the stream; cancel ends it.
func (s *server) run(ctx context.Context, cancel context.CancelFunc, w wire, state State, answered func() error) error {
	subscriptions := state.Subscriptions()
	defer subscriptions.Close()
	// This follows the call of Subscriptions, whose channel reports every later AskAgain.
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
		server: s, state: state, subscriptions: subscriptions, wire: w, onAnswer: answered, opened: opened,
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

// A control plane may end the whole stream because of one type, each time that the type is
// requested (istiod does so for istio.io/debug). The type is left out of the streams that follow,
// for a duration that doubles.
const (
	minLeftOut = 30 * time.Second
	maxLeftOut = time.Hour
	// blamedFor is how long after the first request for a type the end of the stream may be
	// attributed to it.
	blamedFor = 5 * time.Second
)

// blames reports whether a status that ends a stream may be caused by one request. It is not if
// the status means that the server or the connection ends, or that the client is not
// authenticated.
func blames(code codes.Code) bool {
	switch code {
	case codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented, codes.NotFound, codes.FailedPrecondition, codes.OutOfRange, codes.Unknown:
		return true
	}
	return false
}

// blame leaves out the type because of which a control plane has ended a stream, if there is one.
// The control plane must have answered other types, so that it does not reject the client as
// such.
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
	excluded := s.leftOut[culprit]
	pause := min(minLeftOut<<min(excluded.times, 10), maxLeftOut)
	if s.answered[culprit] {
		// It does serve this type: the problem is temporary, and clients need the type
		// afterwards.
		if s.suspect != culprit {
			s.suspect = culprit
			s.mu.Unlock()
			return
		}
		pause = minLeftOut
	}
	s.leftOut[culprit] = exclusion{times: excluded.times + 1, until: time.Now().Add(pause)}
	s.mu.Unlock()
	s.log.Warn("the control plane ended the stream when it was asked for a type; that is left out for now, and the others go on",
		"type", xds.Short(culprit), "left_out_for", pause, "err", s.secrets.hide(err))
	if len(names) > 0 {
		update := xds.Update{Source: s.name, Type: culprit, Timeout: true}
		why := fmt.Errorf("the control plane ended the stream when it was asked for this type; it is asked again in %s: %w", pause, s.secrets.hide(err))
		for _, name := range names {
			update.Errors = append(update.Errors, xds.ResourceError{Name: name, Err: why})
		}
		st.state.Apply(update, nil)
	}
}

// culprit returns the type because of which the server may have ended the stream with the message
// why, and the subscribed names of the type; "" if there is none.
func (st *stream) culprit(why string) (culprit string, names []string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	unanswered, others := st.machine.Unanswered(time.Now().Add(-blamedFor))
	if !others || len(unanswered) == 0 {
		return "", nil
	}
	// Servers process requests in order: it is the type that was requested last, unless the
	// message names another.
	culprit = unanswered[0]
	for _, typeURL := range unanswered {
		if strings.Contains(why, typeURL) {
			culprit = typeURL
			break
		}
	}
	return culprit, st.machine.Subscribed(culprit)
}

// typeAnswered records that the control plane has sent a response for a type.
func (s *server) typeAnswered(typeURL string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leftOut, typeURL)
	s.answered[typeURL] = true
	if s.suspect == typeURL {
		s.suspect = ""
	}
}

// wire is a stream in either form. One goroutine sends and another one receives; ctx is the
// context of the stream.
type wire interface {
	// send sends a request, with a Node if it is the first one of the stream.
	send(ctx context.Context, req *session.Request, node *corev3.Node) error
	// recv blocks until a response comes.
	recv(ctx context.Context) (message, error)
}

// message is a received response in either form.
type message interface {
	GetTypeUrl() string
	GetNonce() string
	proto.Message
}

// stream is one open stream: a receiver and a sender that share a session.Session.
type stream struct {
	// Set at the start.
	server        *server
	state         State
	subscriptions Subscriptions
	wire          wire
	onAnswer      func() error
	wake          chan struct{} // wakes the sender
	opened        time.Time     // before the first request
	// armed is when the sender wakes by itself; the zero time for never. Guarded by mu.
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
		// A failed send ends the stream, and the receiver returns the reason.
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

// errReopen ends a stream so that another one to the same server is opened.
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

// receive passes one response to the session, and the resulting update to the state.
func (st *stream) receive(msg message) {
	now := time.Now()
	st.server.received(now)
	var update *session.Response
	var err error
	st.mu.Lock()
	switch m := msg.(type) {
	case *discoveryv3.DiscoveryResponse:
		update, err = st.machine.SotW(m, now)
	case *discoveryv3.DeltaDiscoveryResponse:
		update, err = st.machine.Delta(m, now)
	}
	late := err == nil && (st.armed.IsZero() || update.Wake.Before(st.armed))
	st.mu.Unlock()
	st.logResponse(msg, update, err)
	if err != nil {
		return
	}
	if update.First {
		st.server.typeAnswered(update.Type)
	}
	st.server.observer.Received(st.server.name, update.Type, len(update.Resources))
	typeURL, nonce := update.Type, update.Nonce
	st.apply(update.Update, func(nack error) { st.answer(typeURL, nonce, nack) })
	if late {
		wake.Signal(st.wake)
	}
}

// logResponse logs a response. The debug message is built only if debug messages are logged,
// because there are thousands of responses.
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

// answer processes the clients' ACK or NACK of a response.
func (st *stream) answer(typeURL, nonce string, err error) {
	st.mu.Lock()
	late := st.machine.Answer(typeURL, nonce, err, time.Now())
	st.mu.Unlock()
	if late {
		st.server.log.Warn("clients refused a response that was already ACKed", "type", xds.Short(typeURL), "nonce", nonce, "err", err)
	}
	wake.Signal(st.wake)
}

// apply passes an update to the state.
func (st *stream) apply(u xds.Update, answer func(error)) {
	u.Source, u.RequestedAt = st.server.name, st.opened
	st.state.Apply(u, answer)
}

// sendAll sends the requests of the session until ctx ends or the stream breaks. It returns nil
// when ctx ended.
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
			askAgain := st.opened.Before(st.state.AskAgain())
			st.mu.Lock()
			if askAgain {
				st.machine.AskAgain()
			}
			for _, change := range st.subscriptions.Changes() {
				if change.Wildcard && !change.Complete {
					st.machine.Forget(change.Type)
				}
				st.machine.Subscribe(change.Type, change.Wildcard, change.Subscribe, change.Unsubscribe)
			}
			st.mu.Unlock()
		}
		next, err := st.flush(ctx, &node)
		if err != nil {
			return err
		}
		wake.Reset(timer, next)
	}
}

// flush sends all requests that are due now and returns when the next one will be. The Node is
// sent with the first request of the stream (protocol.md 7.10).
func (st *stream) flush(ctx context.Context, node **corev3.Node) (time.Time, error) {
	for {
		now := time.Now()
		st.mu.Lock()
		completed, completedAt := st.machine.Completed(now)
		overdue, overdueAt := st.machine.Overdue(now)
		var req *session.Request
		var next time.Time
		reopen := st.machine.Reopen()
		if !reopen {
			req, next = st.machine.Next(now)
		}
		next = wake.Earliest(next, completedAt, overdueAt)
		st.armed = next
		if req != nil {
			st.armed = time.Time{}
		}
		st.mu.Unlock()
		for _, typeURL := range completed {
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
			return next, nil
		}
		if err := st.wire.send(ctx, req, *node); err != nil {
			return time.Time{}, fmt.Errorf("sending: %w", err)
		}
		*node = nil
		st.log(req)
	}
}

// someNames lists the first few names that an update of Overdue is about.
func someNames(u *xds.Update) []string {
	const limit = 5
	names := slices.Clone(u.Removed)
	for _, e := range u.Errors {
		names = append(names, e.Name)
	}
	if len(names) > limit {
		names = append(names[:limit:limit], fmt.Sprintf("… and %d more", len(names)-limit))
	}
	return names
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
