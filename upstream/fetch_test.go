package upstream

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// fetching returns a client of an ADS server on loopback.
func fetching(t *testing.T, serve func(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error) *ADS {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, deltaServer{serve: serve})
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	a, err := NewADS(Config{Addr: lis.Addr().String(), Security: dial.Security{Plaintext: true}})
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
	accept := func(context.Context, []*discoveryv3.Resource) (nack, err error) { t.Error("accepted"); return nil, nil }
	for name, tc := range map[string]struct {
		serve func(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error
		want  string
	}{
		"a control plane that does not know the type": {func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
			<-s.Context().Done()
			return nil
		}, "no response for envoy.config.bootstrap.v3.Bootstrap: does the control plane serve it?"},
		"a control plane that rejects the client": {func(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
			return status.Error(codes.PermissionDenied, "not you")
		}, "not you"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := fetching(t, tc.serve).Fetch(ctx, &corev3.Node{}, xds.BootstrapType, accept); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}
