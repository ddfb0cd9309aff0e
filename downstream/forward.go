package downstream

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/holdfast-xds/holdfast/internal/redact"
)

// DefaultPassThrough lists the services that are passed through to the upstream if
// Config.PassThrough is nil: those that Envoy uses with a control plane besides xDS.
var DefaultPassThrough = []string{
	"envoy.service.load_stats.v3.LoadReportingService",
	"envoy.service.health.v3.HealthDiscoveryService",
	"envoy.service.accesslog.v3.AccessLogService",
	"envoy.service.metrics.v3.MetricsService",
}

// Results of calls that are passed through, for Observer.PassedThrough.
const (
	PassedOK    = "ok"      // the upstream ended the call without an error
	PassedError = "error"   // the upstream ended the call with an error
	NotPassed   = "refused" // the service is not passed through
)

// notListed replaces the names of services that are not passed through: clients can call any.
const notListed = "other"

// forward passes a stream through to the upstream if its service is in Config.PassThrough,
// message by message and without decoding them (protocol.md 8.5). A failure does not affect ADS.
// The call is made with the agent's own credentials, so that any other service is UNIMPLEMENTED.
func (s *Server) forward(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	service, ok := serviceOf(method)
	if s.cfg.Forward == nil || !ok || !slices.Contains(s.cfg.PassThrough, service) {
		s.cfg.Observer.PassedThrough(notListed, NotPassed)
		s.cfg.Log.Debug("call rejected: the service is not passed through", "method", shortened(method))
		return status.Errorf(codes.Unimplemented, "%s is not served here, and its service is not passed through (--pass-through)", shortened(method))
	}
	s.cfg.Log.Debug("call passed through", "method", method)
	err := s.pass(down, method)
	result := PassedOK
	if err != nil {
		result = PassedError
	}
	s.cfg.Observer.PassedThrough(service, result)
	s.cfg.Log.Debug("call passed through has ended", "method", method, "err", redact.Error(err))
	return err
}

// serviceOf returns the service of a full method name. ok is set only if the name is
// "/service/method", without anything that a proxy on the way to the upstream may take for the
// path of another service.
func serviceOf(full string) (service string, ok bool) {
	path, ok := strings.CutPrefix(full, "/")
	service, method, _ := strings.Cut(path, "/")
	for _, part := range []string{service, method} {
		if part == "" || part == "." || part == ".." || strings.ContainsAny(part, "/\\%?#;") {
			return "", false
		}
	}
	return service, ok
}

// isDropped reports whether metadata of a client is not passed on. The client's credentials are meant
// for the agent, and metadata of the connection is meant for its two ends only.
func isDropped(key string, _ []string) bool {
	for _, prefix := range []string{":", "grpc-", "x-forwarded-"} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return slices.Contains(droppedMetadata, key) || redact.NamesCredential(key)
}

// droppedMetadata are names of metadata that is not passed on, besides credentials: metadata of the
// connection, and metadata from which a proxy learns the sender and the target of a request.
var droppedMetadata = []string{
	"proxy-authenticate", "www-authenticate",
	"forwarded", "via", "x-real-ip", "x-original-url", "x-http-method-override",
	"accept-encoding", "connection", "content-length", "content-type", "expect", "host", "http2-settings", "keep-alive",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
}

func (s *Server) pass(down grpc.ServerStream, method string) error {
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		md = md.Copy() // in lower case
		maps.DeleteFunc(md, isDropped)
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	up, err := s.cfg.Forward(ctx, method)
	if err != nil {
		return err
	}
	s.streaming.Go(func() { pump(down, up, cancel) })
	if md, err := up.Header(); err == nil && len(md) > 0 {
		if err := down.SetHeader(md); err != nil {
			return err
		}
	}
	for {
		// A message without fields of its own keeps all fields of another message as unknown
		// fields, so that nothing is decoded and the bytes stay the same.
		var msg emptypb.Empty
		if err := up.RecvMsg(&msg); err != nil {
			down.SetTrailer(up.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := down.SendMsg(&msg); err != nil {
			return err
		}
	}
}

// pump passes on the messages of the client until the client has sent all of them or one side
// ends.
func pump(down grpc.ServerStream, up grpc.ClientStream, cancel context.CancelFunc) {
	for {
		var msg emptypb.Empty
		if err := down.RecvMsg(&msg); err != nil {
			if errors.Is(err, io.EOF) {
				_ = up.CloseSend()
			} else {
				cancel()
			}
			return
		}
		if up.SendMsg(&msg) != nil {
			return // RecvMsg returns the reason
		}
	}
}
