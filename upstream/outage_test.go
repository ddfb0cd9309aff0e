package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/upstream/failover"
)

// balancer is the address of a control plane that all agents of a fleet use. It counts connections
// by second of the bubble's time.
type balancer struct {
	mu       sync.Mutex
	open     bool
	begun    time.Time
	syns     map[int]int // attempts to connect
	accepted map[int]int // accepted connections
	streams  map[int]int
	back     []time.Duration // time from the return of the control plane to the stream of each agent
	opened   time.Time
}

func (b *balancer) second() int { return int(time.Since(b.begun) / time.Second) }

func (b *balancer) connect(context.Context, string, string) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.syns[b.second()]++
	if !b.open {
		return nil, errDown
	}
	b.accepted[b.second()]++
	client, server := net.Pipe()
	go func() { // until the client closes the connection
		_, _ = server.Read(make([]byte, 1))
		_ = server.Close()
	}()
	return client, nil
}

// stream opens a stream of an agent.
func (b *balancer) stream() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams[b.second()]++
	if !b.opened.IsZero() {
		b.back = append(b.back, time.Since(b.opened))
	}
}

// ofFleet is the source of one agent: it connects and answers. If plain is set, its errors do not
// show why it could not connect.
type ofFleet struct {
	at     *balancer
	dialer *dialer
	plain  bool

	mu   sync.Mutex
	kill context.CancelCauseFunc
}

func (*ofFleet) Name() string { return "control plane" }

func (s *ofFleet) Run(ctx context.Context, _ State, answered func() error) error {
	dialing := &dialing{dialer: s.dialer}
	err := s.stream(ctx, dialing, answered)
	if s.plain {
		s.dialer.drop()
		return err
	}
	return dialing.classify(err)
}

func (s *ofFleet) stream(ctx context.Context, dialing *dialing, answered func() error) error {
	conn, err := dialing.dialGRPC(ctx, "192.0.2.1:15010")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.kill = cancel
	s.mu.Unlock()
	s.at.stream()
	if err := answered(); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// outage simulates a fleet whose control plane is unreachable for some time, and returns its
// address with the counts.
func outage(t *testing.T, agents int, away, spread time.Duration, plain bool) *balancer {
	t.Helper()
	b := &balancer{}
	bubble.Test(t, func(t *testing.T) {
		*b = balancer{open: true, begun: time.Now(), syns: make(map[int]int), accepted: make(map[int]int), streams: make(map[int]int)}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		sources := make([]*ofFleet, agents)
		for i := range sources {
			sources[i] = &ofFleet{at: b, dialer: newDialer(b.connect), plain: plain}
			f := &Failover{Sources: []Source{sources[i]}, Timing: failover.Timing{ReconnectSpread: spread, StaleAfter: 1000 * time.Hour}}
			running.Go(func() { _ = f.Run(ctx, &state{}) })
		}
		time.Sleep(time.Minute)
		b.mu.Lock()
		b.open = false
		clear(b.syns)
		clear(b.accepted)
		clear(b.streams)
		b.begun = time.Now()
		b.mu.Unlock()
		for _, s := range sources {
			s.kill(errors.New("the control plane has ended"))
		}
		time.Sleep(away)
		b.mu.Lock()
		b.open, b.opened = true, time.Now()
		b.mu.Unlock()
		time.Sleep(2*DefaultMaxBackoff + spread)
		synctest.Wait()
		cancel()
		running.Wait()
	})
	if len(b.back) < agents {
		t.Fatalf("%d of %d agents came back", len(b.back), agents)
	}
	slices.Sort(b.back)
	return b
}

func peak(counts map[int]int) (most int) {
	for _, n := range counts {
		most = max(most, n)
	}
	return most
}

func (b *balancer) row(name string, away time.Duration) string {
	during := 0
	for second, n := range b.syns {
		if second < int(away/time.Second) {
			during += n
		}
	}
	return fmt.Sprintf("%-28s away %-6s SYNs/s while away %6.0f, at most %5d; then at most %4d connections/s, %4d streams/s; change after p50 %7s, max %7s",
		name, away, float64(during)/away.Seconds(), peak(b.syns), peak(b.accepted), peak(b.streams),
		b.back[len(b.back)/2].Round(10*time.Millisecond), b.back[len(b.back)-1].Round(10*time.Millisecond))
}

// An agent finds a control plane within a second on average, and three at most, however long the
// control plane was unreachable. The cost for the server and the network is bounded: two attempts
// to connect per second and agent, and one connection and one stream each. docs/offline.md has the
// figures.
func TestWhatAnOutageCostsAFleet(t *testing.T) {
	var rows []string
	for _, away := range []time.Duration{10 * time.Second, time.Minute, time.Hour} {
		agents := 1000
		switch away {
		case time.Minute:
			agents = 300
		case time.Hour:
			agents = 40
		}
		was := outage(t, agents, away, 0, true)
		is := outage(t, agents, away, 0, false)
		scattered := max(agents, 100) // of fewer, chance alone brings a fifth in one second now and then
		spread := outage(t, scattered, away, 30*time.Second, false)
		rows = append(rows, was.row(fmt.Sprintf("%d agents, only back-off", agents), away), is.row(fmt.Sprintf("%d agents", agents), away),
			spread.row(fmt.Sprintf("%d agents, spread 30s", scattered), away))
		if p50, last := is.back[len(is.back)/2], is.back[len(is.back)-1]; p50 > time.Second || last > 3*time.Second {
			t.Errorf("away for %s: half came after %s, the last after %s", away, p50, last)
		}
		if most := peak(is.syns); most > 4*agents {
			t.Errorf("away for %s: %d attempts to connect in a second", away, most)
		}
		total := func(counts map[int]int) (sum int) {
			for _, n := range counts {
				sum += n
			}
			return sum
		}
		if conns, streams := total(is.accepted), total(is.streams); conns != agents || streams != agents {
			t.Errorf("away for %s: %d connections and %d streams of %d agents", away, conns, streams, agents)
		}
		if most := peak(spread.streams); most > scattered/5 {
			t.Errorf("away for %s: with a spread of 30 s %d streams in a second", away, most)
		}
	}
	t.Logf("\n%s", strings.Join(rows, "\n"))
}
