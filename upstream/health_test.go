package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
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

// workload is a Health that a test sets.
type workload struct {
	mu      sync.Mutex
	now     xds.Health
	changed chan struct{}
}

func (w *workload) Health() (xds.Health, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.changed
}

// set makes the workload unhealthy for a reason; "" makes it healthy.
func (w *workload) set(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = xds.Health{Known: true, Reason: reason}
	close(w.changed)
	w.changed = make(chan struct{})
}

// registry is a control plane that has the cluster c1 and writes down what it is told of the workload: a line for each stream.
type registry struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu      sync.Mutex
	streams []string
	cut     chan struct{} // closed to end all streams
	// minds ends a stream at a report; silently without the name of the type, and with ok without an error. A slow one
	// answers after a while.
	minds, slow, silently, ok bool
	// listeners lets the clients ask for listeners, too, which are not answered.
	listeners bool
	// away lets nobody connect.
	away bool
}

func (s *registry) note(word string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := &s.streams[len(s.streams)-1]
	*last = strings.TrimSpace(*last + " " + word)
}

// takes takes in a request, and reports whether it is answered.
func (s *registry) takes(typeURL, nonce string, detail *statuspb.Status) (answer bool, err error) {
	if typeURL != xds.HealthType {
		if nonce == "" {
			s.note(xds.Short(typeURL))
		}
		return nonce == "" && typeURL == xds.ClusterType, nil
	}
	word := "healthy"
	if detail != nil {
		word = fmt.Sprintf("%s(%s)", codes.Code(detail.GetCode()), detail.GetMessage())
	}
	s.note(word)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.minds:
		return false, nil
	case s.ok:
		return false, io.EOF
	}
	what := typeURL
	if s.silently {
		what = "a request"
	}
	return false, status.Errorf(codes.InvalidArgument, "unknown type in %s", what)
}

func (s *registry) begin() (cut <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = append(s.streams, "")
	return s.cut
}

// serve serves a stream: recv reads a request and says whether it is answered.
func (s *registry) serve(recv func() (answer bool, err error), send func() error) error {
	cut := s.begin()
	ended, due := make(chan error, 1), make(chan struct{}, 1)
	go func() {
		for {
			answer, err := recv()
			if err != nil {
				ended <- err
				return
			}
			if answer {
				due <- struct{}{}
			}
		}
	}()
	for {
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		case <-cut:
			return status.Error(codes.Unavailable, "it is cut")
		case <-due:
		}
		if s.slow {
			select {
			case err := <-ended:
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return err
			case <-time.After(100 * time.Millisecond):
			}
		}
		if err := send(); err != nil {
			return err
		}
	}
}

// connect connects to a pipe unless the control plane is away.
func (s *registry) connect(pipe *xdstest.Pipe) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		s.mu.Lock()
		away := s.away
		s.mu.Unlock()
		if away {
			return nil, errors.New("it is away")
		}
		return pipe.Connect(ctx, network, addr)
	}
}

func (s *registry) StreamAggregatedResources(stream grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	return s.serve(func() (bool, error) {
		req, err := stream.Recv()
		if err != nil {
			return false, err
		}
		return s.takes(req.GetTypeUrl(), req.GetResponseNonce(), req.GetErrorDetail())
	}, func() error {
		body, _ := anypb.New(&clusterv3.Cluster{Name: "c1"})
		return stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: xds.ClusterType, VersionInfo: "1", Nonce: "n", Resources: []*anypb.Any{body}})
	})
}

func (s *registry) DeltaAggregatedResources(stream grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]) error {
	return s.serve(func() (bool, error) {
		req, err := stream.Recv()
		if err != nil {
			return false, err
		}
		return s.takes(req.GetTypeUrl(), req.GetResponseNonce(), req.GetErrorDetail())
	}, func() error {
		body, _ := anypb.New(&clusterv3.Cluster{Name: "c1"})
		return stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.ClusterType, Nonce: "n", Resources: []*discoveryv3.Resource{{Name: "c1", Version: "1", Resource: body}}})
	})
}

// told returns what the control plane was told since the last call, with a bar between streams.
func (s *registry) told() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := strings.Join(s.streams, " | ")
	for i := range s.streams {
		s.streams[i] = "…"
	}
	s.streams = s.streams[max(0, len(s.streams)-1):]
	return strings.TrimPrefix(strings.TrimPrefix(all, "…"), " ")
}

// end ends all streams.
func (s *registry) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// reporting runs a failover among registries whose sources report the health of a workload.
func reporting(t *testing.T, registries int, prepare func(*registry), test func(w *workload, all []*registry)) {
	t.Helper()
	for name, form := range map[string]xds.Form{"sotw": xds.SotW, "delta": xds.Delta} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := &workload{changed: make(chan struct{})}
				var all []*registry
				var servers []*grpc.Server
				served := make(chan error)
				f := &Failover{Timing: failover.Timing{StaleAfter: 1000 * time.Hour}}
				for i := range registries {
					s, pipe, server := &registry{cut: make(chan struct{})}, &xdstest.Pipe{}, grpc.NewServer()
					if prepare != nil {
						prepare(s)
					}
					discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
					go func() { served <- server.Serve(pipe.Listen()) }()
					all, servers = append(all, s), append(servers, server)
					f.Sources = append(f.Sources, source(t, Config{
						Addr: fmt.Sprintf("192.0.2.%d:1", i+1), Form: form, Security: dial.Security{Plaintext: true}, Dial: s.connect(pipe), Health: w,
					}))
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				clients := everyCluster()
				if all[0].listeners {
					clients.changes = append(clients.changes, xds.SubscriptionChange{Type: xds.ListenerType, Wildcard: true})
				}
				go func() { ended <- f.Run(ctx, clients) }()
				test(w, all)
				cancel()
				<-ended
				for _, server := range servers {
					server.Stop()
					if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
						t.Error(err)
					}
				}
			})
		})
	}
}

func wantTold(t *testing.T, s *registry, want string) {
	t.Helper()
	if got := s.told(); got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestTheHealthOfTheWorkloadIsReportedAtOnceAndOnEachStream(t *testing.T) {
	reporting(t, 1, nil, func(w *workload, all []*registry) {
		s := all[0]
		time.Sleep(time.Second)
		wantTold(t, s, "CDS") // nothing is known yet
		w.set("")
		wantTold(t, s, "healthy")
		w.set("")
		wantTold(t, s, "")
		w.set("refused")
		wantTold(t, s, "Internal(refused)")
		s.end()
		time.Sleep(time.Minute)
		wantTold(t, s, "| CDS Internal(refused)")
		w.set("")
		wantTold(t, s, "healthy")
		// What has changed while no stream was open is reported on the next one.
		s.end()
		w.set("refused again")
		time.Sleep(time.Minute)
		if got := s.told(); !strings.HasSuffix(got, "| CDS Internal(refused again)") {
			t.Errorf("told %q", got)
		}
	})
}

func TestAnotherControlPlaneIsToldTheHealthAfterAFailover(t *testing.T) {
	reporting(t, 2, nil, func(w *workload, all []*registry) {
		w.set("refused")
		time.Sleep(time.Second)
		wantTold(t, all[0], "CDS Internal(refused)")
		wantTold(t, all[1], "")
		all[0].mu.Lock()
		all[0].away = true
		all[0].mu.Unlock()
		all[0].end()
		time.Sleep(time.Minute)
		wantTold(t, all[1], "CDS Internal(refused)")
		w.set("")
		wantTold(t, all[1], "healthy")
	})
}

// A control plane that ends its stream at a report gets the configuration of the clients all the same: it is told seldom.
func TestAControlPlaneThatEndsItsStreamAtAReportIsToldSeldom(t *testing.T) {
	for _, silently := range []bool{false, true} {
		for _, slow := range []bool{false, true} {
			name := fmt.Sprintf("names the type: %v, answers first: %v", !silently, !slow)
			t.Run(name, func(t *testing.T) {
				reporting(t, 1, func(s *registry) { s.minds, s.silently, s.slow = true, silently, slow }, func(w *workload, all []*registry) {
					s := all[0]
					w.set("refused")
					time.Sleep(25 * time.Second)
					if n := strings.Count(s.told(), "CDS"); n > 4 {
						t.Errorf("%d streams in 25 s", n)
					}
					time.Sleep(time.Hour)
					told := s.told()
					if n := strings.Count(told, "CDS"); n > 8 || n == 0 {
						t.Errorf("%d streams in an hour: %s", n, told)
					}
					// Once it takes reports, it is told on the same stream.
					s.mu.Lock()
					s.minds = false
					s.mu.Unlock()
					time.Sleep(2 * time.Hour)
					wantTold(t, s, "Internal(refused)")
				})
			})
		}
	}
}

// When an unanswered type may be as guilty as the report, it is the report that is not sent for a while.
func TestAReportIsBlamedBeforeATypeOfTheConfiguration(t *testing.T) {
	reporting(t, 1, func(s *registry) { s.minds, s.silently, s.listeners = true, true, true }, func(w *workload, all []*registry) {
		w.set("refused")
		time.Sleep(25 * time.Second)
		told := strings.Split(all[0].told(), " | ")
		if last := told[len(told)-1]; last != "CDS LDS" || len(told) > 4 {
			t.Errorf("told %q, want that the last of few streams has CDS and LDS", told)
		}
	})
}

// A server may end streams at reports without saying why: after three such streams Envoy's configuration comes first.
func TestStreamsThatEndAtReportsWithoutAnErrorEndTheReports(t *testing.T) {
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprint("answers first: ", !slow), func(t *testing.T) {
			reporting(t, 1, func(s *registry) { s.minds, s.ok, s.slow = true, true, slow }, func(w *workload, all []*registry) {
				w.set("refused")
				time.Sleep(25 * time.Second)
				streams := strings.Split(all[0].told(), " | ")
				if last := streams[len(streams)-1]; len(streams) > 6 || strings.Contains(last, "refused") || !strings.Contains(last, "CDS") {
					t.Errorf("in 25 s: %q", streams)
				}
				time.Sleep(time.Hour)
				if n := strings.Count(all[0].told(), "refused"); n > 21 || n == 0 {
					t.Errorf("%d reports in an hour", n)
				}
			})
		})
	}
}
