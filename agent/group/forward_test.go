package group_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// echo is a service that holdfast does not know: it sends every message back, and
// ends with a status of its own.
func echo(_ any, s grpc.ServerStream) error {
	if md, _ := metadata.FromIncomingContext(s.Context()); len(md.Get("x-asked")) == 0 {
		return status.Error(codes.PermissionDenied, "no header")
	}
	_ = s.SetHeader(metadata.Pairs("x-answered", "yes"))
	for {
		var msg emptypb.Empty
		if err := s.RecvMsg(&msg); err != nil {
			s.SetTrailer(metadata.Pairs("x-ended", "yes"))
			if errors.Is(err, io.EOF) {
				return status.Error(codes.DataLoss, "that was all")
			}
			return err
		}
		if err := s.SendMsg(&msg); err != nil {
			return err
		}
	}
}

func message(field protowire.Number, text string) *emptypb.Empty {
	m := &emptypb.Empty{}
	m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, field, protowire.BytesType), text))
	return m
}

const lrs = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"

// protocol.md 8.5.
func TestOtherServicesArePassedThrough(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.cp.Stop()
		r.cp.Serve(r.up.Listen(), grpc.UnknownServiceHandler(echo))
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Minute)
		conn, err := r.down.Dial()
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx := metadata.AppendToOutgoingContext(r.Context(), "x-asked", "yes")
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, lrs)
		if err != nil {
			r.Fatal(err)
		}
		for _, text := range []string{"one", "two"} {
			sent, got := message(99, text), &emptypb.Empty{}
			if err := s.SendMsg(sent); err != nil {
				r.Fatal(err)
			}
			if err := s.RecvMsg(got); err != nil {
				r.Fatal(err)
			}
			if !bytes.Equal(got.ProtoReflect().GetUnknown(), sent.ProtoReflect().GetUnknown()) {
				r.Fatalf("got %v, want %v", got, sent)
			}
		}
		if err := s.CloseSend(); err != nil {
			r.Fatal(err)
		}
		err = s.RecvMsg(&emptypb.Empty{})
		if status.Code(err) != codes.DataLoss || status.Convert(err).Message() != "that was all" {
			r.Errorf("the stream ended with %v", err)
		}
		header, _ := s.Header()
		if len(header.Get("x-answered")) == 0 || len(s.Trailer().Get("x-ended")) == 0 {
			r.Errorf("header %v, trailer %v", header, s.Trailer())
		}
	})
}

func TestAPassThroughWithoutAnUpstreamLeavesADSAlone(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		conn, err := r.down.Dial()
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		// The scripted control plane has no such service, and then stops.
		for _, want := range []codes.Code{codes.Unimplemented, codes.Unavailable} {
			ctx, cancel := context.WithTimeout(r.Context(), time.Second)
			err := conn.Invoke(ctx, lrs, message(1, "x"), &emptypb.Empty{})
			cancel()
			if status.Code(err) != want {
				r.Errorf("got %v, want %v", err, want)
			}
			r.cp.Stop()
			r.pass(time.Second)
		}
		if err := c.Err(); err != nil {
			r.Errorf("ADS ended: %v", err)
		}
		r.holds(c, xds.ListenerType, "l1")
	})
}

func TestHealthIsServed(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		conn, err := r.down.Dial()
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		got, err := healthgrpc.NewHealthClient(conn).Check(r.Context(), &healthgrpc.HealthCheckRequest{})
		if err != nil || got.GetStatus() != healthgrpc.HealthCheckResponse_SERVING {
			r.Errorf("%v %v", got, err)
		}
	})
}
