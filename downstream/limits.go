package downstream

import (
	"context"
	"log/slog"
	"strings"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Limits bound what a client may cost. A mesh of 20,000 clusters stays below the
// defaults, which take the place of zeros. A stream too many, and JSON that is nested too deep,
// are refused with RESOURCE_EXHAUSTED. Else what goes beyond is left out and its stream stays:
// a client repeats what it asks for on its next stream.
type Limits struct {
	// Streams is how many may be open. Envoy opens one for each EDS cluster and
	// each secret where it does not use ADS (protocol.md V10).
	Streams int
	// Types is how many types one stream may ask for, Subscriptions how many
	// names.
	Types, Subscriptions int
	// RequestRate is how many requests of one stream are read in a second, after a
	// first RequestBurst of them; the others wait.
	RequestRate, RequestBurst int
	// AnyDepth is how deep Anys may be nested in a resource that is written as
	// JSON, for REST: each level is decoded anew. Nothing else decodes them.
	AnyDepth int
}

// DefaultLimits are the limits where none are set.
var DefaultLimits = Limits{
	Streams:       65536,
	Types:         64,
	Subscriptions: 200_000,
	RequestRate:   1000,
	RequestBurst:  20_000,
	AnyDepth:      64,
}

func (l Limits) orDefault() Limits {
	for _, f := range []struct{ set, def *int }{
		{&l.Streams, &DefaultLimits.Streams},
		{&l.Types, &DefaultLimits.Types},
		{&l.Subscriptions, &DefaultLimits.Subscriptions},
		{&l.RequestRate, &DefaultLimits.RequestRate},
		{&l.RequestBurst, &DefaultLimits.RequestBurst},
		{&l.AnyDepth, &DefaultLimits.AnyDepth},
	} {
		if *f.set == 0 {
			*f.set = *f.def
		}
	}
	return l
}

// LimitNames lists the limits that Observer.Refused is told of.
func LimitNames() []string {
	return []string{"streams", "types", "subscriptions", "names", "request_rate", "any_depth", "groups"}
}

// attach opens the view of a client, and counts one that is refused because there are too
// many kinds of them.
func (s *Server) attach(client Client) (View, error) {
	view, err := s.cfg.State.Attach(client)
	if err != nil {
		s.cfg.Observer.LimitExceeded("groups")
	}
	return view, err
}

// exhausted counts what a limit refused and returns the status for it.
func (s *Server) exhausted(limit, format string, args ...any) error {
	s.cfg.Observer.LimitExceeded(limit)
	return status.Errorf(codes.ResourceExhausted, format, args...)
}

// gate holds one stream to the limits. It is used by the receiver only.
type gate struct {
	server *Server
	log    *slog.Logger
	rate   *rate.Limiter
	// logged are the limits that were logged.
	logged map[string]bool
}

func newGate(s *Server, log *slog.Logger) *gate {
	l := s.cfg.Limits
	return &gate{s, log, rate.NewLimiter(rate.Limit(l.RequestRate), l.RequestBurst), make(map[string]bool)}
}

// beyond counts what goes beyond a limit, and logs it once on a stream.
func (g *gate) beyond(limit, message string, args ...any) {
	g.server.cfg.Observer.LimitExceeded(limit)
	if !g.logged[limit] {
		g.logged[limit] = true
		g.log.Warn(message+"; it is counted, and not said again of this stream", args...)
	}
}

// wait lets the client wait whose requests come too fast. It fails when ctx ends.
func (g *gate) wait(ctx context.Context) error {
	if g.rate.Allow() {
		return nil
	}
	g.beyond("request_rate", "a client sends requests faster than they are read (--max-request-rate)", "rate", g.server.cfg.Limits.RequestRate)
	return g.rate.Wait(ctx)
}

// admit takes out of a request what goes beyond the limits, and reports whether the rest is to
// be served; machine is the stream's, under its lock.
func (g *gate) admit(req *session.Request, machine *session.Session) bool {
	l := g.server.cfg.Limits
	if types, _ := machine.Subscriptions(); machine.New(req.Type) && len(types) >= l.Types {
		g.beyond("types", "a client asks for more types than it may (--max-types): the others are not answered", "type", shortened(req.Type))
		return false
	}
	left := machine.Limit(req, l.Subscriptions)
	if left.Surplus > 0 {
		g.beyond("subscriptions", "a client subscribes to more names than it may (--max-subscriptions): the others are left out",
			"type", xds.Short(req.Type), "left_out", left.Surplus, "such_as", shortened(left.ASurplus))
	}
	if left.Invalid > 0 {
		g.beyond("names", "a client subscribes to names that no resource can have: they are left out",
			"type", xds.Short(req.Type), "left_out", left.Invalid, "such_as", shortened(left.AnInvalid), "bytes", len(left.AnInvalid))
	}
	return true
}

// shortened returns the beginning of a name, for the log.
func shortened(name string) string {
	const most = 128
	if len(name) <= most {
		return name
	}
	return strings.ToValidUTF8(name[:most], "") + "…"
}
