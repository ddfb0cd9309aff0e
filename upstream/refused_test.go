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

// debugType is one that istiod refuses by ending the stream.
const debugType = "istio.io/debug"

// touchy is a control plane that has the cluster c1, and ends the stream of who asks for
// debugType while it minds, or for anything if it minds all.
type touchy struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu      sync.Mutex
	minds   bool
	all     bool
	streams int
	asked   int // for debugType
}

func (s *touchy) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams++
}

// counts returns how many streams there were, and how often debugType was asked for.
func (s *touchy) counts() (streams, asked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams, s.asked
}

// set says what ends a stream from now on.
func (s *touchy) set(minds, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.minds, s.all = minds, all
}

// takes returns why a request ends the stream.
func (s *touchy) takes(typeURL string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if typeURL == debugType {
		s.asked++
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

// behindTouchy feeds a state that wants all clusters and two names of debugType.
func behindTouchy(t *testing.T, test func(t *testing.T, s *touchy, feed *state, f *Failover)) {
	t.Helper()
	for name, form := range map[string]xds.Form{"sotw": xds.SotW, "delta": xds.Delta} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, pipe := &touchy{minds: true}, &xdstest.Pipe{}
				server := grpc.NewServer()
				discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
				served := make(chan error)
				go func() { served <- server.Serve(pipe.Listen()) }()
				feed := everyCluster()
				feed.wants = append(feed.wants, xds.SubscriptionChange{Type: debugType, Subscribe: []string{"b", "a"}})
				f := &Failover{Timing: failover.Timing{StaleAfter: 1000 * time.Hour}, Sources: []Source{source(t, Config{
					Addr: "192.0.2.1:1", Form: form, Security: dial.Security{Plaintext: true}, Dial: pipe.Connect,
				})}}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- f.Run(ctx, feed) }()
				test(t, s, feed, f)
				cancel()
				<-ended
				server.Stop()
				<-served
			})
		})
	}
}

// Finding F4: a type for which the control plane ends the stream is left out for a growing time,
// and the others go on.
func TestATypeForWhichTheStreamEndsIsLeftOut(t *testing.T) {
	behindTouchy(t, func(t *testing.T, s *touchy, feed *state, f *Failover) {
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if streams, asked := s.counts(); streams != 2 || asked != 1 || !f.States()[0].Active {
			t.Fatalf("%d streams, asked for it %d times: %+v", streams, asked, f.States()[0])
		}
		told := false
		for _, u := range feed.applied() {
			if u.Type == debugType && u.Timeout && len(u.Errors) == 2 && u.Errors[0].Name == "a" && strings.Contains(u.Errors[0].Err.Error(), "not authorized") {
				told = true
			}
		}
		if !told {
			t.Errorf("it is not told why there is none: %+v", feed.applied())
		}
		time.Sleep(4*time.Hour - 25*time.Second)
		synctest.Wait()
		// After 30 s, 1, 2, … 32 minutes, and then each hour.
		before, asked := s.counts()
		if asked < 8 || asked > 11 || before != asked+1 {
			t.Errorf("in 4 hours %d streams, asked for it %d times", before, asked)
		}
		// It is asked for again, on the stream that is open, and then it is as any other.
		s.set(false, false)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if streams, again := s.counts(); streams != before || again == asked {
			t.Errorf("%d further streams, asked for it %d times more", streams-before, again-asked)
		}
	})
}

// Where it refuses the client altogether, no type is to blame.
func TestAControlPlaneThatRefusesTheClientLeavesNothingOut(t *testing.T) {
	behindTouchy(t, func(t *testing.T, s *touchy, _ *state, f *Failover) {
		s.set(false, true)
		time.Sleep(time.Hour)
		s.set(false, false)
		_, before := s.counts()
		time.Sleep(DefaultMaxBackoff + time.Second)
		synctest.Wait()
		if _, asked := s.counts(); !f.States()[0].Active || asked == before {
			t.Errorf("asked for the type %d times since: %+v", asked-before, f.States()[0])
		}
	})
}
