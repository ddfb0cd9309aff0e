package agent

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/failover"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an agent between a scripted control plane and scripted clients, in a
// synctest bubble. Both sides speak the same form.
type rig struct {
	*testing.T
	form     xdstest.Protocol
	cfg      Config
	agent    *Agent
	cp       *xdstest.ControlPlane
	up, down *xdstest.Pipe
	stops    []func()
	cancel   context.CancelFunc
	ended    chan error
}

const upstreamAddr = "192.0.2.1:15010"

// inBothForms runs a test with an agent that is not started yet.
func inBothForms(t *testing.T, test func(*rig)) {
	t.Helper()
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := &rig{T: t, form: form, cp: xdstest.New(xdstest.Config{}), up: &xdstest.Pipe{}, down: &xdstest.Pipe{}}
				r.cfg = Config{
					Version: "test", Upstreams: []string{upstreamAddr}, Upstream: upstream.Config{Form: xds.Delta, Dial: r.up.Connect},
					Socket: downstream.SocketConfig{Path: "xds.sock"}, Log: slog.New(slog.DiscardHandler),
					Timing: failover.Timing{StaleAfter: 10_000 * time.Hour}, // so that streams are not replaced in tests that let days pass
				}
				r.cfg.Upstream.Security.Plaintext = true
				if form == xdstest.SotW {
					r.cfg.Upstream.Form = xds.SotW
				}
				r.cp.Set(xdstest.Cluster("c1", ""), xdstest.CLA("c1", "127.0.0.1:1"), xdstest.Listener("l1", 1, "r1"), xdstest.Route("r1", "c1"))
				r.cp.Serve(r.up.Listen())
				test(r)
				r.close()
			})
		})
	}
}

// make makes the agent, and does not start it.
func (r *rig) make() {
	r.Helper()
	a, err := New(r.cfg)
	if err != nil {
		r.Fatal(err)
	}
	r.agent = a
}

// start starts the agent with the configuration as it is now.
func (r *rig) start() {
	r.Helper()
	r.make()
	r.run()
}

// run starts the agent that was made.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	r.cancel, r.ended = cancel, ended
	r.agent.surface = r.agent.newSurface(ctx, cancel)
	lis := r.down.Listen()
	go func() { ended <- r.agent.serve(ctx, lis, nil) }()
}

// stop ends the agent.
func (r *rig) stop() {
	r.Helper()
	if r.cancel == nil {
		return
	}
	r.cancel()
	r.cancel = nil
	if err := <-r.ended; err != nil {
		r.Errorf("the agent ended with %v", err)
	}
}

func (r *rig) close() {
	for _, stop := range r.stops {
		stop()
	}
	r.stop()
	r.cp.Stop()
}

// client connects a client.
func (r *rig) client(cfg xdstest.ClientConfig) *xdstest.Client {
	r.Helper()
	conn, err := r.down.Dial()
	if err != nil {
		r.Fatal(err)
	}
	cfg.Protocol = r.form
	c := xdstest.NewClient(conn, cfg)
	r.stops = append(r.stops, func() { c.Close(); _ = conn.Close() })
	if err := c.Connect(r.Context()); err != nil {
		r.Fatal(err)
	}
	return c
}

// quiet lets everything happen that happens at once, and a moment pass.
func (r *rig) quiet() { r.pass(50 * time.Millisecond) }

func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// holds fails unless a client has exactly these resources of a type.
func (r *rig) holds(c *xdstest.Client, typeURL string, want ...string) {
	r.Helper()
	if got := strings.Join(c.Names(typeURL), " "); got != strings.Join(want, " ") || c.Err() != nil {
		r.Fatalf("holds %s, want %v; its stream: %v", got, want, c.Err())
	}
}

// streams fails unless so many upstream streams are open, and were ever.
func (r *rig) streams(now, ever int) {
	r.Helper()
	if n, e := r.cp.Streams(); n != now || e != ever {
		r.Fatalf("%d streams upstream, %d ever, want %d and %d", n, e, now, ever)
	}
}

// node makes an Envoy's node with metadata, as pairs.
func node(id string, metadata ...string) *corev3.Node {
	n := &corev3.Node{Id: id, Cluster: "web", UserAgentName: "envoy"}
	if len(metadata) > 0 {
		n.Metadata = &structpb.Struct{Fields: make(map[string]*structpb.Value)}
		for i := 0; i < len(metadata); i += 2 {
			n.Metadata.Fields[metadata[i]] = structpb.NewStringValue(metadata[i+1])
		}
	}
	return n
}
