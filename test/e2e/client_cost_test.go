package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// What clients cost at most, in KiB of the agent's memory; docs/performance.md tells what was measured.
const (
	idleStreamKiB  = 40
	slowReaderKiB  = 2450
	slowReaders    = 100
	slowReaderHave = 5000 // clusters of 1 KiB
	idleStreams    = 10_000
)

var residentLine = regexp.MustCompile(`(?m)^Vm(RSS|HWM):\s+(\d+) kB$`)

// resident returns how much memory of the agent is resident, and was at most, in KiB.
func (w *world) resident() (now, most int) {
	w.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.agent.PID()))
	w.check(err)
	for _, m := range residentLine.FindAllSubmatch(b, -1) {
		kib, err := strconv.Atoi(string(m[2]))
		w.check(err)
		if string(m[1]) == "RSS" {
			now = kib
		} else {
			most = kib
		}
	}
	return now, most
}

// idle waits until the agent has used no CPU time for half a second.
func (w *world) idle() {
	w.Helper()
	used := func() string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.agent.PID()))
		w.check(err)
		_, fields, _ := strings.Cut(string(b), ") ")
		return strings.Join(strings.Fields(fields)[11:13], " ") // in user and in system mode
	}
	before := ""
	w.check(w.agent.Wait(time.Minute, func() error {
		last := before
		if before = used(); before != last {
			time.Sleep(500 * time.Millisecond)
			return fmt.Errorf("the agent is busy")
		}
		return nil
	}))
}

// clientConn connects to the agent.
func (w *world) clientConn() *grpc.ClientConn {
	w.Helper()
	conn, err := grpc.NewClient("unix:"+w.path("xds.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.check(err)
	w.Cleanup(func() { _ = conn.Close() })
	return conn
}

// subscribe opens a stream that subscribes to all clusters and is never read.
func (w *world) subscribe(ctx context.Context, conn *grpc.ClientConn) {
	w.Helper()
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	node := &corev3.Node{Id: "e2e", Cluster: "e2e", UserAgentName: "envoy"}
	if w.below == xdstest.Delta {
		stream, err := client.DeltaAggregatedResources(ctx)
		w.check(err)
		w.check(stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: xds.ClusterType}))
		return
	}
	stream, err := client.StreamAggregatedResources(ctx)
	w.check(err)
	w.check(stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: xds.ClusterType}))
}

// subscribed waits until so many streams of the agent subscribe to something.
func (w *world) subscribed(want int) {
	w.Helper()
	w.check(w.agent.Wait(time.Minute, func() error {
		s, err := w.client().Status(w.Context())
		if err != nil {
			return err
		}
		n := 0
		for _, st := range s.Streams {
			if len(st.Types) > 0 {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("%d streams, want %d", n, want)
		}
		return nil
	}))
}

// clustersUpdated returns how many clusters are held, and when the last update of them came.
func (w *world) clustersUpdated() (held int, at time.Time) {
	w.Helper()
	s, err := w.client().Status(w.Context())
	w.check(err)
	for _, g := range s.Groups {
		for _, ty := range g.Types {
			if ty.TypeURL == xds.ClusterType {
				for _, n := range ty.Resources {
					held += n
				}
				at = ty.LastUpdate
			}
		}
	}
	return held, at
}

// inEachForm runs a test with clients that speak SotW and Delta.
func inEachForm(t *testing.T, test func(*world)) {
	t.Helper()
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) { test(newWorld(t, xdstest.SotW, form)) })
	}
}

// Finding M11. Clients that subscribe to 5,000 clusters and never read cost what is remembered of
// them and the one response that waits, not a push of their own each time that everything changes.
func TestReadersThatNeverReadHoldOneResponseEach(t *testing.T) {
	testbed.Long(t)
	inEachForm(t, func(w *world) {
		push := func(generation int) {
			_, before := w.clustersUpdated()
			all := make([]proto.Message, slowReaderHave)
			for i := range all {
				c := xdstest.Cluster(fmt.Sprintf("c%04d", i), "")
				c.AltStatName = strings.Repeat("x", 1000) + strconv.Itoa(generation)
				all[i] = c
			}
			w.cp.Set(all...)
			w.check(w.agent.Wait(time.Minute, func() error {
				if held, at := w.clustersUpdated(); held < slowReaderHave || !at.After(before) {
					return fmt.Errorf("%d clusters held, updated at %s", held, at)
				}
				return nil
			}))
			w.idle()
		}
		w.startAgent("--log-level", "info")
		push(0)
		before, _ := w.resident()
		for range slowReaders {
			w.subscribe(w.Context(), w.clientConn())
		}
		w.subscribed(slowReaders)
		w.idle()
		first, _ := w.resident()
		for generation := 1; generation <= 3; generation++ {
			push(generation)
		}
		now, most := w.resident()
		w.Logf("%d readers: %d KiB before, %d with them, %d after everything changed three times, at most %d: %d KiB each",
			slowReaders, before, first, now, most, (most-before)/slowReaders)
		if each := (most - before) / slowReaders; each > slowReaderKiB {
			w.Errorf("a reader costs %d KiB, want at most %d", each, slowReaderKiB)
		}
	})
}

// Finding M11. What a stream costs on which nothing happens, of many on one connection.
func TestIdleStreamsCostLittle(t *testing.T) {
	testbed.Long(t)
	inEachForm(t, func(w *world) {
		w.startAgent("--log-level", "warn")
		w.idle()
		before, _ := w.resident()
		conn := w.clientConn()
		for range idleStreams {
			w.subscribe(w.Context(), conn)
		}
		w.subscribed(idleStreams)
		// What the burst left is given back after a few seconds.
		var each int
		if err := w.agent.Wait(limit, func() error {
			now, _ := w.resident()
			if each = (now - before) / idleStreams; each > idleStreamKiB {
				return fmt.Errorf("a stream costs %d KiB, want at most %d", each, idleStreamKiB)
			}
			return nil
		}); err != nil {
			w.Error(err)
		}
		w.idle()
		now, most := w.resident()
		w.Logf("%d streams: %d KiB before, %d with them, at most %d: %d KiB each", idleStreams, before, now, most, (now-before)/idleStreams)
	})
}
