package downstream

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Forwarder opens a stream to the current upstream, for a service that holdfast
// does not serve itself: load reports, health checks, access logs, rate limits.
type Forwarder interface {
	// Forward opens a stream of a full method name, "/package.Service/Method". It
	// fails with UNAVAILABLE while no upstream is there.
	Forward(ctx context.Context, method string) (grpc.ClientStream, error)
}

// forward passes a stream of an unknown service through, message by message and
// without decoding them (protocol.md 8.5). ADS does not notice if it fails.
func (s *Server) forward(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	if s.cfg.Forward == nil {
		return status.Errorf(codes.Unimplemented, "%s is not served here", method)
	}
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md.Copy())
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
