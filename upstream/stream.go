package upstream

import (
	"cmp"
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

	"github.com/holdfast-xds/holdfast/internal/procs"
	"github.com/holdfast-xds/holdfast/internal/reconnect"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

// Observer counts the messages between a source and its control plane.
type Observer interface {
	// Received counts a response, with the resources in it that can be used and those that cannot; Answered counts
	// an ACK or a NACK.
	Received(source, typeURL string, valid, invalid int)
	Answered(source, typeURL string, nack bool)
}

type nobody struct{}

func (nobody) Received(string, string, int, int) {}
func (nobody) Answered(string, string, bool)     {}

// server is the common part of the sources that connect to a control plane: what the next stream
// needs to know of the streams before it.
type server struct {
	cfg    Config // with a Form and an Observer
	log    *slog.Logger
	dialer *dialer

	mu sync.Mutex
	// streams are open.
	streams map[*stream]struct{}
	// credentials are those that were sent to the server, at most maxCredentials.
	credentials [][]byte
	// versions and rechecks are those of session.Config. A stream works on copies, since another
	// stream may be open at the same time.
	versions map[string]session.Version
	rechecks map[string]int
	// excluded holds the types that are not requested for now, because the control plane ended the
	// stream for them.
	excluded map[string]exclusion
	// answered holds the types for which the control plane has ever sent a response. lastBlamed is
	// the one of them because of which the last stream seemed to end; "" for none.
	answered   map[string]bool
	lastBlamed string
	// reportLate is that of session.Config: a stream on which the health of the workload was reported has ended before
	// anything was answered.
	reportLate bool
	// endedAtReport is how many streams in a row have ended soon after a report of health, whatever they ended with.
	endedAtReport int
	last          time.Time // when the last response came
	// contact is that of xds.Update. leftAt is when the last run ended, if the control plane had answered on it; the zero time after an
	// attempt without an answer. reopened says that it ended so that another is opened.
	contact, leftAt time.Time
	reopened        bool
}

// sameContact is how soon after a stream another must be opened, at the first attempt, to be the same contact: a load balancer cuts what is
// idle, and a server ends a connection that is old, but a control plane that starts again is away for a moment.
const sameContact = 2 * time.Second

type exclusion struct {
	times int // how often in a row the control plane ended the stream for the type
	until time.Time
}

func newServer(cfg Config) *server {
	cfg.Observer = cmp.Or(cfg.Observer, Observer(nobody{}))
	cfg.MaxMessage = cmp.Or(cfg.MaxMessage, DefaultMaxMessage)
	log := cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &server{
		cfg: cfg, log: log.With("upstream", cfg.Addr), dialer: newDialer(cfg.Dial), streams: make(map[*stream]struct{}), versions: make(map[string]session.Version),
		rechecks: make(map[string]int), excluded: make(map[string]exclusion), answered: make(map[string]bool),
	}
}

// Name returns the address.
func (s *server) Name() string { return s.cfg.Addr }

// Open reports whether a stream is open, whether or not it was answered.
func (s *server) Open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams) > 0
}

// Several reports whether the server's name has more than one address.
func (s *server) Several() bool { return s.dialer.several() }

// Route says how the server was reached last, if it has a proxy; "" without one.
func (s *server) Route() string { return s.dialer.Route() }

// TakeLocks takes and releases the locks of the streams, for a watchdog.
func (s *server) TakeLocks() {
	s.mu.Lock()
	streams := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	for _, st := range streams { // whose locks are taken before that of the server
		watchdog.Lock(&st.mu)
	}
	watchdog.Lock(&s.dialer.mu)
}

// LastMessage returns when a response last came; the zero time for never.
func (s *server) LastMessage() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// headers sets the headers of a stream or request: the token and the configured ones.
func (s *server) headers(set func(name, value string)) error {
	token, err := s.cfg.Token()
	if err != nil {
		return err
	}
	for name, value := range s.cfg.Headers {
		if redact.IsCredential(name, value) {
			s.remember(value)
		}
		set(name, value)
	}
	if token != "" {
		s.remember(token)
		set("authorization", "Bearer "+token)
	}
	return nil
}

// maxCredentials bounds how many credentials are remembered: a token may be rotated any number of times.
const maxCredentials = 64

// remember records a credential that is sent.
func (s *server) remember(value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if value == "" || slices.ContainsFunc(s.credentials, func(sent []byte) bool { return string(sent) == value }) {
		return
	}
	if len(s.credentials) == maxCredentials {
		s.credentials = slices.Delete(s.credentials, 0, 1)
	}
	s.credentials = append(s.credentials, []byte(value))
}

// ended records how a run ended, with or without a stream, and whether anything was heard on it.
func (s *server) ended(err error, heard bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reopened = errors.Is(err, errReopen)
	s.leftAt = time.Time{}
	if heard {
		s.leftAt = time.Now()
	}
}

// isContact reports whether a stream that is opened at a time belongs to the contact that there was.
func (s *server) isContact(opened time.Time) bool {
	return s.reopened || !s.leftAt.IsZero() && opened.Sub(s.leftAt) < sameContact
}

// explain adds to the error of an attempt what may have been meant, and hides credentials in it.
func (s *server) explain(err error) error { return s.hide(s.cfg.Explain(err)) }

// hide returns an error without the credentials that were sent, which a server may repeat in it.
func (s *server) hide(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return redact.Error(err, s.credentials...)
}

// run writes the responses of an open stream to the state until the stream ends, and returns whether there were any, and why
// it ended: never nil. ctx is the context of the stream; cancel ends it.
func (s *server) run(ctx context.Context, cancel context.CancelFunc, w wire, state State, answered func() error) (heard bool, err error) {
	subscriptions := state.Subscriptions()
	defer subscriptions.Close()
	// This follows the call of Subscriptions, whose channel reports every later RequestAgain.
	opened := time.Now()
	s.mu.Lock()
	if !s.isContact(opened) {
		s.contact = opened
	}
	contact := s.contact
	versions, rechecks, reportLate := maps.Clone(s.versions), maps.Clone(s.rechecks), s.reportLate
	notBefore := make(map[string]time.Time, len(s.excluded))
	for typeURL, r := range s.excluded {
		notBefore[typeURL] = r.until
	}
	s.mu.Unlock()
	st := &stream{
		server: s, state: state, subscriptions: subscriptions, wire: w, onAnswer: answered, opened: opened, contact: contact,
		wake: make(chan struct{}, 1), health: s.cfg.Health,
		machine: session.New(session.Config{
			Form:       s.cfg.Form,
			AckTimeout: s.cfg.AckTimeout,
			Check:      s.cfg.CheckResource,
			Versions:   versions,
			Cached:     func(typeURL string) map[string]string { return state.Cached(s.Name(), typeURL) },
			Nacked:     func(typeURL string) []string { return state.Nacked(s.Name(), typeURL) },
			Optional:   subscriptions.Optional,
			Rechecks:   rechecks,
			NotBefore:  notBefore,
			ReportLate: reportLate,
		}),
	}
	s.mu.Lock()
	s.streams[st] = struct{}{}
	s.mu.Unlock()
	err = st.run(ctx, cancel)
	s.mu.Lock()
	delete(s.streams, st)
	s.versions, s.rechecks = versions, rechecks
	s.mu.Unlock()
	s.excludeCulprit(st, err)
	s.excludeReports(st, err)
	return !st.idleSince.IsZero(), err
}

// A control plane may end the whole stream because of one type, each time that the type is
// requested (istiod does so for istio.io/debug). The following streams do not request the type, for
// a duration that doubles.
const (
	minExclusion = 30 * time.Second
	maxExclusion = time.Hour
	// blamedFor is how long after the first request for a type the end of the stream may be
	// attributed to it.
	blamedFor = 5 * time.Second
)

// mayBlameType are the statuses with which a stream may end because of one request. Other statuses
// mean that the server or the connection ends, or that the client is not authenticated.
var mayBlameType = []codes.Code{
	codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented, codes.NotFound, codes.FailedPrecondition,
	codes.OutOfRange, codes.Unknown,
}

// excludeCulprit excludes the type because of which a control plane has ended a stream, if there is
// one. The control plane must have answered other types, or it may reject the client as such.
func (s *server) excludeCulprit(st *stream, err error) {
	end, ok := status.FromError(err)
	if !ok || !slices.Contains(mayBlameType, end.Code()) {
		return
	}
	culprit, names := st.culprit(end.Message())
	if culprit == "" {
		return
	}
	s.mu.Lock()
	longest := maxExclusion
	if s.answered[culprit] {
		// The control plane does serve this type, so that the problem is temporary. The type is
		// excluded when it happens twice in a row, and for the shortest pause.
		if s.lastBlamed != culprit {
			s.lastBlamed = culprit
			s.mu.Unlock()
			return
		}
		longest = minExclusion
	}
	pause := s.exclude(culprit, longest)
	s.mu.Unlock()
	s.log.Warn("type not requested for now, because the control plane ends the stream for it",
		"type", xds.Short(culprit), "left_out_for", pause, "err", s.hide(err))
	if len(names) > 0 {
		update := xds.Update{Source: s.Name(), Type: culprit, Timeout: true}
		why := fmt.Errorf("the control plane ends the stream for this type; it is requested again in %s: %w", pause, s.hide(err))
		for _, name := range names {
			update.Errors = append(update.Errors, xds.ResourceError{Name: name, Err: why})
		}
		st.state.Apply(update, nil)
	}
}

// exclude excludes a type for a pause that doubles each time, up to the longest, and returns it. It is called with mu held.
func (s *server) exclude(typeURL string, longest time.Duration) (pause time.Duration) {
	before := s.excluded[typeURL]
	pause = min(minExclusion<<min(before.times, 10), longest)
	s.excluded[typeURL] = exclusion{times: before.times + 1, until: time.Now().Add(pause)}
	return pause
}

// maxEndedAtReport is how many streams in a row may end soon after a report before reports are excluded.
const maxEndedAtReport = 3

// excludeReports excludes the reports of health if one stream after the other ends soon after a report. A server may end
// them with any status, also with OK, and Envoy needs its configuration more than the server needs the reports.
func (s *server) excludeReports(st *stream, err error) {
	st.mu.Lock()
	reported := st.machine.Reported()
	st.mu.Unlock()
	s.mu.Lock()
	if reported.IsZero() || time.Since(reported) > blamedFor || errors.Is(err, errReopen) || reconnect.IsMoved(err) {
		s.endedAtReport = 0
		s.mu.Unlock()
		return
	}
	s.endedAtReport++
	if s.endedAtReport < maxEndedAtReport || time.Now().Before(s.excluded[xds.HealthType].until) {
		s.mu.Unlock()
		return
	}
	pause := s.exclude(xds.HealthType, maxExclusion)
	s.endedAtReport = 0
	s.mu.Unlock()
	s.log.Warn("health of the workload not reported for now, because one stream after the other ends soon after a report", "left_out_for", pause, "err", s.hide(err))
}

// culprit returns the type because of which the server may have ended the stream with a message, and
// the subscribed names of the type; "" if there is none. It may be the type of the reports of health.
func (st *stream) culprit(why string) (culprit string, names []string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	since := time.Now().Add(-blamedFor)
	unanswered, others := st.machine.Unanswered(since)
	reported := !st.machine.Reported().Before(since)
	if reported && strings.Contains(why, xds.HealthType) {
		return xds.HealthType, nil
	}
	if reported && !others {
		st.server.mu.Lock()
		st.server.reportLate = true
		st.server.mu.Unlock()
	}
	named := slices.IndexFunc(unanswered, func(typeURL string) bool { return strings.Contains(why, typeURL) })
	if reported && others && named < 0 {
		return xds.HealthType, nil // of several that it may be, the one without which Envoy has its configuration
	}
	if !others || len(unanswered) == 0 {
		return "", nil
	}
	// Servers process requests in order: it is the last type, unless the message names another.
	culprit = unanswered[max(named, 0)]
	return culprit, st.machine.Subscribed(culprit)
}

// typeAnswered records that the control plane has sent a response for a type.
func (s *server) typeAnswered(typeURL string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.excluded, typeURL)
	s.answered[typeURL] = true
	if s.lastBlamed == typeURL {
		s.lastBlamed = ""
	}
}

// wire is a stream in either form. One goroutine sends and another one receives.
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
	health        Health        // nil for none
	opened        time.Time     // before the first request
	contact       time.Time     // see xds.Update

	idleSince time.Time // when the last response had been processed; the receiver's own

	mu      sync.Mutex
	machine *session.Session
	wakeAt  time.Time // when the sender wakes by itself; the zero time for never
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
var errReopen = errors.New("a new stream is needed to request a type from the beginning")

// burst is the number of responses after which the receiver lets other goroutines run. With one processor (internal/procs)
// nothing would otherwise be sent to a client before every response that has arrived was processed, and control plane and
// clients would wait for the agent meanwhile, and the agent for them afterwards.
const burst = 16

// pause is how long the receiver must have waited for a response to serve clients at once: it is not the middle of a burst.
const pause = time.Millisecond

func (st *stream) receiveAll(ctx context.Context) error {
	for n := 0; ; n++ {
		if n%burst == burst-1 {
			procs.Yield()
		}
		msg, err := st.wire.recv(ctx)
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
		if n == 0 {
			if err := st.onAnswer(); err != nil {
				return err
			}
		}
		st.receive(msg)
		st.idleSince = time.Now()
	}
}

func (st *stream) receive(msg message) {
	now := time.Now()
	st.server.mu.Lock()
	st.server.last = now
	st.server.mu.Unlock()
	var update *session.Response
	var err error
	st.mu.Lock()
	switch m := msg.(type) {
	case unmodified:
		st.machine.NotModified()
		st.mu.Unlock()
		return
	case *discoveryv3.DiscoveryResponse:
		update, err = st.machine.SotW(m, now)
	case *discoveryv3.DeltaDiscoveryResponse:
		update, err = st.machine.Delta(m, now)
	}
	early := err == nil && (st.wakeAt.IsZero() || update.Wake.Before(st.wakeAt))
	st.mu.Unlock()
	st.logResponse(msg, update, err)
	if err != nil {
		return
	}
	if update.First {
		st.server.typeAnswered(update.Type)
	}
	typeURL, nonce := update.Type, update.Nonce // so that the function does not refer to the resources
	update.ReceivedAt = now
	st.apply(update.Update, func(nack error) { st.answer(typeURL, nonce, nack) })
	if now.Sub(st.idleSince) > pause {
		procs.Yield()
	}
	st.server.cfg.Observer.Received(st.server.Name(), update.Type, len(update.Resources), update.Invalid())
	if early {
		wake.Signal(st.wake)
	}
}

// logResponse logs a response. There are thousands: the debug message is built only if it is logged.
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
		log.Warn("unusable resource; the cached version stays in use", "name", e.Name, "err", e.Err)
	}
}

func (st *stream) answer(typeURL, nonce string, err error) {
	st.mu.Lock()
	late := st.machine.Answer(typeURL, nonce, err, time.Now())
	st.mu.Unlock()
	if late {
		st.server.log.Warn("clients NACKed a response that was already ACKed", "type", xds.Short(typeURL), "nonce", nonce, "err", err)
	}
	wake.Signal(st.wake)
}

func (st *stream) apply(u xds.Update, answer func(error)) {
	u.Source, u.RequestedAt, u.Contact = st.server.Name(), st.opened, st.contact
	st.state.Apply(u, answer)
}

// sendAll sends requests until the stream breaks or, without an error, until ctx ends.
func (st *stream) sendAll(ctx context.Context) error {
	node := st.state.Node()
	timer := time.NewTimer(0)
	defer timer.Stop()
	healthChanged := st.reportHealth()
	st.note()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-st.wake:
		case <-healthChanged:
			healthChanged = st.reportHealth()
		case <-st.subscriptions.Changed():
			st.note()
			askAgain := st.opened.Before(st.state.RequestAgain())
			st.mu.Lock()
			if askAgain {
				st.machine.RequestAgain()
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

// reportHealth hands the health of the workload to the session, and returns a channel that is closed when it changes; nil
// if nobody knows it.
func (st *stream) reportHealth() <-chan struct{} {
	if st.health == nil {
		return nil
	}
	health, changed := st.health.Health()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.machine.Report(health)
	return changed
}

// note hands the report of the agent to the session.
func (st *stream) note() {
	report := st.state.AgentReport()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.machine.Note(report)
}

// flush sends all requests that are due now and returns when the next one will be. The Node is
// sent with the first request of the stream (protocol.md 7.10).
func (st *stream) flush(ctx context.Context, node **corev3.Node) (time.Time, error) {
	for {
		now := time.Now()
		st.mu.Lock()
		completed, completedAt := st.machine.Completed(now)
		agreed, agreedAt := st.machine.Agreed(now)
		overdue, overdueAt := st.machine.Overdue(now)
		var req *session.Request
		var next time.Time
		reopen := st.machine.Reopen()
		if !reopen {
			req, next = st.machine.Next(now)
		}
		next = wake.Earliest(next, completedAt, agreedAt, overdueAt)
		if st.wakeAt = next; req != nil {
			st.wakeAt = time.Time{}
		}
		st.mu.Unlock()
		for _, typeURL := range completed {
			st.state.Synced(st.server.Name(), typeURL, st.opened)
		}
		for _, typeURL := range agreed {
			st.state.Agreed(st.server.Name(), typeURL)
		}
		for _, u := range overdue {
			st.server.log.Warn("no answer from the control plane for requested resources",
				"type", xds.Short(u.Type), "silent", len(u.Errors), "missing", len(u.Removed), "names", someNames(u))
			st.apply(u, nil)
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
func someNames(u xds.Update) []string {
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
		st.server.cfg.Observer.Answered(st.server.Name(), req.Type, req.NACK != "")
	}
	switch {
	case req.Type == xds.AgentReportType:
		log.Debug("the control plane is told what is held back", "report", req.NACK)
	case req.Type == xds.HealthType:
		log.Info("health of the workload reported", "healthy", req.NACK == "", "err", req.NACK)
	case req.NACK != "":
		log.Warn("response NACKed", "type", typ, "nonce", req.Nonce, "err", req.NACK)
	case !log.Enabled(context.Background(), slog.LevelDebug):
	case req.Nonce != "":
		log.Debug("response ACKed", "type", typ, "nonce", req.Nonce)
	default:
		log.Debug("subscribed", "type", typ, "names", len(req.Names)+len(req.Subscribe), "dropped", len(req.Unsubscribe), "versions", len(req.Initial))
	}
}
