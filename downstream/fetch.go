package downstream

import (
	"context"
	"errors"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// fetchWait is how long a request without a stream waits at least for something
// to be known. Envoy's REST client gives up after a second by itself.
const fetchWait = 900 * time.Millisecond

// maxPolls bounds the answers that are remembered until the next poll says
// whether they were accepted.
const maxPolls = 1024

// errCurrent says that the client has what it asked for.
var errCurrent = errors.New("the version is current")

// fetch answers one request without a stream, as the first answer of a stream
// would be. If the client has that version already, it waits for a change for at
// most hold, and then fails with errCurrent. It fails with UNAVAILABLE while
// nothing is known. What was asked for stays leased, so that the next request
// finds it.
func (s *Server) fetch(ctx context.Context, req *session.Request, node *corev3.Node, hold time.Duration) (*session.Response, error) {
	if err := check(req); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	node, err := s.nodeOf(node)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	view, err := s.attach(Client{Stream: s.number(), Node: node, Form: xds.SotW, Fetch: true})
	if err != nil {
		return nil, err
	}
	defer view.Close(End{})
	poll := strings.Join(append([]string{node.GetId(), req.Type}, req.Names...), "\x00")
	if last, ok := s.polls.Peek(poll); ok && last.Version == req.Version {
		// The version of a poll is the one that was last accepted (protocol.md 9.1).
		view.Answer(session.Answer{Type: req.Type, Acked: last.Resources})
	}
	deadline := time.NewTimer(max(hold, fetchWait))
	defer deadline.Stop()
	for first := true; ; first = false {
		resp := s.answer(view, req, node, first)
		if resp != nil && resp.Version != req.Version {
			s.polls.Add(poll, resp)
			s.cfg.Observer.Pushed(resp.Type, Fetched, len(resp.Resources))
			return resp, nil
		}
		if resp != nil && hold == 0 {
			return nil, errCurrent
		}
		select {
		case <-view.Changed():
			continue
		case <-deadline.C:
		case <-ctx.Done():
		}
		if resp != nil {
			return nil, errCurrent
		}
		return nil, status.Errorf(codes.Unavailable, "nothing is known yet of %s", xds.Short(req.Type))
	}
}

// answer returns what a stream that began with the request would be sent first,
// nil if that is nothing yet. Each answer is complete by itself, so each comes
// from a machine of its own.
func (s *Server) answer(view View, req *session.Request, node *corev3.Node, subscribe bool) (resp *session.Response) {
	machine := session.New(session.Config{
		Form:         xds.SotW,
		KeepWildcard: node.GetUserAgentName() == xds.EnvoyUserAgent,
		TTL:          enforcesTTL(node),
		HadWildcard:  view.HadWildcard,
		Secrets:      &s.secrets,
	})
	opening := *req
	opening.Nonce = ""
	if in := machine.Request(&opening).Subscription; in != nil && subscribe {
		view.Subscribe(*in)
	}
	v, _ := view.Begin()
	resp, _ = machine.Next(v, time.Now())
	view.End()
	if resp != nil && resp.Version == req.Version {
		// It is what the client accepted last, whoever remembers that it was sent.
		view.Answer(session.Answer{Type: req.Type, Acked: resp.Resources})
	}
	return resp
}

// number returns the number of a new stream, or of a request without one.
func (s *Server) number() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}
