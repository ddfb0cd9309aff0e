package upstream

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// deltaServer is an ADS server that is a function.
type deltaServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	serve func(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error
}

func (s deltaServer) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.serve(stream)
}

// fetching returns a client of an ADS server that it is connected to by a pipe.
func fetching(t *testing.T, serve func(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error) *ADS {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, deltaServer{serve: serve})
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	a, err := NewADS(Config{Addr: "192.0.2.1:1", Security: dial.Security{Plaintext: true}, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return lis.DialContext(ctx)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// answers serves two resources and records the first request and the answer.
func answers(requests chan<- *discoveryv3.DeltaDiscoveryRequest) func(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return func(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		first, err := stream.Recv()
		if err != nil {
			return err
		}
		requests <- first
		for _, resp := range []*discoveryv3.DeltaDiscoveryResponse{
			{TypeUrl: xds.ClusterType, Nonce: "other"}, // which nobody requested
			{TypeUrl: xds.BootstrapType, Nonce: "n", Resources: []*discoveryv3.Resource{{Name: "1 b"}, {Name: "0 a"}}},
		} {
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		answer, err := stream.Recv()
		requests <- answer
		return err
	}
}

func TestFetchRequestsATypeOnceAndAnswers(t *testing.T) {
	for want, refused := range map[string]error{"": nil, "no; good": errors.New("no\ngood")} {
		requests := make(chan *discoveryv3.DeltaDiscoveryRequest, 2)
		a := fetching(t, answers(requests))
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		var names []string
		err := a.Fetch(ctx, &corev3.Node{Id: "web-1"}, xds.BootstrapType, func(_ context.Context, resources []*discoveryv3.Resource) (nack, err error) {
			for _, r := range resources {
				names = append(names, r.GetName())
			}
			return refused, nil
		})
		cancel()
		if got := strings.Join(names, ", "); err != nil || got != "0 a, 1 b" {
			t.Errorf("got %s, %v", got, err)
		}
		first, answer := <-requests, <-requests
		if first.GetNode().GetId() != "web-1" || first.GetTypeUrl() != xds.BootstrapType || strings.Join(first.GetResourceNamesSubscribe(), ",") != "*" {
			t.Errorf("request %v", first)
		}
		if answer.GetResponseNonce() != "n" || answer.GetErrorDetail().GetMessage() != want || answer.GetNode() != nil {
			t.Errorf("answer %v, want %q", answer, want)
		}
	}
}

func TestFetchSaysWhyNothingCame(t *testing.T) {
	type adsStream = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	const silent = "no response for envoy.config.bootstrap.v3.Bootstrap: does the control plane serve it?"
	accept := func(context.Context, []*discoveryv3.Resource) (nack, err error) { t.Error("accepted"); return nil, nil }
	for name, tc := range map[string]struct {
		serve func(adsStream) error
		want  string
	}{
		"a control plane that does not know the type": {func(s adsStream) error {
			<-s.Context().Done()
			return s.Context().Err()
		}, silent},
		"a control plane that ends the stream when the time is up": {func(s adsStream) error {
			<-s.Context().Done()
			return nil
		}, silent},
		"a control plane that ends the stream instead of a response": {func(s adsStream) error {
			_, err := s.Recv()
			return err
		}, silent},
		"a control plane whose own time is up":    {func(adsStream) error { return status.Error(codes.DeadlineExceeded, "too slow") }, silent},
		"a control plane that wants a token":      {func(adsStream) error { return status.Error(codes.Unauthenticated, "who are you?") }, "--upstream-token-file"},
		"a control plane that rejects the client": {func(adsStream) error { return status.Error(codes.PermissionDenied, "not you") }, "not you"},
		"a control plane that rejects the request": {func(s adsStream) error {
			_, _ = s.Recv()
			return status.Error(codes.InvalidArgument, "not that")
		}, "not that"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				if err := fetching(t, tc.serve).Fetch(ctx, &corev3.Node{}, xds.BootstrapType, accept); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v, want %s", err, tc.want)
				}
			})
		})
	}
}
