package downstream_test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// ask builds a request in the form of the clients.
func (s *service) ask(node *corev3.Node, typeURL string, names ...string) proto.Message {
	if s.form == xdstest.Delta {
		return &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: names}
	}
	return &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNames: names}
}

var node = &corev3.Node{Id: "xdstest", Cluster: "xdstest", UserAgentName: "envoy"}

// An invalid request ends its own stream, with the reason, and no other stream.
func TestAnInvalidRequestEndsItsOwnStreamWithTheReason(t *testing.T) {
	cluster := xds.ClusterType
	for name, tc := range map[string]struct {
		request func(*service) proto.Message
		code    codes.Code
		want    string
	}{
		"no node": {
			func(s *service) proto.Message { return s.ask(nil, cluster) },
			codes.InvalidArgument, "the first request of a stream must carry a node with an id",
		},
		"a node without an id": {
			func(s *service) proto.Message { return s.ask(&corev3.Node{Cluster: "c"}, cluster) },
			codes.InvalidArgument, "the first request of a stream must carry a node with an id",
		},
		"a node with an id that fills the log": {
			func(s *service) proto.Message {
				return s.ask(&corev3.Node{Id: strings.Repeat("x", 2000)}, cluster)
			},
			codes.InvalidArgument, "the id of the node has 2000 bytes: at most 1024 are accepted",
		},
		"a request that is too large": {
			func(s *service) proto.Message {
				return s.ask(node, cluster, slices.Repeat([]string{strings.Repeat("x", 1<<10)}, 65)...)
			},
			codes.ResourceExhausted, "received message larger than max",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBothForms(t, downstream.Config{MaxMessage: 64 << 10}, func(s *service) {
				conn := s.dial()
				good := s.client(conn)
				good.Subscribe(xds.ClusterType)
				bad := s.client(conn)
				bad.Send(tc.request(s))
				s.quiet()
				if err := bad.Err(); status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
					s.Errorf("the stream ended with %v, want %s: %s", err, tc.code, tc.want)
				}
				s.put(xdstest.Cluster("c1", ""))
				s.quiet()
				s.holds(good, "c1")
			})
		})
	}
}

// wireBytes sends bytes as they are.
type wireBytes struct{}

func (wireBytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (wireBytes) Unmarshal(mem.BufferSlice, any) error { return nil }
func (wireBytes) Name() string                         { return "proto" }

func TestMalformedBytesEndTheirOwnStream(t *testing.T) {
	for name, garbage := range map[string][]byte{
		"not protobuf":   {0xff, 0xff, 0xff},
		"a broken field": {0x0a, 0x7f, 'x'},
	} {
		t.Run(name, func(t *testing.T) {
			inBothForms(t, downstream.Config{}, func(s *service) {
				conn := s.dial()
				good := s.client(conn)
				good.Subscribe(xds.ClusterType)
				method := "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
				if s.form == xdstest.Delta {
					method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
				}
				bad, err := conn.NewStream(s.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodecV2(wireBytes{}))
				if err != nil {
					s.Fatal(err)
				}
				if err := bad.SendMsg(garbage); err != nil {
					s.Fatal(err)
				}
				if err := bad.RecvMsg(nil); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "unmarshal") {
					s.Errorf("the stream ended with %v", err)
				}
				s.put(xdstest.Cluster("c1", ""))
				s.quiet()
				s.holds(good, "c1")
			})
		})
	}
}

// protocol.md 1.12: Envoy answers so when it gets a response of a type that it never requested.
func TestAnEmptyTypeURLKeepsTheStream(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		c := s.client(s.dial())
		c.Send(s.ask(node, ""))
		c.Subscribe(xds.ClusterType)
		s.quiet()
		if s.form == xdstest.Delta {
			c.Send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "N5"})
		} else {
			c.Send(&discoveryv3.DiscoveryRequest{ResponseNonce: "N5"})
		}
		s.put(xdstest.Cluster("c1", ""))
		s.quiet()
		s.holds(c, "c1")
		if got := s.server.Streams()[0].Types; len(got) != 1 {
			s.Errorf("the stream has the types %q", got)
		}
	})
}

// Types that holdfast does not know pass through it (design.md section 1).
func TestAnUnknownTypeIsServedByteForByte(t *testing.T) {
	const unknown = "type.googleapis.com/example.Unknown"
	inBothForms(t, downstream.Config{}, func(s *service) {
		c := s.client(s.dial())
		c.Subscribe(unknown, "u1", "u2")
		c.Subscribe("no type URL at all", "x")
		c.Subscribe(xds.ClusterType)
		s.put(xdstest.Cluster("c1", ""))
		s.quiet()
		if got := c.Of(unknown); len(got) > 0 && len(got[0].Resources)+len(got[0].Removed) > 0 {
			s.Errorf("before it is known: %v", got)
		}
		s.holds(c, "c1")
		body := xdstest.Unknown(unknown, "u1")
		s.put(body)
		s.quiet()
		if got := c.Held(unknown)["u1"]; got == nil || string(got.GetResource().GetValue()) != string(body.GetValue()) {
			s.Errorf("got %v", got)
		}
	})
}

func TestASlowReaderDelaysNoOtherClientAndGetsTheNewest(t *testing.T) {
	const updates = 100
	inBothForms(t, downstream.Config{}, func(s *service) {
		method := "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
		if s.form == xdstest.Delta {
			method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
		}
		slow, err := s.dial().NewStream(s.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			s.Fatal(err)
		}
		if err := slow.SendMsg(s.ask(node, xds.ClusterType)); err != nil {
			s.Fatal(err)
		}
		fast := s.client(s.dial())
		fast.Subscribe(xds.ClusterType)
		for i := range updates {
			cluster := xdstest.Cluster("c1", "")
			cluster.AltStatName = fmt.Sprintf("%d-%s", i, strings.Repeat("x", 200<<10)) // more than the flow-control windows
			s.put(cluster)
			s.quiet()
			if got := len(fast.Of(xds.ClusterType)); got != i+1 {
				s.Fatalf("the fast client got %d of %d updates", got, i+1)
			}
		}
		newest := fast.Held(xds.ClusterType)["c1"].GetResource().GetValue()
		for received := 1; ; received++ {
			var got []byte
			if s.form == xdstest.Delta {
				var m discoveryv3.DeltaDiscoveryResponse
				if err := slow.RecvMsg(&m); err != nil {
					s.Fatal(err)
				}
				got = m.GetResources()[0].GetResource().GetValue()
			} else {
				var m discoveryv3.DiscoveryResponse
				if err := slow.RecvMsg(&m); err != nil {
					s.Fatal(err)
				}
				got = m.GetResources()[0].GetValue()
			}
			if string(got) == string(newest) {
				break
			}
			if received == 5 {
				s.Fatalf("%d responses, and the newest is not among them: a queue", received)
			}
		}
	})
}

// This test is not in a synctest bubble: there, so many timers at once crash the race detector of
// Go 1.26, which keeps one context for the timers of all threads of a bubble.
func TestTwoHundredStreamsSeeEveryChange(t *testing.T) {
	const streams = 200
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			s := start(t, form, downstream.Config{})
			defer s.close()
			var clients []*xdstest.Client
			var conn *grpc.ClientConn
			for i := range streams {
				if i%10 == 0 {
					conn = s.dial()
				}
				clients = append(clients, s.client(conn))
				clients[i].Subscribe(xds.ClusterType)
			}
			for _, names := range [][]string{{"c1"}, {"c1", "c2"}} {
				var all []proto.Message
				for _, name := range names {
					all = append(all, xdstest.Cluster(name, ""))
				}
				s.put(all...)
				for _, c := range clients {
					if err := c.Wait(t.Context(), func() bool { return slices.Equal(c.Names(xds.ClusterType), names) }); err != nil {
						t.Fatal(err)
					}
				}
			}
			open := s.server.Streams()
			if len(open) != streams || s.state.open.Load() != streams {
				t.Fatalf("%d streams and %d views are open", len(open), s.state.open.Load())
			}
			for i, st := range open {
				if i > 0 && st.ID <= open[i-1].ID || st.NodeID != "xdstest" || st.Subscriptions != 1 || len(st.Types) != 1 {
					t.Fatalf("stream %d: %+v", i, st)
				}
			}
		})
	}
}

// gRPC's default limit, one ping in 5 minutes, would answer them with GOAWAY.
func TestAClientMayPingEvery10Seconds(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		c := s.client(s.dial(grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: time.Second, PermitWithoutStream: true,
		})))
		c.Subscribe(xds.ClusterType)
		s.pass(time.Hour)
		s.put(xdstest.Cluster("c1", ""))
		s.quiet()
		s.holds(c, "c1")
	})
}

func TestServeReturnsAfterAllItsStreams(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		c := s.client(s.dial())
		c.Subscribe(xds.ClusterType)
		s.client(s.dial()) // it has sent no request yet
		method := "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
		stuck, err := s.dial().NewStream(s.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			s.Fatal(err)
		}
		if err := stuck.SendMsg(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: xds.ClusterType}); err != nil {
			s.Fatal(err)
		}
		for i := range 10 { // until the server cannot send more
			cluster := xdstest.Cluster("c1", "")
			cluster.AltStatName = fmt.Sprintf("%d-%s", i, strings.Repeat("x", 200<<10))
			s.put(cluster)
			s.quiet()
		}
		s.end()
		s.quiet()
		if err := c.Err(); err == nil {
			s.Error("the client's stream is still open")
		}
	})
}

// A connection without any bytes does not delay the end.
func TestServeReturnsAlthoughAConnectionIsSilent(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		idle, err := s.pipe.DialContext(s.Context(), "")
		if err != nil {
			s.Fatal(err)
		}
		s.quiet()
		begun := time.Now()
		s.end()
		if took := time.Since(begun); took > 100*time.Millisecond {
			s.Errorf("the end took %s", took)
		}
		if _, err := idle.Read(make([]byte, 1)); err == nil {
			s.Error("the connection is still open")
		}
		_ = idle.Close()
	})
}

// The connections of gRPC and of REST are counted; a connection that has sent no bytes is not.
func TestConnectionsAreCountedUntilTheyAreClosed(t *testing.T) {
	var open atomic.Int64
	inBothForms(t, downstream.Config{OnConnections: func(n int) { open.Store(int64(n)) }}, func(s *service) {
		want := func(when string, n int64) {
			s.Helper()
			s.quiet()
			if got := open.Load(); got != n {
				s.Errorf("%s: %d connections, want %d", when, got, n)
			}
		}
		connect := func(first string) net.Conn {
			conn, err := s.pipe.DialContext(s.Context(), "")
			if err != nil {
				s.Fatal(err)
			}
			if _, err := conn.Write([]byte(first)); err != nil {
				s.Fatal(err)
			}
			return conn
		}
		one, two := s.dial(), s.dial()
		for range 3 {
			s.client(one)
		}
		s.client(two)
		want("three streams on one and one on another", 2)
		silent, rest := connect("PRI"), connect("GET /")
		want("with one of REST, and one that may be of either", 3)
		_, _ = silent.Close(), rest.Close()
		want("without these", 2)
		_ = two.Close()
		want("one of gRPC closed", 1)
		connect("GET /")
		s.end()
		want("at the end", 0)
	})
}

// If a listener fails, Serve ends with the reason.
func TestServeFailsWithItsListener(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		lis := s.pipe.Listen()
		ended := make(chan error, 1)
		go func() { ended <- s.server.Serve(s.Context(), lis) }()
		s.quiet()
		_ = lis.Close()
		s.quiet()
		select {
		case err := <-ended:
			if err == nil {
				s.Error("Serve returned nil")
			}
		default:
			s.Error("Serve goes on without a listener")
		}
	})
}

// A client may end its half of the stream; that is not an error.
func TestAClientThatEndsItsStreamIsAnsweredWithOK(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		method := "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
		if s.form == xdstest.Delta {
			method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
		}
		stream, err := s.dial().NewStream(s.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			s.Fatal(err)
		}
		if err := stream.SendMsg(s.ask(node, xds.EndpointType, "a")); err != nil {
			s.Fatal(err)
		}
		_ = stream.CloseSend()
		if err := stream.RecvMsg(&discoveryv3.DiscoveryResponse{}); err != io.EOF {
			s.Errorf("the stream ended with %v", err)
		}
	})
}

// The state does not change, and the request must be answered nevertheless.
func TestARequestOnAnOpenStreamIsAnsweredFromTheCache(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		s.put(xdstest.Cluster("c1", ""))
		s.put(xdstest.CLA("e1", "192.0.2.1:1"))
		s.put(xdstest.CLA("e2", "192.0.2.2:1"))
		c := s.client(s.dial())
		c.Subscribe(xds.ClusterType)
		s.quiet()
		c.Subscribe(xds.EndpointType, "e1")
		s.quiet()
		c.Subscribe(xds.EndpointType, "e1", "e2")
		s.quiet()
		if got := c.Names(xds.EndpointType); !slices.Equal(got, []string{"e1", "e2"}) || c.Err() != nil {
			s.Errorf("the client has the endpoints %q; its stream: %v", got, c.Err())
		}
	})
}

// It is known who subscribes to a name, and since when a client owes an answer.
func TestItIsKnownWhoSubscribesAndWhoDoesNotAnswer(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		s.put(xdstest.Cluster("c1", ""))
		slow := xdstest.NewClient(s.dial(), xdstest.ClientConfig{Protocol: s.form, Manual: true})
		if err := slow.Connect(s.Context()); err != nil {
			s.Fatal(err)
		}
		s.stops = append(s.stops, slow.Close)
		slow.Subscribe(xds.ClusterType)
		s.quiet() // so that it has the first number
		named := s.client(s.dial())
		named.Subscribe(xds.EndpointType, "c1")
		began := time.Now()
		s.pass(time.Minute)
		for _, tc := range []struct {
			typeURL, name string
			want          []uint64
		}{
			{xds.ClusterType, "c1", []uint64{1}}, {xds.ClusterType, "other", []uint64{1}}, {xds.EndpointType, "c1", []uint64{2}},
			{xds.EndpointType, "other", nil}, {xds.ListenerType, "c1", nil},
		} {
			if got := s.server.Subscribers(tc.typeURL, tc.name); !slices.Equal(got, tc.want) {
				s.Errorf("%s %s: %v, want %v", xds.Short(tc.typeURL), tc.name, got, tc.want)
			}
		}
		if open := s.server.Streams(); len(open) != 2 || open[0].Unanswered["CDS"].Sub(began).Abs() > time.Second || len(open[1].Unanswered) > 0 {
			s.Errorf("%+v", open)
		}
		for _, r := range slow.Responses() {
			slow.Ack(r)
		}
		s.quiet()
		if open := s.server.Streams(); len(open[0].Unanswered) > 0 {
			s.Errorf("%+v", open)
		}
	})
}
