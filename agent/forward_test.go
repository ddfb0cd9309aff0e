package agent

import (
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// protocol.md 8.5: Envoy opens streams of other services before ADS, and a client may speak no
// ADS at all.
func TestACallIsPassedThroughBeforeThereIsAnADSStream(t *testing.T) {
	const method = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"
	echo := func(_ any, s grpc.ServerStream) error {
		var msg emptypb.Empty
		if err := s.RecvMsg(&msg); err != nil {
			return err
		}
		return s.SendMsg(&msg)
	}
	inBothForms(t, func(r *rig) {
		r.cfg.Upstreams = []string{"file:" + t.TempDir(), upstreamAddr}
		r.cp.Stop()
		r.cp.Serve(r.up.Listen(), grpc.UnknownServiceHandler(echo))
		call := func() error {
			conn, err := r.down.Dial()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			s, err := conn.NewStream(r.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
			if err != nil {
				return err
			}
			var msg emptypb.Empty
			if err := errors.Join(s.SendMsg(&msg), s.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
				return err // io.EOF says that RecvMsg returns why the stream has ended
			}
			if err := s.RecvMsg(&msg); err != nil {
				return err
			}
			if err := s.RecvMsg(&msg); !errors.Is(err, io.EOF) {
				t.Errorf("the call ended with %v", err)
			}
			return nil
		}
		r.start()
		r.quiet()
		if err := call(); err != nil {
			t.Errorf("without any group: %v", err)
		}
		r.whole(node("web-1")) // the directory of files is the one that answers
		r.pass(time.Minute)
		if err := call(); err != nil {
			t.Errorf("while a source answers that is no server: %v", err)
		}
		r.cp.Stop()
		r.pass(time.Second)
		if err := call(); status.Code(err) != codes.Unavailable {
			t.Errorf("with the control plane away: %v", err)
		}
	})
}
