package upstream

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// polledServer is a control plane that is polled, and answers with a status.
type polledServer struct {
	status   atomic.Int64
	polls    atomic.Int64
	warnings strings.Builder // of the agent; slog writes one after the other
}

func (s *polledServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.polls.Add(1)
	switch code := int(s.status.Load()); code {
	case 0: // it hangs
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the handler does not notice that the client has gone
		<-r.Context().Done()
	case http.StatusOK:
		_, _ = w.Write([]byte(`{"version_info":"1","type_url":"` + xds.ClusterType + `","resources":[{"@type":"` + xds.ClusterType + `","name":"c1"}]}`))
	default:
		w.WriteHeader(code)
	}
}

// polled runs a Failover over two control planes that are polled.
func polled(t *testing.T, test func(f *Failover, a, b *polledServer, target *state)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		servers := []*polledServer{{}, {}}
		target := everyCluster()
		f := &Failover{}
		var stops []func()
		for i, s := range servers {
			s.status.Store(http.StatusOK)
			pipe := &xdstest.Pipe{}
			server, lis := &http.Server{Handler: s}, pipe.Listen()
			served := make(chan error)
			go func() { served <- server.Serve(lis) }()
			rest, err := NewREST(Config{
				Addr: "http://192.0.2." + string(rune('1'+i)), Security: dial.Security{Plaintext: true}, RESTRefresh: time.Second,
				Log:  slog.New(slog.NewTextHandler(&s.warnings, &slog.HandlerOptions{Level: slog.LevelWarn})),
				Dial: func(ctx context.Context, _, addr string) (net.Conn, error) { return pipe.DialContext(ctx, addr) },
			})
			if err != nil {
				t.Fatal(err)
			}
			f.Sources = append(f.Sources, rest)
			stops = append(stops, func() { _ = server.Close(); <-served })
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Run(ctx, target) }()
		synctest.Wait()
		test(f, servers[0], servers[1], target)
		cancel()
		<-ended
		for _, stop := range stops {
			stop()
		}
	})
}

// An outage of an hour is a few warnings, not one for each poll that failed.
func TestPollsThatFailAreWarningsLessAndLessOften(t *testing.T) {
	polled(t, func(_ *Failover, a, b *polledServer, _ *state) {
		a.status.Store(http.StatusServiceUnavailable)
		b.status.Store(http.StatusServiceUnavailable)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := strings.Count(a.warnings.String(), "poll failed"); n < 3 || n > 20 {
			t.Errorf("%d warnings in an hour", n)
		}
	})
}

// Finding P6: 304 is an answer, even if it is the first one of an attempt.
func TestAControlPlaneThatHasNothingNewAnswers(t *testing.T) {
	polled(t, func(f *Failover, a, b *polledServer, _ *state) {
		a.status.Store(http.StatusNotModified)
		b.status.Store(http.StatusNotModified)
		time.Sleep(time.Hour)
		synctest.Wait()
		s := f.States()[0]
		if !s.Active || s.Attempts != 0 || time.Since(s.LastMessage) > 3*time.Second || b.polls.Load() != 0 {
			t.Errorf("%+v, %d polls of the other", s, b.polls.Load())
		}
		n := a.polls.Load()
		time.Sleep(time.Hour)
		// Only one type is polled, every 1 to 2 s.
		if more := a.polls.Load() - n; more < 1800 || more > 3600 {
			t.Errorf("%d polls in an hour", more)
		}
	})
	polled(t, func(f *Failover, a, b *polledServer, _ *state) {
		a.status.Store(http.StatusServiceUnavailable)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !f.States()[1].Active {
			t.Fatalf("%+v", f.States())
		}
		a.status.Store(http.StatusNotModified)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := f.States()[0]; !s.Active {
			t.Errorf("it is back, and has nothing new: %+v", s)
		}
	})
}

// Finding P7: the next source takes over from a control plane that answers only 503.
func TestTheNextSourceTakesOverFromAPolledOneThatRejectsEverything(t *testing.T) {
	polled(t, func(f *Failover, a, b *polledServer, _ *state) {
		a.status.Store(http.StatusServiceUnavailable)
		time.Sleep(rejectedFor - 4*time.Second)
		synctest.Wait()
		if !f.States()[0].Active {
			t.Errorf("left at once: %+v", f.States()[0])
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := f.States(); s[0].Active || !s[1].Active || s[0].LastError == nil || b.polls.Load() == 0 {
			t.Errorf("%+v", s)
		}
		a.status.Store(http.StatusOK)
		time.Sleep(DefaultMaxBackoff + time.Second)
		synctest.Wait()
		if !f.States()[0].Active {
			t.Errorf("it is well again: %+v", f.States()[0])
		}
	})
}

// It also takes over from a control plane that hangs, but not because of one slow answer.
func TestTheNextSourceTakesOverFromAPolledOneThatHangs(t *testing.T) {
	polled(t, func(f *Failover, a, _ *polledServer, _ *state) {
		a.status.Store(0)
		time.Sleep(DefaultRESTTimeout + 2*time.Second)
		synctest.Wait()
		if !f.States()[0].Active {
			t.Errorf("left at its first slow answer: %+v", f.States()[0])
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := f.States(); s[0].Active || !s[1].Active {
			t.Errorf("%+v", s)
		}
	})
}
