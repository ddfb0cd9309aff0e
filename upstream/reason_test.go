package upstream

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/dial"
)

// The reasons are those of real connections: gRPC hands most of them on as texts.
func TestTheReasonOfAFailureIsRecognized(t *testing.T) {
	plaintext := dial.Security{Plaintext: true}
	reject := func(code codes.Code) grpc.ServerOption {
		return grpc.StreamInterceptor(func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
			return status.Error(code, "no")
		})
	}
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	_, secure := controlPlane(t, withTLS(ca.server(ca.issue("server", "127.0.0.1"))))
	_, insecure := controlPlane(t)
	_, denies := controlPlane(t, reject(codes.Unauthenticated))
	_, forbids := controlPlane(t, reject(codes.PermissionDenied))
	_, fails := controlPlane(t, reject(codes.Internal))
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	hangsUp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hangsUp.Close() })
	go func() {
		for {
			conn, err := hangsUp.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"nobody listens":               {Config{Addr: closed.Addr().String(), Security: plaintext}, ReasonUnreachable},
		"no such socket":               {Config{Addr: "unix:/nope/xds.sock"}, ReasonUnreachable},
		"no such name":                 {Config{Addr: "no-such-name.invalid:443", Security: plaintext}, ReasonName},
		"an unknown authority":         {Config{Addr: secure, Security: dial.Security{CA: other.file}}, ReasonTLS},
		"a server without TLS":         {Config{Addr: insecure, Security: dial.Security{CA: ca.file}}, ReasonTLS},
		"credentials are missing":      {Config{Addr: denies, Security: plaintext}, ReasonDenied},
		"credentials do not suffice":   {Config{Addr: forbids, Security: plaintext}, ReasonDenied},
		"an error of the server":       {Config{Addr: fails, Security: plaintext}, ReasonOther},
		"a server that closes":         {Config{Addr: hangsUp.Addr().String(), Security: plaintext}, ReasonLost},
		"a file that cannot be used":   {Config{Addr: secure, Security: dial.Security{CA: "/nope"}}, ReasonOther},
		"REST: nobody listens":         {Config{Addr: "http://" + closed.Addr().String(), Security: plaintext}, ReasonUnreachable},
		"REST: no such name":           {Config{Addr: "http://no-such-name.invalid", Security: plaintext}, ReasonName},
		"REST: an unknown certificate": {Config{Addr: "https://" + secure, Security: dial.Security{CA: other.file}}, ReasonTLS},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var s Source
			var err error
			if name[:4] == "REST" {
				s, err = NewREST(tc.cfg)
			} else {
				s, err = NewADS(tc.cfg)
			}
			if err != nil {
				t.Fatal(err)
			}
			err = s.Run(ctx, everyCluster(), func() error { return nil })
			if got := reasonOf(err); got != tc.want || !slices.Contains(Reasons(), got) {
				t.Errorf("%s, want %s: %v", got, tc.want, err)
			}
		})
	}
	if got := reasonOf(fmt.Errorf("waiting: %w", context.DeadlineExceeded)); got != ReasonSilent {
		t.Errorf("a timeout is %s", got)
	}
}
