package downstream

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/listener"
	"github.com/holdfast-xds/holdfast/internal/walk"
	"github.com/holdfast-xds/holdfast/internal/webguard"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// restPrefix is the beginning of the path of every REST request; the kind of resource follows
// (protocol.md 9.1).
const restPrefix = "/v3/discovery:"

// maxRESTRequest is the maximum size of a REST request in bytes. A Node is 77 KB, and names follow.
const maxRESTRequest = 16 << 20

// ServeREST serves only REST on lis until ctx ends, and then returns nil; lis is closed. If lis
// is not a Unix socket, requests that a web page could send are rejected (package webguard).
// Clients are not authenticated and the traffic can be read on the way, so that no response with
// a secret in it is served. The whole response is rejected, because a response without the
// resource would delete it.
func (s *Server) ServeREST(ctx context.Context, lis net.Listener) error {
	return s.serveREST(ctx, s.room.Bound(lis), false)
}

// serveREST serves REST; with secrets set, to clients that were authenticated.
func (s *Server) serveREST(ctx context.Context, lis net.Listener, secrets bool) error {
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.rest(w, r, secrets) }))
	if lis.Addr().Network() != "unix" {
		// Envoy sends the name of its cluster as Host.
		handler = webguard.Guard{Host: s.cfg.RESTHost, PlainNames: true}.Wrap(handler)
	}
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: sniffTimeout,
		ReadTimeout:       time.Minute,
		IdleTimeout:       5 * time.Minute,
		ConnState:         listener.Requests,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, c)
		},
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		_ = srv.Close()
	})
	err := srv.Serve(lis)
	if !stop() {
		<-closed
	}
	if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// rest answers one poll: 200 with a new version, 304 if the version is current, 503 while nothing
// is known. The answer "{}" would wipe Envoy, so it is never sent (protocol.md 9.2 to 9.4).
func (s *Server) rest(w http.ResponseWriter, r *http.Request, secrets bool) {
	typeURL, ok := restType(w, r)
	if !ok {
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRESTRequest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var msg discoveryv3.DiscoveryRequest
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true, Resolver: envoytypes.Resolver}).Unmarshal(body, &msg); err != nil {
		http.Error(w, "not a DiscoveryRequest in JSON: "+err.Error(), http.StatusBadRequest)
		return
	}
	resp, err := s.fetch(r.Context(), credentialsOfREST(r), &msg, typeURL)
	switch {
	case errors.Is(err, errCurrent):
		w.WriteHeader(http.StatusNotModified)
		return
	case status.Code(err) == codes.InvalidArgument:
		http.Error(w, status.Convert(err).Message(), http.StatusBadRequest)
		return
	case status.Code(err) == codes.Unauthenticated:
		http.Error(w, status.Convert(err).Message(), http.StatusUnauthorized)
		return
	case status.Code(err) == codes.PermissionDenied:
		http.Error(w, status.Convert(err).Message(), http.StatusForbidden)
		return
	case err != nil:
		http.Error(w, status.Convert(err).Message(), http.StatusServiceUnavailable)
		return
	}
	out, err := resp.SotW(s.from)
	if err == nil && !secrets {
		if forbidden := s.rejectSecrets(out); forbidden != nil {
			s.secretsRejected.Do(func() {
				s.cfg.Log.Warn("secret not served over REST on TCP", "type", xds.Short(typeURL), "err", forbidden)
			})
			http.Error(w, forbidden.Error(), http.StatusForbidden)
			return
		}
	}
	if err == nil {
		body, err = s.restJSON(out)
	}
	if err != nil {
		s.cfg.Log.Warn("resource cannot be written as JSON for REST", "type", xds.Short(typeURL), "err", err)
		http.Error(w, status.Convert(err).Message(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// rejectSecrets returns an error for a response with a secret in it, in a resource of any type.
func (s *Server) rejectSecrets(resp *discoveryv3.DiscoveryResponse) error {
	for _, res := range resp.GetResources() {
		if why := s.secrets.Sensitive(res); why != "" {
			name := "?"
			if r, err := xds.FromAny(resp.GetTypeUrl(), "", res, time.Time{}); err == nil {
				name = r.Name
			}
			return fmt.Errorf("%s %q is not served on TCP, since it contains a secret: %s: fetch it over the Unix socket", xds.Short(resp.GetTypeUrl()), name, why)
		}
	}
	return nil
}

// nestedWithin reports whether at most depth Anys are nested in a message. An Any that cannot be
// decoded counts as one level; writing it as JSON fails anyway.
func nestedWithin(m protoreflect.Message, depth int) bool {
	m = envoytypes.Linked(m)
	if holder, ok := m.Interface().(*anypb.Any); ok {
		if depth == 0 {
			return false
		}
		inner, err := envoytypes.Unpack(holder)
		return err != nil || nestedWithin(inner.ProtoReflect(), depth-1)
	}
	for inner := range walk.Messages(m) {
		if !nestedWithin(inner, depth) {
			return false
		}
	}
	return true
}

func restType(w http.ResponseWriter, r *http.Request) (typeURL string, ok bool) {
	kind, isDiscovery := strings.CutPrefix(r.URL.Path, restPrefix)
	typeURL, known := xds.TypeByRESTName(kind)
	switch {
	case isDiscovery && kind == "secrets":
		http.Error(w, "secrets are not served over REST: use SDS over gRPC on this socket", http.StatusForbidden)
	case !known:
		http.Error(w, "not found: want POST "+restPrefix+"clusters, endpoints, listeners, routes, scoped-routes, runtime or extension_configs", http.StatusNotFound)
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "want POST", http.StatusMethodNotAllowed)
	default:
		return typeURL, true
	}
	return "", false
}

// restJSON encodes a response as JSON. A resource that contains a type which this build does not
// know cannot be encoded. Leaving it out would delete it, so restJSON fails with an error that
// names it instead (protocol.md 9.5).
func (s *Server) restJSON(resp *discoveryv3.DiscoveryResponse) ([]byte, error) {
	for _, res := range resp.GetResources() {
		if !nestedWithin(res.ProtoReflect(), s.cfg.Limits.AnyDepth) {
			name, _ := xds.ScanName(res)
			return nil, s.exhausted("any_depth", "%s %q cannot be written as JSON: more than %d Anys are nested in it (--max-any-depth)", xds.Short(resp.GetTypeUrl()), name, s.cfg.Limits.AnyDepth)
		}
	}
	opts := protojson.MarshalOptions{UseProtoNames: true, Resolver: envoytypes.Resolver}
	body, err := opts.Marshal(resp)
	if err == nil {
		return body, nil
	}
	for _, res := range resp.GetResources() {
		if _, one := opts.Marshal(res); one != nil {
			name, _ := xds.ScanName(res)
			return nil, fmt.Errorf("%s %q cannot be written as JSON: %w; fetch it over gRPC", xds.Short(res.GetTypeUrl()), name, one)
		}
	}
	return nil, err
}

// fetchWait is how long a request without a stream waits, at least, for the first resources. The
// timeout of Envoy's REST client is a second.
const fetchWait = 900 * time.Millisecond

// maxPolls bounds the responses that are remembered until the next poll shows whether they were
// accepted.
const maxPolls = 1024

var errCurrent = errors.New("the version is current")

// fetch answers one request without a stream, on the service of a type, with the response that would
// be the first on a stream. If the client has that version already, it waits for a change for at most
// RESTHold, and then fails with errCurrent. It fails with UNAVAILABLE while nothing is known. The
// subscription stays leased after the request, so that the next request finds the resources.
func (s *Server) fetch(ctx context.Context, credentials Credentials, msg *discoveryv3.DiscoveryRequest, typeURL string) (*session.Response, error) {
	req, hold := session.FromSotW(msg), s.cfg.RESTHold
	node, err := s.nodeOf(msg.GetNode())
	if err := cmp.Or(implyType(req, typeURL), err); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	who, err := s.identify(ctx, credentials)
	if err != nil {
		return nil, err
	}
	client := Client{Stream: s.number(), Node: node, Form: xds.SotW, Identity: who, Gone: ctx.Done(), Fetch: true}
	view, err := s.attach(client)
	if err != nil {
		return nil, err
	}
	defer view.Close(End{})
	poll := sha256.Sum256([]byte(strings.Join(append([]string{node.GetId(), req.Type}, req.Names...), "\x00")))
	if last, ok := s.polls.Peek(poll); ok && last.Version == req.Version {
		// A poll carries the version that was accepted last (protocol.md 9.1).
		view.Answer(session.Answer{Type: req.Type, Acked: last.Resources})
	}
	s.cfg.Limits.names(s.newSession(client, view, ""), req, s.exceededByPoll)
	deadline := time.NewTimer(max(hold, fetchWait))
	defer deadline.Stop()
	for first := true; ; first = false {
		resp := s.answer(client, view, req, first)
		if resp != nil && resp.Version != req.Version {
			s.polls.Add(poll, resp)
			s.cfg.Observer.Pushed(resp.Type, Fetched, len(resp.Resources), 0)
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
