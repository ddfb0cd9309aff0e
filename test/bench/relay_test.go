package main

import (
	"io"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// relayed returns a connection through a relay to a server that handles every method.
func relayed(t *testing.T, handle grpc.StreamHandler) *grpc.ClientConn {
	t.Helper()
	dir := t.TempDir()
	serve := func(name string, s *grpc.Server) *grpc.ClientConn {
		path := filepath.Join(dir, name)
		lis, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = s.Serve(lis) }()
		t.Cleanup(func() { s.Stop(); <-ended })
		conn, err := connect(dialer(path))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	up := serve("up", grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(maxMessage), grpc.UnknownServiceHandler(handle)))
	return serve("relay", relayServer(up))
}

func TestTheRelayPassesOnMethodMessagesAndTheEnd(t *testing.T) {
	const method = "/a.Service/Method"
	conn := relayed(t, func(_ any, s grpc.ServerStream) error {
		if got, _ := grpc.MethodFromServerStream(s); got != method {
			return status.Errorf(codes.Unimplemented, "%s", got)
		}
		return forward(s, s) // until the client has nothing more to say
	})
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, 100, 5000, 3 << 20} {
		sent := make([]byte, size)
		for i := range sent {
			sent[i] = byte(i % 251)
		}
		if err := s.SendMsg(mem.BufferSlice{mem.SliceBuffer(sent)}); err != nil {
			t.Fatal(err)
		}
		var f frame
		if err := s.RecvMsg(&f); err != nil {
			t.Fatal(err)
		}
		if string(f.data.Materialize()) != string(sent) {
			t.Errorf("a message of %d bytes came back as another of %d", size, f.data.Len())
		}
		f.data.Free()
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(new(frame)); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
}

func TestTheRelayPassesOnWhyAStreamFailed(t *testing.T) {
	conn := relayed(t, func(any, grpc.ServerStream) error { return status.Error(codes.PermissionDenied, "not you") })
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/a.Service/Method")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(new(frame)); status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "not you" {
		t.Errorf("the end: %v", err)
	}
}
