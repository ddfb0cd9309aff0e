package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

// conversation is an ADS source with a scripted control plane, in a synctest
// bubble.
type conversation struct {
	*testing.T
	cp    *xdstest.ControlPlane
	cfg   Config
	state *state
	// source is created by the first run, with the value of cfg at that time.
	source *ADS
	cancel context.CancelFunc
	ended  chan error
}

// inBothForms runs a test in SotW and in Delta.
func inBothForms(t *testing.T, test func(*conversation)) {
	t.Helper()
	for name, form := range map[string]xds.Form{"sotw": xds.SotW, "delta": xds.Delta} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				pipe := &xdstest.Pipe{}
				c := &conversation{T: t, cp: xdstest.New(xdstest.Config{}), state: everyCluster()}
				c.cp.Set(xdstest.Cluster("c1", ""))
				c.cp.Serve(pipe.Listen())
				defer c.cp.Stop()
				c.cfg = Config{Addr: "192.0.2.1:1", Form: form, Security: dial.Security{Plaintext: true}, Dial: pipe.Connect}
				test(c)
			})
		})
	}
}

// run starts the source and waits until everything blocks.
func (c *conversation) run() {
	c.Helper()
	if c.source == nil {
		c.source = source(c.T, c.cfg)
	}
	ctx, cancel := context.WithCancel(c.Context())
	ended := make(chan error, 1)
	c.cancel, c.ended = cancel, ended
	go func() { ended <- c.source.Run(ctx, c.state, func() error { return nil }) }()
	c.quiet()
}

func (c *conversation) quiet() {
	time.Sleep(10 * time.Millisecond)
	synctest.Wait()
}

// stop ends the source, which must not have ended before.
func (c *conversation) stop() {
	c.Helper()
	select {
	case err := <-c.ended:
		c.Errorf("the stream ended by itself: %v", err)
	default:
		c.cancel()
		if err := <-c.ended; err == nil {
			c.Error("Run returned nil")
		}
	}
}

// failed fails unless the source has ended with an error that contains the text.
func (c *conversation) failed(text string) {
	c.Helper()
	select {
	case err := <-c.ended:
		expect(c.T, err, text)
	default:
		c.cancel()
		c.Errorf("the stream has not ended; want an error with %q", text)
		<-c.ended
	}
}

// opened returns the first request of a stream.
func (c *conversation) opened(stream int) xdstest.Event {
	c.Helper()
	for _, e := range c.cp.Requests(xds.ClusterType) {
		if e.Stream == stream {
			return e
		}
	}
	c.Fatalf("nothing was requested on stream %d", stream)
	return xdstest.Event{}
}

func TestTheTokenIsReadAtEveryAttempt(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		c.cfg.TokenFile = filepath.Join(c.TempDir(), "token")
		write := func(token string) {
			if err := os.WriteFile(c.cfg.TokenFile, []byte(token), 0o600); err != nil {
				c.Fatal(err)
			}
		}
		write("first\n")
		c.run()
		write("  second\r\n")
		c.stop()
		c.run()
		c.stop()
		for stream, want := range []string{"Bearer first", "Bearer second"} {
			if got := c.opened(stream + 1).Metadata.Get("authorization"); len(got) != 1 || got[0] != want {
				c.Errorf("stream %d: authorization %q, want %q", stream+1, got, want)
			}
		}
	})
}

func TestAnUnusableTokenIsAnErrorOfTheAttempt(t *testing.T) {
	for name, tc := range map[string]struct{ content, want string }{
		"empty":           {"", " is empty"},
		"only blanks":     {" \n", " is empty"},
		"two lines":       {"a\nb\n", " holds more than one line"},
		"carriage return": {"a\rb", " holds more than one line"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			err := attempt(t, Config{Addr: "192.0.2.1:1", Security: dial.Security{Plaintext: true, TokenFile: file}})
			expect(t, err, "--upstream-token-file: "+file+tc.want)
		})
	}
	missing := filepath.Join(t.TempDir(), "missing")
	expect(t, attempt(t, Config{Addr: "192.0.2.1:1", Security: dial.Security{Plaintext: true, TokenFile: missing}}), "--upstream-token-file: open "+missing)
}

func TestHeadersAreSentWithEveryStream(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		c.cfg.Headers = map[string]string{"ClusterID": "Kubernetes", "x-consul-token": "a b"}
		for stream := 1; stream <= 2; stream++ {
			c.run()
			c.stop()
			md := c.opened(stream).Metadata
			if a, b := md.Get("clusterid"), md.Get("x-consul-token"); len(a) != 1 || a[0] != "Kubernetes" || len(b) != 1 || b[0] != "a b" {
				c.Errorf("stream %d: %v", stream, md)
			}
			if got := md.Get("authorization"); len(got) > 0 {
				c.Errorf("stream %d: authorization %q without a token", stream, got)
			}
		}
	})
}

// protocol.md 7.10: the Node is in the first message of a stream, and in no other.
func TestTheNodeGoesWithTheFirstRequestOfEachStream(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		for stream := 1; stream <= 2; stream++ {
			c.run()
			c.stop()
			for i, e := range c.cp.Requests(xds.ClusterType) {
				if first := i == 0 || e.Stream != c.cp.Requests(xds.ClusterType)[i-1].Stream; (e.Node.GetId() == "web-1") != first {
					c.Errorf("request %d: %s", i, e)
				}
			}
		}
	})
}

func TestAnOversizedMessageEndsTheStreamAndRemovesNothing(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		c.cfg.MaxMessage = 64 << 10
		c.run()
		before := len(c.state.applied())
		c.cp.Set(xdstest.StaticCluster("large", strings.Split(strings.Repeat("127.0.0.1:1 ", 10_000)+"127.0.0.1:2", " ")...))
		c.quiet()
		c.failed("code = ResourceExhausted desc = grpc: received message larger than max")
		if got := c.state.applied()[before:]; len(got) > 0 {
			c.Errorf("applied: %+v", got)
		}
		// After a reconnect, the first request lists what was received before.
		c.cp.Remove(xds.ClusterType, "large")
		c.state.cached = map[string]string{"c1": "1"}
		c.run()
		c.stop()
		if got := c.opened(2); c.cfg.Form == xds.SotW && got.Version == "" {
			c.Errorf("the version was lost: %s", got)
		}
	})
}

// protocol.md 7.11: more than gRPC's own limit of 4 MiB.
func TestAMessageOf8MiBPasses(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		const each = 64 << 10
		c.run()
		c.cp.Hold(xds.ClusterType)
		for i := range (8 << 20) / each {
			cluster := xdstest.Cluster(fmt.Sprintf("large-%d", i), "")
			cluster.AltStatName = strings.Repeat("x", each)
			c.cp.Set(cluster)
		}
		c.cp.Release(xds.ClusterType)
		c.quiet()
		updates := c.state.applied()
		last := updates[len(updates)-1]
		size := 0
		for _, r := range last.Resources {
			size += len(r.Body.GetValue())
		}
		if size < 8<<20 {
			c.Errorf("the last of %d updates has %d bytes", len(updates), size)
		}
		c.stop()
	})
}

// A control plane that sends everything again causes no second copy of the resources. (A small Delta response is copied,
// and package history keeps the former copy.)
func TestWhatComesAgainOnAnotherStreamSharesItsBody(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		cluster := xdstest.Cluster(strings.Repeat("c", 100), "")
		cluster.AltStatName = strings.Repeat("x", 32<<10)
		c.cp.Set(cluster)
		for range 2 {
			c.run()
			c.stop()
		}
		first, second := c.state.updates[0], c.state.updates[1]
		for _, r := range first.Resources {
			at := slices.IndexFunc(second.Resources, func(again *xds.Resource) bool { return again.Name == r.Name })
			if at < 0 || r.Name != "c1" && second.Resources[at].Body != r.Body {
				c.Errorf("%s is not shared by %d resources", r.Name, len(second.Resources))
			}
		}
	})
}

func TestAnAnswerThatIsNotNeededIsNotApplied(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		preferred := errors.New("another was preferred")
		if err := source(t, c.cfg).Run(c.Context(), c.state, func() error { return preferred }); err != preferred {
			c.Errorf("ended with %v", err)
		}
		if got := c.state.applied(); len(got) > 0 || len(c.state.synced) > 0 {
			c.Errorf("applied %+v, synced %v", got, c.state.synced)
		}
	})
}

func TestOpenAndLastMessageFollowTheStream(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		c.cp.Silent(true)
		c.run()
		if !c.source.Open() || !c.source.LastMessage().IsZero() {
			c.Errorf("silent: open %v, last message %s", c.source.Open(), c.source.LastMessage())
		}
		time.Sleep(time.Minute)
		c.cp.Silent(false)
		c.quiet()
		if got := time.Since(c.source.LastMessage()); got > time.Second {
			c.Errorf("last message %s ago", got)
		}
		c.stop()
		if c.source.Open() {
			c.Error("open after Run")
		}
	})
}

// The error is that of the request that cannot be sent, not of the cancellation that follows.
func TestARequestThatCannotBeSentIsTheReason(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		c.state.node = &corev3.Node{Id: "\xff"}
		c.run()
		c.failed("rpc error: code = Internal desc = grpc: error while marshaling")
	})
}

func TestAStreamThatTheServerEndsSaysWhy(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		c.run()
		c.cp.Cut(nil)
		c.quiet()
		c.failed("receiving: rpc error: code = Unavailable desc = stream cut by the script")
	})
}

// mute is a state whose clients never answer an update.
type mute struct{ *state }

func (m mute) Apply(u xds.Update, _ func(error)) { m.state.Apply(u, nil) }

// design.md I6: the sender does not wake for each response, and still sends each ACK in time.
func TestAResponseWithoutAnAnswerIsACKedInTime(t *testing.T) {
	inBothForms(t, func(c *conversation) {
		s := source(c.T, c.cfg)
		ctx, cancel := context.WithCancel(c.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, mute{c.state}, func() error { return nil }) }()
		acks := func() (n int) {
			for _, e := range c.cp.Requests(xds.ClusterType) {
				if e.Kind == xdstest.Ack {
					n++
				}
			}
			return n
		}
		for i := range 3 {
			c.cp.Set(xdstest.Cluster("c1", fmt.Sprint("e", i)))
			c.quiet()
			if got := acks(); got != i {
				c.Errorf("%d ACKs before the time of response %d", got, i)
			}
			time.Sleep(session.DefaultAckTimeout)
			synctest.Wait()
			if got := acks(); got != i+1 {
				c.Errorf("%d ACKs after the time of response %d", got, i)
			}
			time.Sleep(time.Minute) // nothing else must be sent
		}
		cancel()
		<-ended
	})
}
