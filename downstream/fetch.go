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

// fetchWait is how long a request without a stream waits, at least, for the first resources. The
// timeout of Envoy's REST client is a second.
const fetchWait = 900 * time.Millisecond

// maxPolls bounds the responses that are remembered until the next poll shows whether they were
// accepted.
const maxPolls = 1024

// errCurrent is returned if the client has the current version.
var errCurrent = errors.New("the version is current")

// fetch answers one request without a stream with the response that would be the first on a
// stream. If the client has that version already, it waits for a change for at most hold, and
// then fails with errCurrent. It fails with UNAVAILABLE while nothing is known. The subscription
// stays leased after the request, so that the next request finds the resources.
func (s *Server) fetch(ctx context.Context, req *session.Request, node *corev3.Node, hold time.Duration) (*session.Response, error) {
	if err := check(req); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	node, err := s.nodeOf(node)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	client := Client{Stream: s.number(), Node: node, Form: xds.SotW, Fetch: true}
	view, err := s.attach(client)
	if err != nil {
		return nil, err
	}
	defer view.Close(End{})
	poll := strings.Join(append([]string{node.GetId(), req.Type}, req.Names...), "\x00")
	if last, ok := s.polls.Peek(poll); ok && last.Version == req.Version {
		// A poll carries the version that was accepted last (protocol.md 9.1).
		view.Answer(session.Answer{Type: req.Type, Acked: last.Resources})
	}
	deadline := time.NewTimer(max(hold, fetchWait))
	defer deadline.Stop()
	for first := true; ; first = false {
		resp := s.answer(client, view, req, first)
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
		return nil, status.Errorf(codes.Unavailable, "no %s received yet", xds.Short(req.Type))
	}
}

// answer returns the response that a stream beginning with this request would be sent first, or
// nil if there is none yet. Each response is complete by itself, so each is built by a new
// Session.
func (s *Server) answer(client Client, view View, req *session.Request, subscribe bool) (resp *session.Response) {
	machine := s.newSession(client, view, "")
	opening := *req
	opening.Nonce = ""
	if change := machine.Request(&opening).Subscription; change != nil && subscribe {
		view.Subscribe(*change)
	}
	v, _ := view.Begin()
	resp, _ = machine.Next(v, time.Now())
	view.End()
	if resp != nil && resp.Version == req.Version {
		// The client accepted this version, even if no earlier poll for it is remembered.
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
