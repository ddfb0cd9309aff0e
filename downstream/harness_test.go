package downstream_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream"
)

// No goroutine of a server may outlive Serve.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is a server of a state that the test fills, in a synctest bubble.
type service struct {
	*testing.T
	form   xdstest.Protocol
	pipe   *xdstest.Pipe
	state  *counted
	server *downstream.Server
	stops  []func()
	stop   context.CancelFunc
	ended  chan error
}

// counted is a state that counts its views.
type counted struct {
	*group.Group
	open atomic.Int64
	// wrap, if set, replaces each view.
	wrap func(downstream.View) downstream.View
}

func (c *counted) Attach(client downstream.Client) (downstream.View, error) {
	c.open.Add(1)
	view, err := c.Group.Attach(client)
	if view = (closing{view, c}); c.wrap != nil {
		view = c.wrap(view)
	}
	return view, err
}

type closing struct {
	downstream.View
	c *counted
}

func (v closing) Close(end downstream.End) {
	v.View.Close(end)
	v.c.open.Add(-1)
}

// inBothForms runs a test with clients that speak SotW and Delta.
func inBothForms(t *testing.T, cfg downstream.Config, test func(*service)) {
	t.Helper()
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := start(t, form, cfg)
				test(s)
				s.close()
			})
		})
	}
}

// start starts a server whose state is empty.
func start(t *testing.T, form xdstest.Protocol, cfg downstream.Config) *service {
	s := &service{T: t, form: form, pipe: &xdstest.Pipe{}}
	s.state = &counted{Group: group.New(group.Config{
		Node: &corev3.Node{Id: "xdstest"}, Upstreams: func() *upstream.Failover { return &upstream.Failover{} }, Cache: cache.Config{},
	})}
	cfg.State = s.state
	s.server = downstream.New(cfg)
	s.serve(s.pipe.Listen())
	return s
}

// serve runs the server on a listener.
func (s *service) serve(lis net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	s.stop, s.ended = cancel, ended
	go func() { ended <- s.server.Serve(ctx, lis) }()
}

// end ends the server, and fails if a stream is left.
func (s *service) end() {
	s.Helper()
	if s.stop == nil {
		return
	}
	s.stop()
	s.stop = nil
	if err := <-s.ended; err != nil {
		s.Errorf("Serve returned %v", err)
	}
	if n := s.state.open.Load(); n != 0 {
		s.Errorf("%d views are open after Serve", n)
	}
	if got := s.server.Streams(); len(got) != 0 {
		s.Errorf("%d streams are open after Serve", len(got))
	}
}

// close ends the clients and the server.
func (s *service) close() {
	for _, stop := range s.stops {
		stop()
	}
	s.end()
}

// dial connects to the server.
func (s *service) dial(opts ...grpc.DialOption) *grpc.ClientConn {
	s.Helper()
	conn, err := s.pipe.Dial(opts...)
	if err != nil {
		s.Fatal(err)
	}
	s.stops = append(s.stops, func() { _ = conn.Close() })
	return conn
}

// client opens a stream on a connection.
func (s *service) client(conn grpc.ClientConnInterface) *xdstest.Client {
	s.Helper()
	c := xdstest.NewClient(conn, xdstest.ClientConfig{Protocol: s.form})
	if err := c.Connect(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.stops = append(s.stops, c.Close)
	return c
}

// put applies the complete set of resources of one type.
func (s *service) put(resources ...proto.Message) {
	u := xds.Update{Source: "test", Complete: true}
	for _, m := range resources {
		r := xdstest.Resource(m, "1")
		u.Type = r.Type
		u.Resources = append(u.Resources, r)
	}
	u.Complete = xds.FullState(u.Type)
	s.state.Cache().Apply(u, nil)
}

// quiet waits until everything blocks.
func (s *service) quiet() { s.pass(10 * time.Millisecond) }

func (s *service) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// holds fails unless a client has exactly these clusters.
func (s *service) holds(c *xdstest.Client, want ...string) {
	s.Helper()
	got := c.Names(xds.ClusterType)
	if len(got) != len(want) || c.Err() != nil {
		s.Fatalf("holds %v, want %v; its stream: %v", got, want, c.Err())
	}
	for i := range got {
		if got[i] != want[i] {
			s.Fatalf("holds %v, want %v", got, want)
		}
	}
}
