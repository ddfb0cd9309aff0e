package upstream

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
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

// A load balancer, or a control plane that crashes, closes each connection soon after the first
// response.
func TestTheNextSourceTakesOverFromAServerThatLosesEachConnection(t *testing.T) {
	among(t, func(r *trial) {
		r.run()
		took := false
		for range 5 * 60 * 10 {
			if r.sources[0].count() > 0 {
				r.sources[0].ends(&lost{errDown})
			}
			r.pass(100 * time.Millisecond)
			took = took || r.failover.States()[1].Active
		}
		if !took {
			r.Errorf("the second source never took over; %d streams to the first in 5 minutes", len(r.sources[0].attempts()))
		}
	}, up, up)
}

func TestTheBackoffGrowsForAServerThatLosesEachConnection(t *testing.T) {
	among(t, func(r *trial) {
		r.run()
		for range 5 * 60 * 10 {
			if r.sources[0].count() > 0 {
				r.sources[0].ends(&lost{errDown})
			}
			r.pass(100 * time.Millisecond)
		}
		if n := len(r.sources[0].attempts()); n > 100 {
			r.Errorf("%d streams in 5 minutes", n)
		}
	}, up)
}

// moody is a Delta or SotW control plane with c1 and its endpoints. It does not send versions that
// the client has.
type moody struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu       sync.Mutex
	minds    string    // type at whose request it ends the stream with Unknown
	end      chan bool // ends the streams
	requests map[string][]time.Time
	streams  int
}

func (s *moody) takes(typeURL string, first bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first {
		s.requests[typeURL] = append(s.requests[typeURL], time.Now())
	}
	if first && typeURL == s.minds {
		return status.Error(codes.Unknown, "the registry is away")
	}
	return nil
}

func moodyBody(typeURL string) (string, *anypb.Any) {
	if typeURL == xds.ClusterType {
		b, _ := anypb.New(&clusterv3.Cluster{Name: "c1"})
		return "c1", b
	}
	b, _ := anypb.New(&endpointv3.ClusterLoadAssignment{ClusterName: "c1"})
	return "c1", b
}

func (s *moody) DeltaAggregatedResources(stream grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]) error {
	s.mu.Lock()
	s.streams++
	end := s.end
	s.mu.Unlock()
	failed := make(chan error, 1)
	go func() {
		for {
			req, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			if err := s.takes(req.GetTypeUrl(), req.GetResponseNonce() == ""); err != nil {
				failed <- err
				return
			}
			if req.GetResponseNonce() != "" || req.GetInitialResourceVersions()["c1"] == "1" {
				continue // the client has this version
			}
			name, b := moodyBody(req.GetTypeUrl())
			_ = stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "n",
				Resources: []*discoveryv3.Resource{{Name: name, Version: "1", Resource: b}}})
		}
	}()
	select {
	case err := <-failed:
		return err
	case <-end:
		return status.Error(codes.Unknown, "server shutting down")
	}
}

// SotW: it does not send a version that the client has, nor a response while it lacks one of the
// requested names.
func (s *moody) StreamAggregatedResources(stream grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := s.takes(req.GetTypeUrl(), req.GetResponseNonce() == ""); err != nil {
			return err
		}
		if req.GetVersionInfo() == "1" || req.GetTypeUrl() != xds.ClusterType {
			continue
		}
		_, b := moodyBody(req.GetTypeUrl())
		_ = stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "n", VersionInfo: "1", Resources: []*anypb.Any{b}})
	}
}

func behindMoody(t *testing.T, form xds.Form, endpoints string, test func(t *testing.T, s *moody, target *state, f *Failover, pipe *xdstest.Pipe)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s, pipe := &moody{requests: map[string][]time.Time{}, end: make(chan bool)}, &xdstest.Pipe{}
		server := grpc.NewServer()
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
		served := make(chan error)
		go func() { served <- server.Serve(pipe.Listen()) }()
		target := everyCluster()
		target.changes = append(target.changes, xds.SubscriptionChange{Type: xds.EndpointType, Subscribe: []string{endpoints}})
		f := &Failover{Timing: failover.Timing{StaleAfter: 1000 * time.Hour}, Holding: func() bool { return true }, Sources: []Source{source(t, Config{
			Addr: "192.0.2.1:1", Form: form, Security: dial.Security{Plaintext: true}, Dial: pipe.Connect,
		})}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Run(ctx, target) }()
		test(t, s, target, f, pipe)
		cancel()
		<-ended
		server.Stop()
		<-served
	})
}

// Endpoints that were served before are requested again soon after an incident of an hour, during
// which the server ended each stream with Unknown.
func TestEndpointsAreRequestedSoonAfterAnIncident(t *testing.T) {
	behindMoody(t, xds.Delta, "c1", func(t *testing.T, s *moody, _ *state, _ *Failover, _ *xdstest.Pipe) {
		time.Sleep(20 * time.Second) // no incident yet, and EDS was answered
		s.mu.Lock()
		s.minds = xds.EndpointType
		close(s.end)
		s.end = make(chan bool)
		s.mu.Unlock()
		time.Sleep(65 * time.Minute)
		s.mu.Lock()
		s.minds = ""
		s.mu.Unlock()
		healed := time.Now()
		time.Sleep(2 * time.Hour)
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, at := range s.requests[xds.EndpointType] {
			if at.After(healed) {
				if d := at.Sub(healed); d > 2*time.Minute {
					t.Errorf("endpoints are requested %s after the server was well again", d)
				}
				return
			}
		}
		t.Error("never requested again")
	})
}

// A SotW server that answers neither current versions nor a request for endpoints that it does not
// have is not taken for one that hangs.
func TestASotWServerThatLacksAnEndpointIsAlive(t *testing.T) {
	behindMoody(t, xds.SotW, "absent", func(t *testing.T, s *moody, target *state, f *Failover, pipe *xdstest.Pipe) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if !f.States()[0].Active {
			t.Fatalf("never active: %+v", f.States()[0])
		}
		target.mu.Lock()
		target.cached = map[string]string{"c1": "1"} // the cluster is cached
		target.mu.Unlock()
		f.Sources[0].(*ADS).mu.Lock()
		_ = f.Sources[0].(*ADS).conn.Load().Close()
		f.Sources[0].(*ADS).mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := f.States()[0]; !st.Active {
			t.Errorf("a minute after the stream was lost: %+v", st)
		}
	})
}
