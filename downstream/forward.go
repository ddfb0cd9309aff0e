package downstream

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/holdfast-xds/holdfast/internal/redact"
)

// Forwarder opens a stream to the current upstream, for a service that holdfast does not serve
// itself.
type Forwarder interface {
	// Forward opens a stream of a full method name, "/package.Service/Method", with the outgoing
	// metadata of ctx and what the upstream asks for. What the upstream asks for replaces what
	// the client says under the same name. It fails with UNAVAILABLE while no upstream is there.
	Forward(ctx context.Context, method string) (grpc.ClientStream, error)
}

// DefaultPassThrough lists the services that are passed through to the upstream unless others are
// named: those that Envoy speaks with a control plane beside xDS.
var DefaultPassThrough = []string{
	"envoy.service.load_stats.v3.LoadReportingService",
	"envoy.service.health.v3.HealthDiscoveryService",
	"envoy.service.accesslog.v3.AccessLogService",
	"envoy.service.metrics.v3.MetricsService",
}

// The results of calls that are passed through, as Observer.PassedThrough is told.
const (
	// PassedOK and PassedError are how the upstream ended the call.
	PassedOK    = "ok"
	PassedError = "error"
	// NotPassed is a call of a service that is not passed through.
	NotPassed = "refused"
)

// notListed stands for all services that are not passed through: clients may call any.
const notListed = "other"

// forward passes a stream of a service that is in Config.PassThrough through, message by message
// and without decoding them (protocol.md 8.5). ADS does not notice if it fails. The call is made
// with the agent's own credentials, so that any other service is UNIMPLEMENTED.
func (s *Server) forward(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	service, ok := serviceOf(method)
	if s.cfg.Forward == nil || !ok || !slices.Contains(s.cfg.PassThrough, service) {
		s.cfg.Observer.PassedThrough(notListed, NotPassed)
		s.cfg.Log.Debug("call refused: the service is not passed through", "method", clip(method))
		return status.Errorf(codes.Unimplemented, "%s is not served here, and its service is not passed through (--pass-through)", clip(method))
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

// serviceOf returns the service of a full method name. It is ok only if it is "/service/method", and
// nothing that a proxy on the way to the upstream may take for a path of another service.
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

// clip bounds a text that a client makes up.
func clip(text string) string { return text[:min(len(text), 200)] }

// passedMetadata returns what is passed on of a client's metadata. Its credentials are for the
// agent, if for anybody, and what belongs to the connection ends with it.
func passedMetadata(from metadata.MD) metadata.MD {
	to := make(metadata.MD, len(from))
	for key, values := range from {
		if !isForwarded(key) {
			to[key] = slices.Clone(values)
		}
	}
	return to
}

// isForwarded says whether metadata of a name is not passed on.
func isForwarded(key string) bool {
	key = strings.ToLower(key)
	for _, prefix := range []string{":", "grpc-", "x-forwarded-"} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return slices.Contains(forwardedMetadata, key) || redact.NamesCredential(key)
}

// forwardedMetadata are names of metadata that are not passed on, beside those of credentials: what
// belongs to the connection, and what tells a proxy who asks for what.
var forwardedMetadata = []string{
	"proxy-authenticate", "www-authenticate",
	"forwarded", "via", "x-real-ip", "x-original-url", "x-http-method-override",
	"accept-encoding", "connection", "content-length", "content-type", "expect", "host", "http2-settings", "keep-alive",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
}

// pass passes one stream through until it ends.
func (s *Server) pass(down grpc.ServerStream, method string) error {
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, passedMetadata(md))
	}
	up, err := s.cfg.Forward.Forward(ctx, method)
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
		// A message without a field of its own keeps all of another's as they
		// are, so that nothing is decoded and the bytes stay the same.
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

// pump passes on what the client says, until it has said everything or one side
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
			return // the reason comes from RecvMsg
		}
	}
}
