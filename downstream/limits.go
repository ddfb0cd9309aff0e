package downstream

import (
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream/session"
)

// Limits bound what a client may cost. A mesh of 20,000 clusters stays below the
// defaults, which take the place of zeros. What goes beyond is refused with
// RESOURCE_EXHAUSTED.
type Limits struct {
	// Streams is how many may be open. Envoy opens one for each EDS cluster and
	// each secret where it does not use ADS (protocol.md V10).
	Streams int
	// Types is how many types one stream may ask for, Subscriptions how many
	// names.
	Types, Subscriptions int
	// RequestRate is how many requests one stream may send in a second, after a
	// first RequestBurst of them.
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
	return []string{"streams", "types", "subscriptions", "request_rate", "any_depth"}
}

// exhausted counts what a limit refused and returns the status for it.
func (s *Server) exhausted(limit, format string, args ...any) error {
	s.cfg.Observer.Refused(limit)
	return status.Errorf(codes.ResourceExhausted, format, args...)
}

// gate holds one stream to the limits. It is used by the receiver only.
type gate struct {
	server *Server
	rate   *rate.Limiter
}

func newGate(s *Server) gate {
	l := s.cfg.Limits
	return gate{s, rate.NewLimiter(rate.Limit(l.RequestRate), l.RequestBurst)}
}

// admit refuses a request that goes beyond the limits; machine is the stream's,
// under its lock.
func (g gate) admit(req *session.Request, machine *session.Session) error {
	l := g.server.cfg.Limits
	if !g.rate.Allow() {
		return g.server.exhausted("request_rate", "more than %d requests a second on one stream", l.RequestRate)
	}
	types, names := machine.Subscriptions()
	if machine.New(req.Type) && len(types) >= l.Types {
		return g.server.exhausted("types", "more than %d types on one stream", l.Types)
	}
	// SotW repeats the names of a type, which are then counted once too often;
	// what one request names is bounded by itself.
	more := len(req.Subscribe)
	if len(req.Names) > l.Subscriptions {
		more += len(req.Names)
	}
	if names+more > l.Subscriptions {
		return g.server.exhausted("subscriptions", "more than %d names on one stream", l.Subscriptions)
	}
	return nil
}
