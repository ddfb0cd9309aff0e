package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/register"
)

// registrar records what it is told, and knows one workload.
type registrar struct {
	told     []string
	workload *register.Workload
}

func (r *registrar) Connect(p *proxy.Proxy, connection uint64) {
	r.told = append(r.told, fmt.Sprintf("connect %s %d", p.Node, connection))
}

func (r *registrar) Disconnect(p *proxy.Proxy, _ uint64) {
	r.told = append(r.told, "disconnect "+p.Node)
}

func (r *registrar) Report(p *proxy.Proxy, connection uint64, healthy bool, reason string) {
	r.told = append(r.told, strings.TrimSpace(fmt.Sprintf("report %s %d %v %s", p.Node, connection, healthy, reason)))
}

func (r *registrar) Workload(*proxy.Proxy) *register.Workload { return r.workload }

func TestReportsGoToTheRegistrarOfTheProxy(t *testing.T) {
	on(t, "", func(r *rig) {
		reg := &registrar{}
		r.server.cfg.Registrar = reg
		a, b := r.connect("a", nil), r.connect("b", nil)
		a.Report(true, "")
		b.Report(false, "refused")
		b.Close(downstream.End{})
		want := "connect a 1, connect b 2, report a 1 true, report b 2 false refused, disconnect b"
		if got := strings.Join(reg.told, ", "); got != want {
			t.Errorf("told %s, want %s", got, want)
		}
		for _, typ := range r.server.Proxies()[0].Types {
			if typ.Type == xds.Short(xds.HealthType) {
				t.Error("reports are shown as a type")
			}
		}
	})
}

func TestProxiesTellTheHealthOfTheirWorkloads(t *testing.T) {
	for _, tc := range []struct {
		name     string
		workload *register.Workload
		want     string
	}{
		{"it registers nothing", nil, "<nil>"},
		{"nobody checks it", &register.Workload{Name: "a/b", Health: register.Health{State: register.Unknown}}, "&{a/b NOT CHECKED }"},
		{"no report has come", &register.Workload{Name: "a/b", Checked: true, Health: register.Health{State: register.Unknown, Message: "none"}}, "&{a/b UNKNOWN none}"},
		{"healthy", &register.Workload{Name: "a/b", Checked: true, Health: register.Health{State: register.Healthy}}, "&{a/b HEALTHY }"},
		{"unhealthy", &register.Workload{Name: "a/b", Checked: true, Health: register.Health{State: register.Unhealthy, Message: "refused"}}, "&{a/b UNHEALTHY refused}"},
		{"it may not register", &register.Workload{Name: "a/b", Refused: "no group", Checked: true, Health: register.Health{State: register.Healthy}}, "&{a/b NOT REGISTERED no group}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			on(t, "", func(r *rig) {
				r.server.cfg.Registrar = &registrar{workload: tc.workload}
				r.connect("a", nil)
				if got := fmt.Sprint(r.server.Proxies()[0].Workload); got != tc.want {
					t.Errorf("workload %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// What agents say of themselves is shown until they say that it is over, or go.
func TestWhatAgentsHoldBackIsShown(t *testing.T) {
	on(t, "", func(r *rig) {
		a, b := r.connect("a", nil), r.connect("b", nil)
		held := []xds.HeldBack{{Type: "CDS", Had: 14, HeldBack: 14}}
		a.AgentReport(xds.AgentReport{Frozen: &xds.Frozen{Types: []string{"CDS"}, Reason: "incident"}})
		if got := r.server.frozen(); got != 1 {
			t.Errorf("%v agents are frozen", got)
		}
		if p := r.server.Proxies()[0]; p.Frozen == nil || p.Frozen.Reason != "incident" {
			t.Errorf("%+v", p)
		}
		a.AgentReport(xds.AgentReport{HeldBack: held})
		b.AgentReport(xds.AgentReport{HeldBack: held})
		shown := func(want float64) {
			t.Helper()
			n := 0
			for _, p := range r.server.Proxies() {
				if len(p.HeldBack) > 0 {
					n++
				}
			}
			if got := r.server.holdingBack(); got != want || float64(n) != want {
				t.Errorf("%v agents hold something back, and %d are shown; want %v", got, n, want)
			}
		}
		shown(2)
		if got := r.server.frozen(); got != 0 {
			t.Errorf("%v agents are frozen", got)
		}
		a.AgentReport(xds.AgentReport{})
		shown(1)
		b.Close(downstream.End{})
		shown(0)
	})
}
