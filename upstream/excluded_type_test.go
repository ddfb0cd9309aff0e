package upstream

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream/failover"
)

// debugType is a type for which istiod ends the stream.
const debugType = "istio.io/debug"

// touchy is a control plane that has the cluster c1. It ends a stream at a request for debugType,
// or at any request, as set says.
type touchy struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu       sync.Mutex
	minds    bool
	all      bool
	streams  int
	requests int // requests for debugType
}

func (s *touchy) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams++
}

// counts returns the number of streams, and of requests for debugType.
func (s *touchy) counts() (streams, requests int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams, s.requests
}

// set sets at which requests a stream ends from now on.
func (s *touchy) set(minds, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.minds, s.all = minds, all
}

// takes returns the error that ends the stream at a request; nil for none.
func (s *touchy) takes(typeURL string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if typeURL == debugType {
		s.requests++
	}
	if s.all || s.minds && typeURL == debugType {
		return status.Errorf(codes.PermissionDenied, "not authorized for %s", typeURL)
	}
	return nil
}

func (s *touchy) StreamAggregatedResources(stream grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	s.begin()
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := s.takes(req.GetTypeUrl()); err != nil {
			return err
		}
		if req.GetResponseNonce() != "" {
			continue
		}
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), VersionInfo: "1", Nonce: "n"}
		if req.GetTypeUrl() == xds.ClusterType {
			body, _ := anypb.New(&clusterv3.Cluster{Name: "c1"})
			resp.Resources = []*anypb.Any{body}
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (s *touchy) DeltaAggregatedResources(stream grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]) error {
	s.begin()
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := s.takes(req.GetTypeUrl()); err != nil {
			return err
		}
		if req.GetResponseNonce() != "" {
			continue
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "n"}
		if req.GetTypeUrl() == xds.ClusterType {
			body, _ := anypb.New(&clusterv3.Cluster{Name: "c1"})
			resp.Resources = []*discoveryv3.Resource{{Name: "c1", Version: "1", Resource: body}}
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// behindTouchy runs a source of a state that subscribes to all clusters and to two names of
// debugType.
func behindTouchy(t *testing.T, test func(t *testing.T, s *touchy, target *state, f *Failover)) {
	t.Helper()
	for name, form := range map[string]xds.Form{"sotw": xds.SotW, "delta": xds.Delta} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, pipe := &touchy{minds: true}, &xdstest.Pipe{}
				server := grpc.NewServer()
				discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
				served := make(chan error)
				go func() { served <- server.Serve(pipe.Listen()) }()
				target := everyCluster()
				target.changes = append(target.changes, xds.SubscriptionChange{Type: debugType, Subscribe: []string{"b", "a"}})
				f := &Failover{Timing: failover.Timing{StaleAfter: 1000 * time.Hour}, Sources: []Source{source(t, Config{
					Addr: "192.0.2.1:1", Form: form, Security: dial.Security{Plaintext: true}, Dial: pipe.Connect,
				})}}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- f.Run(ctx, target) }()
				test(t, s, target, f)
				cancel()
				<-ended
				server.Stop()
				<-served
			})
		})
	}
}

// Finding F4: a type for which the control plane ends the stream is not requested for a growing
// time, and the other types are served.
func TestATypeForWhichTheStreamEndsIsNotRequestedForAWhile(t *testing.T) {
	behindTouchy(t, func(t *testing.T, s *touchy, target *state, f *Failover) {
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if streams, requests := s.counts(); streams != 2 || requests != 1 || !f.States()[0].Active {
			t.Fatalf("%d streams, %d requests for it: %+v", streams, requests, f.States()[0])
		}
		found := false
		for _, u := range target.applied() {
			if u.Type == debugType && u.Timeout && len(u.Errors) == 2 && u.Errors[0].Name == "a" && strings.Contains(u.Errors[0].Err.Error(), "not authorized") {
				found = true
			}
		}
		if !found {
			t.Errorf("no update has the reason: %+v", target.applied())
		}
		time.Sleep(4*time.Hour - 25*time.Second)
		synctest.Wait()
		// It is requested again after 30 s, 1, 2, … 32 minutes, and then every hour.
		before, requests := s.counts()
		if requests < 8 || requests > 11 || before != requests+1 {
			t.Errorf("in 4 hours %d streams, %d requests for it", before, requests)
		}
		// When it is answered again, on the stream that is open, it is like any other type.
		s.set(false, false)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if streams, again := s.counts(); streams != before || again == requests {
			t.Errorf("%d further streams, %d further requests for it", streams-before, again-requests)
		}
	})
}

// If the control plane rejects every request, no type is excluded.
func TestNoTypeIsExcludedIfEveryRequestIsRejected(t *testing.T) {
	behindTouchy(t, func(t *testing.T, s *touchy, _ *state, f *Failover) {
		s.set(false, true)
		time.Sleep(time.Hour)
		s.set(false, false)
		_, before := s.counts()
		time.Sleep(DefaultMaxBackoff + time.Second)
		synctest.Wait()
		if _, requests := s.counts(); !f.States()[0].Active || requests == before {
			t.Errorf("%d requests for the type since: %+v", requests-before, f.States()[0])
		}
	})
}
