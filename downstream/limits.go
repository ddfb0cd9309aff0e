package downstream

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream/session"
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
	return []string{"streams", "types", "subscriptions", "names", "request_rate", "any_depth", "groups"}
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

// limiter enforces the limits on one stream. It is used by the receiver only.
type limiter struct {
	server *Server
	log    *slog.Logger
	rate   *rate.Limiter
	logged map[string]bool
}

func newLimiter(s *Server, log *slog.Logger) *limiter {
	l := s.cfg.Limits
	return &limiter{s, log, rate.NewLimiter(rate.Limit(l.RequestRate), l.RequestBurst), make(map[string]bool)}
}

// exceeded counts an event that exceeds a limit, and logs the first one of a stream.
func (g *limiter) exceeded(limit, message string, args ...any) {
	g.server.cfg.Observer.LimitExceeded(limit)
	if !g.logged[limit] {
		g.logged[limit] = true
		g.log.Warn(message+"; further cases on this stream are only counted", args...)
	}
}

// wait delays a client whose requests come too fast.
func (g *limiter) wait(ctx context.Context) error {
	if g.rate.Allow() {
		return nil
	}
	g.exceeded("request_rate", "client sends requests faster than --max-request-rate", "rate", g.server.cfg.Limits.RequestRate)
	return g.rate.Wait(ctx)
}

// admit removes from a request what exceeds the limits, and reports whether the rest must be
// served. machine is the stream's Session; its lock must be held.
func (g *limiter) admit(req *session.Request, machine *session.Session) bool {
	l := g.server.cfg.Limits
	if types, _ := machine.Subscriptions(); len(types) >= l.Types && !slices.Contains(types, req.Type) {
		g.exceeded("types", "client subscribes to more types than --max-types: the others are not answered", "type", shortened(req.Type))
		return false
	}
	removed := machine.Limit(req, l.Subscriptions)
	if removed.Surplus > 0 {
		g.exceeded("subscriptions", "client subscribes to more names than --max-subscriptions: the others are left out",
			"type", xds.Short(req.Type), "left_out", removed.Surplus, "such_as", shortened(removed.ASurplus))
	}
	if removed.Invalid > 0 {
		g.exceeded("names", "client subscribes to names that no resource can have: they are left out",
			"type", xds.Short(req.Type), "left_out", removed.Invalid, "such_as", shortened(removed.AnInvalid), "bytes", len(removed.AnInvalid))
	}
	return true
}

// shortened returns the beginning of a name, for the log.
func shortened(name string) string {
	const limit = 128
	if len(name) <= limit {
		return name
	}
	return strings.ToValidUTF8(name[:limit], "") + "…"
}
