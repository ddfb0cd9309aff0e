package downstream

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/repeats"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Limits bound the cost of clients. A mesh of 20,000 clusters stays below the defaults, which
// replace zeros. A stream beyond the limit, and JSON that is nested too deeply, are rejected with
// RESOURCE_EXHAUSTED. Anything else beyond a limit is left out and the stream stays open, because
// a client would repeat its subscriptions on its next stream.
type Limits struct {
	// Streams bounds the open streams. Envoy opens one for each EDS cluster and each secret if it
	// does not use ADS (protocol.md V10).
	Streams int
	// Types bounds the types of one stream, Subscriptions the names of one type.
	Types, Subscriptions int
	// RequestRate bounds how many requests of one stream are processed in a second, after the
	// first RequestBurst; further requests wait.
	RequestRate, RequestBurst int
	// AnyDepth bounds the nesting of Anys in a resource for REST, whose JSON decodes each level.
	AnyDepth int
}

// DefaultLimits replace limits that are 0.
var DefaultLimits = Limits{
	Streams:       65536,
	Types:         64,
	Subscriptions: 200_000,
	RequestRate:   1000,
	RequestBurst:  20_000,
	AnyDepth:      64,
}

func (l Limits) orDefault() Limits {
	return Limits{
		Streams:       cmp.Or(l.Streams, DefaultLimits.Streams),
		Types:         cmp.Or(l.Types, DefaultLimits.Types),
		Subscriptions: cmp.Or(l.Subscriptions, DefaultLimits.Subscriptions),
		RequestRate:   cmp.Or(l.RequestRate, DefaultLimits.RequestRate),
		RequestBurst:  cmp.Or(l.RequestBurst, DefaultLimits.RequestBurst),
		AnyDepth:      cmp.Or(l.AnyDepth, DefaultLimits.AnyDepth),
	}
}

// LimitNames lists the names of limits that are passed to Observer.LimitExceeded.
func LimitNames() []string {
	return []string{"connections", "streams", "types", "subscriptions", "names", "request_rate", "any_depth", "groups"}
}

// attach opens the view of a client, or counts the client if there would be too many groups.
func (s *Server) attach(client Client) (View, error) {
	view, err := s.cfg.State.Attach(client)
	if err != nil {
		s.cfg.Observer.LimitExceeded("groups")
	}
	return view, err
}

// exhausted counts an event that a limit rejected and returns the status for it.
func (s *Server) exhausted(limit, format string, args ...any) error {
	s.cfg.Observer.LimitExceeded(limit)
	return status.Errorf(codes.ResourceExhausted, format, args...)
}

// exceeded counts an event that exceeds a limit, and logs the first one of a stream.
func (st *stream) exceeded(limit, message string, args ...any) {
	st.server.cfg.Observer.LimitExceeded(limit)
	if !st.logged[limit] {
		st.logged[limit] = true
		st.server.repeats.Log(st.log, slog.LevelWarn, limit+" "+repeats.Peer(st.peer), message+"; further cases on this stream are only counted", args...)
	}
}

// wait delays a client whose requests come too fast.
func (st *stream) wait(ctx context.Context) error {
	if st.rate.Allow() {
		return nil
	}
	st.exceeded("request_rate", "client sends requests faster than --max-request-rate", "rate", st.server.cfg.Limits.RequestRate)
	return st.rate.Wait(ctx)
}

// admit removes from a request what exceeds the limits, and reports whether the rest must be
// served. Called with mu held.
func (st *stream) admit(req *session.Request) bool {
	l := st.server.cfg.Limits
	types, _ := st.machine.Subscriptions()
	switch {
	case len(req.Type) > maxTypeBytes:
		st.exceeded("types", "client subscribes to a type that cannot exist: it is not answered", "type", shortened(req.Type), "bytes", len(req.Type))
		return false
	case len(types) >= l.Types && !slices.Contains(types, req.Type):
		st.exceeded("types", "client subscribes to more types than --max-types: the others are not answered", "type", shortened(req.Type))
		return false
	}
	l.names(st.machine, req, st.exceeded)
	return true
}

// maxTypeBytes bounds the URL of a type, whose name every upstream is sent. That of no type of Envoy has 100 bytes.
const maxTypeBytes = 1024

// names removes from a request the names that exceed the limits, and calls exceeded for them.
func (l Limits) names(machine *session.Session, req *session.Request, exceeded func(limit, message string, args ...any)) {
	removed := machine.Limit(req, l.Subscriptions)
	if removed.Surplus > 0 {
		exceeded("subscriptions", "client subscribes to more names than --max-subscriptions: the others are left out",
			"type", xds.Short(req.Type), "left_out", removed.Surplus, "such_as", shortened(removed.ASurplus))
	}
	if removed.Invalid > 0 {
		exceeded("names", "client subscribes to names that no resource can have: they are left out",
			"type", xds.Short(req.Type), "left_out", removed.Invalid, "such_as", shortened(removed.AnInvalid), "bytes", len(removed.AnInvalid))
	}
}

// exceededByPoll counts an event that exceeds a limit, and logs one each minute. A poll comes each second, and is no stream.
func (s *Server) exceededByPoll(limit, message string, args ...any) {
	s.cfg.Observer.LimitExceeded(limit)
	s.pollRepeats.Log(s.cfg.Log, slog.LevelWarn, "", "REST: "+message, args...)
}

// shortened returns the beginning of a name, for the log.
func shortened(name string) string {
	const limit = 128
	if len(name) <= limit {
		return name
	}
	return strings.ToValidUTF8(name[:limit], "") + "…"
}
