package downstream_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// responses counts the responses in a log.
type responses struct {
	mu sync.Mutex
	n  int
}

func (r *responses) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n += bytes.Count(p, []byte("msg=response "))
	return len(p), nil
}

func (r *responses) made() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// puts caches clusters of a total size, each with a generation.
func (s *service) puts(bytes, generation int) {
	s.Helper()
	all := make([]proto.Message, 100)
	for i := range all {
		c := xdstest.Cluster(fmt.Sprintf("c%02d", i), "")
		c.AltStatName = strings.Repeat("x", bytes/len(all)) + fmt.Sprint(generation)
		all[i] = c
	}
	s.put(all...)
	s.quiet()
}

// reader is a client that subscribes to all clusters and reads on demand.
type reader struct {
	s     *service
	sotw  discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	delta discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func (s *service) reader() *reader {
	s.Helper()
	r, _ := s.readerOn(s.dial())
	return r
}

// readerOn opens the stream of a reader on a connection; end resets the stream.
func (s *service) readerOn(conn *grpc.ClientConn) (r *reader, end func()) {
	s.Helper()
	client, node := discoveryv3.NewAggregatedDiscoveryServiceClient(conn), &corev3.Node{Id: "reader"}
	r = &reader{s: s}
	ctx, end := context.WithCancel(s.Context())
	s.stops = append(s.stops, end)
	var err error
	if s.form == xdstest.Delta {
		if r.delta, err = client.DeltaAggregatedResources(ctx, grpc.MaxCallRecvMsgSize(1<<30)); err == nil {
			err = r.delta.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: xds.ClusterType})
		}
	} else {
		if r.sotw, err = client.StreamAggregatedResources(ctx, grpc.MaxCallRecvMsgSize(1<<30)); err == nil {
			err = r.sotw.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: xds.ClusterType})
		}
	}
	if err != nil {
		s.Fatal(err)
	}
	s.quiet()
	return r, end
}

// read returns the generation of the clusters in the next response.
func (r *reader) read() string {
	r.s.Helper()
	var body *anypb.Any
	var err error
	if r.delta != nil {
		var resp *discoveryv3.DeltaDiscoveryResponse
		resp, err = r.delta.Recv()
		if err == nil {
			body = resp.GetResources()[0].GetResource()
		}
	} else {
		var resp *discoveryv3.DiscoveryResponse
		resp, err = r.sotw.Recv()
		if err == nil {
			body = resp.GetResources()[0]
		}
	}
	var c clusterv3.Cluster
	if err == nil {
		err = body.UnmarshalTo(&c)
	}
	if err != nil {
		r.s.Fatal(err)
	}
	return strings.TrimLeft(c.GetAltStatName(), "x")
}

// Finding M11. While a large response waits for the client to read it, no other is built: changes
// are remembered by name, and the next response has the newest versions.
func TestAClientThatDoesNotReadCostsOneLargeResponse(t *testing.T) {
	made := &responses{}
	log := slog.New(slog.NewTextHandler(made, &slog.HandlerOptions{Level: slog.LevelDebug}))
	inBothForms(t, downstream.Config{Log: log}, func(s *service) {
		before := made.made()
		s.puts(4<<20, 0)
		r := s.reader()
		for generation := range 5 {
			s.puts(4<<20, generation+1)
		}
		if n := made.made() - before; n != 1 {
			s.Errorf("%d responses were made for a client that does not read, want 1", n)
		}
		for _, want := range []string{"0", "5"} {
			if got := r.read(); got != want {
				s.Errorf("reads generation %s, want %s", got, want)
			}
		}
		s.puts(4<<20, 6)
		if got := r.read(); got != "6" {
			s.Errorf("reads generation %s, want 6", got)
		}
	})
}

// A stream that the client or the server ends, while a large response waits and more must be sent,
// leaves nothing behind; goleak and service.end check that.
func TestAStreamEndsWhileALargeResponseWaits(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		s.puts(512<<10, 0)
		conn := s.dial()
		var ends []func()
		for range 30 {
			_, end := s.readerOn(conn)
			ends = append(ends, end)
		}
		s.puts(512<<10, 1)
		for _, end := range ends[:20] {
			end()
		}
		s.quiet()
		if n := len(s.server.Streams()); n != 10 {
			s.Errorf("%d streams are open, want those that did not end", n)
		}
		s.end()
	})
}

// Small responses do not wait for one another.
func TestSmallResponsesDoNotWait(t *testing.T) {
	made := &responses{}
	log := slog.New(slog.NewTextHandler(made, &slog.HandlerOptions{Level: slog.LevelDebug}))
	inBothForms(t, downstream.Config{Log: log}, func(s *service) {
		before := made.made()
		s.puts(100, 0)
		s.reader()
		for generation := range 4 {
			s.puts(100, generation+1)
		}
		if n := made.made() - before; n != 5 {
			s.Errorf("%d responses were made, want 5", n)
		}
	})
}
