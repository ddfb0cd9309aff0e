package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/agent/probe"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// application is what the agent probes: a TCP port that is open or not.
type application struct{ down atomic.Bool }

func (a *application) dial(context.Context, string, string) (net.Conn, error) {
	if a.down.Load() {
		return nil, errors.New("connection refused")
	}
	conn, other := net.Pipe()
	_ = other.Close()
	return conn, nil
}

func (a *application) config() *probe.Config {
	return &probe.Config{Check: probe.TCP(a.dial, "app:80"), Period: time.Second, Failures: 2}
}

// reports returns what the control plane was told of the workload: a word for each report.
func (r *rig) reports() string {
	r.Helper()
	var out []string
	for _, e := range r.cp.Requests(xds.HealthType) {
		reason := e.Error.GetMessage()
		out = append(out, strings.TrimSuffix("healthy: "+reason, ": "))
	}
	return strings.ReplaceAll(strings.Join(out, ", "), "healthy: ", "un")
}

func (r *rig) wantReports(want string) {
	r.Helper()
	if got := r.reports(); got != want {
		r.Errorf("reports %q, want %q", got, want)
	}
}

func TestTheHealthOfTheApplicationIsReported(t *testing.T) {
	inBothForms(t, func(r *rig) {
		app := &application{}
		r.cfg.Workload, r.cfg.Node = app.config(), node("web-1")
		r.start()
		r.quiet()
		r.wantReports("healthy")
		app.down.Store(true)
		r.pass(time.Second)
		r.wantReports("healthy")
		r.pass(time.Second)
		r.wantReports("healthy, unconnection refused")
		if got := r.agent.Status().Workload; got == nil || got.State != probe.Unhealthy || got.Reason != "connection refused" || got.Check != "tcp://app:80" {
			t.Errorf("status %+v", got)
		}
		// The application is probed while the control plane is away, which is told when it is back.
		r.cp.Stop()
		app.down.Store(false)
		r.pass(5 * time.Second)
		if got := r.agent.Status().Workload; got.State != probe.Healthy {
			t.Errorf("without the control plane: %+v", got)
		}
		r.cp.Serve(r.up.Listen())
		r.pass(time.Minute)
		r.wantReports("healthy, unconnection refused, healthy")
	})
}

func TestOnlyTheGroupOfTheConfiguredNodeReports(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Workload, r.cfg.Node = (&application{}).config(), node("web-1")
		r.start()
		c := r.client(xdstest.ClientConfig{Node: node("other")})
		c.Subscribe(xds.ClusterType)
		r.quiet()
		r.streams(2, 2)
		r.wantReports("healthy")
	})
}

func TestEveryGroupReportsWithoutAConfiguredNode(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Workload = (&application{}).config()
		r.start()
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.ClusterType)
		r.quiet()
		r.wantReports("healthy")
	})
}

func TestNothingIsReportedWithoutAProbe(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("web-1")
		r.start()
		r.pass(time.Minute)
		r.wantReports("")
		if r.agent.Status().Workload != nil {
			t.Error("the status has a workload")
		}
	})
}

func TestAWorkloadIsReportedAsUnhealthyWhileItsProxyDrains(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Workload, r.cfg.Node = (&application{}).config(), node("web-1")
		r.start()
		r.quiet()
		if err := r.agent.Drain(r.Context()); err != nil {
			t.Fatal(err)
		}
		r.quiet()
		r.wantReports("healthy, un" + drainReason)
		if err := r.agent.Undrain(r.Context()); err != nil {
			t.Fatal(err)
		}
		r.quiet()
		r.wantReports("healthy, un" + drainReason + ", healthy")
	})
}

func TestAWorkloadIsHealthyOnlyIfItsEnvoyIsLive(t *testing.T) {
	e := &otherEnvoy{uptime: time.Hour, starting: true}
	a := e.beside(t, t.TempDir())
	if got := fmt.Sprint(a.envoyServes(t.Context())); got != "it is PRE_INITIALIZING" {
		t.Errorf("while it starts: %s", got)
	}
	e.starting = false
	if err := a.envoyServes(t.Context()); err != nil {
		t.Errorf("once it is %s: %v", envoy.StateLive, err)
	}
}
