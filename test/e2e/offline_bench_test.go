package e2e

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// BenchmarkOfflineStart measures from the start of agent and Envoy to the first answer
// of 200: with the control plane, and without it from what is on disk. They take turns.
func BenchmarkOfflineStart(b *testing.B) {
	w := newWorld(b, xdstest.Delta, xdstest.Delta)
	w.start("--state-dir", w.path("state"))
	w.saved()
	var online, offline []time.Duration
	start := func() time.Duration {
		w.envoy.Kill()
		w.agent.Kill()
		file, admin := w.bootstrap()
		begun := time.Now()
		w.runAgent()
		w.envoy = w.runEnvoy(file, admin)
		w.serves("v1")
		return time.Since(begun)
	}
	for b.Loop() {
		online = append(online, start())
		w.saved()
		w.cp.Stop()
		offline = append(offline, start())
		w.restartControlPlane()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(online).Seconds()*1000, "online-ms")
	b.ReportMetric(median(offline).Seconds()*1000, "offline-ms")
	b.ReportMetric(float64(median(offline))/float64(median(online)), "offline/online")
}

// answerDelay is that of a slow control plane.
const answerDelay = 300 * time.Millisecond

// slowly delays every answer of a control plane.
type slowly struct{ grpc.ServerStream }

func (s slowly) SendMsg(m any) error {
	time.Sleep(answerDelay)
	return s.ServerStream.SendMsg(m)
}

// BenchmarkSlowControlPlane measures from the start of Envoy to its first answer of
// 200 with a control plane that takes 300 ms for each answer: directly, and through an
// agent that was started 2 s earlier, as in a pod.
func BenchmarkSlowControlPlane(b *testing.B) {
	for _, form := range xdstest.Protocols() {
		b.Run(string(form), func(b *testing.B) {
			w := newWorld(b, form, form)
			w.cp.Stop()
			w.cp.Serve(w.listen(), grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				return next(srv, slowly{s})
			}))
			var direct, through []time.Duration
			for b.Loop() {
				file, admin := w.bootstrap()
				w.bypass(file)
				direct = append(direct, w.firstAnswer(file, admin))
				file, admin = w.bootstrap()
				w.startAgent()
				time.Sleep(2 * time.Second)
				through = append(through, w.firstAnswer(file, admin))
				w.check(w.agent.Stop(10 * time.Second))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(direct).Seconds()*1000, "direct-ms")
			b.ReportMetric(median(through).Seconds()*1000, "through-ms")
			b.ReportMetric(float64(median(through))/float64(median(direct)), "through/direct")
		})
	}
}

// counted counts what a server writes to the connections of a listener.
type counted struct {
	net.Listener
	written *atomic.Int64
}

type countedConn struct {
	net.Conn
	written *atomic.Int64
}

func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countedConn{c, l.written}, err
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// BenchmarkReconnect measures what a control plane sends, and what the agent passes
// on, when the stream comes back and none of 10,000 clusters has changed: one that
// honours versions, and one that resends everything.
func BenchmarkReconnect(b *testing.B) {
	for _, bench := range []struct {
		name   string
		form   xdstest.Protocol
		config xdstest.Config
	}{
		{"delta", xdstest.Delta, xdstest.Config{}},
		{"delta that resends", xdstest.Delta, xdstest.Config{EmptyVersions: true, ResendAll: true}},
		{"sotw", xdstest.SotW, xdstest.Config{}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			const clusters = 10_000
			w := newWorld(b, bench.form, xdstest.Delta)
			w.cp.Stop()
			w.cp = xdstest.New(bench.config)
			for i := range clusters {
				w.cp.Set(xdstest.Cluster(fmt.Sprintf("cluster-%d", i), ""))
			}
			var written atomic.Int64
			w.cp.Serve(counted{w.listen(), &written})
			w.startAgent()
			conn, err := grpc.NewClient("unix:"+w.path("xds.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
			w.check(err)
			b.Cleanup(func() { _ = conn.Close() })
			c := xdstest.NewClient(conn, xdstest.ClientConfig{Protocol: xdstest.Delta})
			b.Cleanup(c.Close)
			w.check(c.Connect(b.Context()))
			c.Subscribe(xds.ClusterType)
			w.check(testbed.Eventually(limit, func() error {
				if n := len(c.Held(xds.ClusterType)); n != clusters {
					return fmt.Errorf("%d clusters", n)
				}
				return nil
			}))
			time.Sleep(time.Second)
			full, before := written.Load(), len(c.Responses())
			for b.Loop() {
				_, ever := w.cp.Streams()
				w.cp.Cut(nil)
				w.check(testbed.Eventually(limit, func() error {
					if _, now := w.cp.Streams(); now == ever {
						return fmt.Errorf("no new stream yet")
					}
					return nil
				}))
				time.Sleep(time.Second)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(full), "first-bytes")
			b.ReportMetric(float64(written.Load()-full)/float64(b.N), "reconnect-bytes")
			b.ReportMetric(float64(len(c.Responses())-before), "responses-downstream")
		})
	}
}
