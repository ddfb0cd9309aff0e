package group_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream"
)

// rig is a group between a scripted control plane and scripted clients, in a
// synctest bubble: time is virtual, and quiet shows that nothing more happens.
type rig struct {
	*testing.T
	above, below xdstest.Protocol
	cp           *xdstest.ControlPlane
	up, down     *xdstest.Pipe
	group        *group.Group
	stops        []func()
	restHold     time.Duration
	stopAgent    func()
	change       func(*group.Config) // of the configuration; nil for none
	check        func(*xds.Resource) error
}

// inAllForms runs a test in the four combinations of wire forms.
func inAllForms(t *testing.T, cfg xdstest.Config, test func(*rig)) {
	t.Helper()
	for _, above := range xdstest.Protocols() {
		for _, below := range xdstest.Protocols() {
			t.Run(fmt.Sprintf("%s above, %s below", above, below), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					r := &rig{T: t, above: above, below: below, up: &xdstest.Pipe{}, down: &xdstest.Pipe{}}
					r.cp = xdstest.New(cfg)
					r.cp.Serve(r.up.Listen())
					r.startAgent()
					defer r.close()
					test(r)
				})
			})
		}
	}
}

// startAgent starts a group with an empty state and its server.
func (r *rig) startAgent() {
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("HOLDFAST_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	form := xds.Delta
	if r.above == xdstest.SotW {
		form = xds.SotW
	}
	ads, err := upstream.NewADS(upstream.Config{
		Addr: "192.0.2.1:15010", Form: form, Security: dial.Security{Plaintext: true},
		Log: log, Dial: r.up.Connect, CheckResource: r.check,
	})
	if err != nil {
		r.Fatal(err)
	}
	r.group, r.stopAgent = r.serve(ads, r.down, log)
}

// serve starts a group with one source, and serves it at a pipe.
func (r *rig) serve(source upstream.Source, at *xdstest.Pipe, log *slog.Logger) (g *group.Group, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	cfg := group.Config{
		Node:      &corev3.Node{Id: "xdstest", Cluster: "xdstest"},
		Upstreams: func() *upstream.Failover { return &upstream.Failover{Sources: []upstream.Source{source}, Log: log} },
		Cache:     cache.Config{},
	}
	if r.change != nil {
		r.change(&cfg)
	}
	g = group.New(cfg)
	server := downstream.New(downstream.Config{
		State: g, Identifier: "holdfast/test", Log: log,
		Forward: g.Forward, RESTHold: r.restHold,
	})
	ended := make(chan error, 2)
	lis := at.Listen()
	go func() { ended <- g.Run(ctx) }()
	go func() { ended <- server.Serve(ctx, lis) }()
	return g, func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				r.Error(err)
			}
		}
	}
}

// restartAgent replaces the agent by one with an empty cache.
func (r *rig) restartAgent() {
	r.stopAgent()
	r.startAgent()
}

// restartAgentAs replaces the agent by one that is configured differently.
func (r *rig) restartAgentAs(change func(*group.Config)) {
	r.change = change
	r.restartAgent()
}

// restartAgentChecking replaces the agent by one that checks resources.
func (r *rig) restartAgentChecking(check func(*xds.Resource) error) {
	r.check = check
	r.restartAgent()
}

func (r *rig) close() {
	for _, stop := range r.stops {
		stop()
	}
	r.stopAgent()
	r.cp.Stop()
}

// client connects one more client.
func (r *rig) client(cfg xdstest.ClientConfig) *xdstest.Client {
	r.Helper()
	conn, err := r.down.Dial()
	if err != nil {
		r.Fatal(err)
	}
	cfg.Protocol = r.below
	c := xdstest.NewClient(conn, cfg)
	r.stops = append(r.stops, func() { c.Close(); _ = conn.Close() })
	r.connect(c)
	return c
}

func (r *rig) connect(c *xdstest.Client) {
	r.Helper()
	if err := c.Connect(r.Context()); err != nil {
		r.Fatal(err)
	}
}

// quiet waits until nothing more happens at once, and a moment longer.
func (r *rig) quiet() { r.pass(50 * time.Millisecond) }

// pass lets time go by.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// holds fails unless a client has exactly these resources of a type.
func (r *rig) holds(c *xdstest.Client, typeURL string, want ...string) {
	r.Helper()
	got := slices.Sorted(maps.Keys(c.Held(typeURL)))
	if !slices.Equal(got, want) {
		r.Fatalf("client holds %s %v, want %v\nit got:\n%s", xds.Short(typeURL), got, want, lines(c.Responses()))
	}
}

// envoy subscribes as an Envoy with one listener, route, cluster and endpoint does.
func (r *rig) envoy(c *xdstest.Client) {
	c.Subscribe(xds.ClusterType)
	r.quiet()
	c.Subscribe(xds.EndpointType, "c1")
	c.Subscribe(xds.ListenerType)
	r.quiet()
	c.Subscribe(xds.RouteType, "r1")
	r.quiet()
}

// mesh gives the control plane one of each.
func (r *rig) mesh() {
	r.cp.Set(xdstest.Cluster("c1", ""), xdstest.CLA("c1", "127.0.0.1:1"),
		xdstest.Listener("l1", 1, "r1"), xdstest.Route("r1", "c1"))
}

func lines[S fmt.Stringer](list []S) string {
	var b strings.Builder
	for _, s := range list {
		fmt.Fprintln(&b, "  ", s)
	}
	return b.String()
}

// rejectBad makes a client NACK every resource whose name begins with "bad".
func rejectBad(_ string, w *discoveryv3.Resource) error {
	if strings.HasPrefix(w.GetName(), "bad") {
		return errors.New("malformed IP address")
	}
	return nil
}

// count returns how many events are of a kind and type.
func (r *rig) count(kind xdstest.Kind, typeURL string) int {
	n := 0
	for _, e := range r.cp.Events() {
		if e.Kind == kind && e.Type == typeURL {
			n++
		}
	}
	return n
}

func nodeXdstest() *corev3.Node {
	return &corev3.Node{Id: "xdstest", Cluster: "xdstest", UserAgentName: "envoy"}
}
