package group_test

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream"
)

// behindREST puts a second agent between the first and the clients; it polls the first over REST.
func behindREST(t *testing.T, test func(r *rig, first *xdstest.Pipe)) {
	t.Helper()
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		first, second := r.down, &xdstest.Pipe{}
		source, err := upstream.NewREST(upstream.Config{
			Addr: "http://192.0.2.1", Security: dial.Security{Plaintext: true}, RESTRefresh: time.Second,
			Dial: func(ctx context.Context, _, addr string) (net.Conn, error) { return first.DialContext(ctx, addr) },
		})
		if err != nil {
			r.Fatal(err)
		}
		_, stop := r.serve(source, second, slog.New(slog.DiscardHandler))
		r.down = second
		r.stops = append(r.stops, stop)
		test(r, first)
	})
}

// protocol.md section 9, from the client's side.
func TestAControlPlaneIsPolledOverREST(t *testing.T) {
	behindREST(t, func(r *rig, _ *xdstest.Pipe) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		c.Subscribe(xds.ClusterType)
		c.Subscribe(xds.EndpointType, "c1")
		c.Subscribe(xds.ListenerType)
		c.Subscribe(xds.RouteType, "r1")
		r.pass(10 * time.Second)
		for typeURL, name := range map[string]string{
			xds.ClusterType: "c1", xds.EndpointType: "c1", xds.ListenerType: "l1", xds.RouteType: "r1",
		} {
			r.holds(c, typeURL, name)
		}
		n := len(c.Responses())
		r.pass(time.Minute)
		if len(c.Responses()) != n {
			r.Fatalf("polls without news were passed on:\n%s", lines(c.Responses()[n:]))
		}
		r.cp.Set(xdstest.Route("r1", "c2"), xdstest.Listener("l2", 2, "r1"))
		r.pass(10 * time.Second)
		r.holds(c, xds.ListenerType, "l1", "l2")
		r.cp.Remove(xds.ListenerType, "l1")
		r.pass(10 * time.Second)
		r.holds(c, xds.ListenerType, "l2")
		if got := c.Of(xds.RouteType); len(got) != 2 {
			r.Errorf("want two versions of the route:\n%s", lines(got))
		}
	})
}

// Most of Envoy's messages are not linked into this program, and JSON cannot be written or read without knowing the type.
func TestTypesThatAreNotLinkedPassOverREST(t *testing.T) {
	behindREST(t, func(r *rig, _ *xdstest.Pipe) {
		lua := xdstest.Unlinked(r, "envoy.extensions.filters.http.lua.v3.Lua")
		want := &corev3.TypedExtensionConfig{Name: "e", TypedConfig: &anypb.Any{TypeUrl: lua, Value: []byte("\n\x01x")}}
		r.cp.Set(want)
		c := r.client(xdstest.ClientConfig{})
		c.Subscribe(xds.ExtensionConfigType, "e")
		r.pass(10 * time.Second)
		r.holds(c, xds.ExtensionConfigType, "e")
		if got := c.Held(xds.ExtensionConfigType)["e"].GetResource(); !proto.Equal(got, xdstest.Pack(want)) {
			r.Errorf("the client holds %v", got)
		}
	})
}

func TestAPolledControlPlaneThatGoesAwayTakesNothingAway(t *testing.T) {
	behindREST(t, func(r *rig, first *xdstest.Pipe) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		c.Subscribe(xds.ClusterType)
		c.Subscribe(xds.ListenerType)
		r.pass(10 * time.Second)
		r.stopAgent() // the first one, which is polled
		r.stopAgent = func() {}
		r.pass(time.Minute)
		r.holds(c, xds.ClusterType, "c1")
		r.holds(c, xds.ListenerType, "l1")
		if err := c.Err(); err != nil {
			r.Errorf("the client's stream ended: %v", err)
		}
	})
}
