package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/agent/shadow"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// shadowed is an Envoy that is connected to the control plane directly.
type shadowed struct {
	*world
	socket, admin string
}

func newShadowed(w *world) *shadowed {
	s := &shadowed{world: w, socket: w.path("xds.sock"), admin: fmt.Sprintf("127.0.0.1:%d", w.freePort())}
	s.serve(w.cp, s.socket)
	out, err := exec.Command(holdfast(w), "bootstrap", "--out", w.path("direct.json"), "--node-id", "web-1", "--node-cluster", "web",
		"--socket", s.socket, "--xds-protocol", string(w.below), "--envoy-admin", s.admin).CombinedOutput()
	if err != nil {
		w.Fatalf("holdfast bootstrap: %v\n%s", err, out)
	}
	w.envoy = w.runEnvoy(w.path("direct.json"), s.admin)
	w.check(w.envoy.Wait(limit, w.envoy.Ready))
	return s
}

// serve serves a control plane on a socket.
func (s *shadowed) serve(cp *xdstest.ControlPlane, socket string) {
	s.Helper()
	lis, err := net.Listen("unix", socket)
	s.check(err)
	cp.Serve(lis)
}

// once runs `holdfast shadow --once` against a control plane, and returns its exit code and report.
func (s *shadowed) once(upstream string) (code int, r shadow.Report) {
	s.Helper()
	code, out := run(s.T, "shadow", "--once", "-o", "json", "--log-level", "error", "--grace", "3s", "--timeout", "20s", "--interval", "1s", "--envoy-admin", "http://"+s.admin,
		"--upstream", "unix:"+upstream, "--upstream-protocol", string(s.above))
	s.check(json.NewDecoder(strings.NewReader(out)).Decode(&r))
	return code, r
}

func differences(r shadow.Report) string {
	var all []string
	for _, d := range r.Differences {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", d.Type, d.Name, d.Kind, d.Field)))
	}
	return strings.Join(all, ", ")
}

// A shadow finds nothing where the agent would serve what Envoy has, and names what it would serve otherwise. Envoy notices
// nothing.
func TestAShadowNamesWhatWouldBeServedOtherwise(t *testing.T) {
	inAllForms(t, func(w *world) {
		s := newShadowed(w)
		w.serves("v1")
		updates := w.value("cluster_manager.cds.update_success")
		if code, r := s.once(s.socket); code != 0 || r.Compared["EDS"] == 0 || r.Compared["LDS"] != 1 || r.Compared["RDS"] != 1 {
			t.Errorf("exit code %d, %s: %+v", code, differences(r), r)
		}

		// Another control plane, with another timeout of the cluster, without the routes, and with one cluster more.
		other := xdstest.New(xdstest.Config{})
		defer other.Stop()
		s.serve(other, w.path("other.sock"))
		other.Set(&clusterv3.Cluster{Name: "more"})
		for _, m := range w.mesh("c1") {
			if c, ok := m.(*clusterv3.Cluster); ok && c.GetName() == "c1" {
				c.ConnectTimeout = durationpb.New(77 * time.Second)
			}
			if _, ok := m.(*routev3.RouteConfiguration); !ok {
				other.Set(m)
			}
		}
		code, r := s.once(w.path("other.sock"))
		if got := differences(r); code != 1 || !strings.HasPrefix(got, "CDS c1 content connect_timeout, CDS more extra, RDS ") {
			t.Errorf("exit code %d: %s", code, got)
		}
		w.stat("cluster_manager.cds.update_success", updates) // Envoy has got nothing of it
	})
}

// A listener that Envoy NACKs is no difference: it would be NACKed from an agent, too.
func TestAShadowSaysWhatEnvoyNACKs(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	s := newShadowed(w)
	w.serves("v1")
	taken, err := testbed.Listen(fmt.Sprintf("127.0.0.1:%d", w.freePort()), limit)
	w.check(err)
	defer func() { _ = taken.Close() }()
	port := w.port
	_, err = fmt.Sscanf(taken.Addr().String(), "127.0.0.1:%d", &w.port)
	w.check(err)
	w.cp.Set(w.mesh("c1")...)
	w.port = port
	w.check(testbed.Eventually(limit, func() error {
		dump, err := w.envoy.ConfigDump("")
		if err == nil && !strings.Contains(dump, "error_state") {
			err = fmt.Errorf("Envoy has NACKed nothing")
		}
		return err
	}))
	code, r := s.once(s.socket)
	if code != 0 || len(r.Rejected) != 1 || r.Rejected[0].Type != "LDS" || !strings.Contains(r.Rejected[0].Reason, "ddress") {
		t.Errorf("exit code %d, %s, rejected: %+v", code, differences(r), r.Rejected)
	}
}

// A shadow that runs on has metrics and a status, follows changes, and serves nobody.
func TestAShadowGoesOnComparing(t *testing.T) {
	w := newWorld(t, xdstest.SotW, xdstest.SotW)
	s := newShadowed(w)
	w.serves("v1")
	addr, health := "unix:"+w.path("shadow/admin.sock"), fmt.Sprintf("127.0.0.1:%d", w.freePort())
	p, err := testbed.Start("shadow", w.path("shadow.log"), holdfast(t), "shadow", "--envoy-admin", s.admin, "--upstream", "unix:"+s.socket,
		"--upstream-protocol", "sotw", "--admin", addr, "--health", health, "--interval", "1s", "--grace", "2s")
	w.check(err)
	t.Cleanup(p.Kill)
	metric := func(want string) {
		t.Helper()
		w.check(p.Wait(limit, func() error {
			_, body, err := testbed.Get("http://" + health + "/metrics")
			if err == nil && !strings.Contains(body, want+"\n") {
				err = fmt.Errorf("%s is not among\n%s", want, lines(body, "holdfast_shadow"))
			}
			return err
		}))
	}
	metric(`holdfast_shadow_compared{type="CDS"} 2`)
	metric(`holdfast_shadow_differences{kind="content",type="CDS"} 0`)
	_, body, err := testbed.Get("http://" + health + "/metrics")
	w.check(err)
	shown := 0
	for title, query := range w.dashboardQueries() {
		for _, name := range regexp.MustCompile(`holdfast_shadow_[a-z_]+`).FindAllString(query, -1) {
			shown++
			if !strings.Contains(body, "\n"+name) {
				t.Errorf("the panel %q shows %s, which is not there", title, name)
			}
		}
	}
	if shown < 5 {
		t.Errorf("the dashboard shows %d metrics of a shadow", shown)
	}
	w.check(p.Wait(limit, func() error {
		if status, body, err := testbed.Get("http://" + health + "/readyz"); err != nil || status != 200 {
			return fmt.Errorf("%v %d %s", err, status, body)
		}
		return nil
	}))
	w.cp.Set(&clusterv3.Cluster{Name: "more", ConnectTimeout: durationpb.New(time.Second)})
	metric(`holdfast_shadow_compared{type="CDS"} 3`)
	metric(`holdfast_shadow_settling 0`)
	if code, out := run(t, "status", "--admin", addr); code != 0 || !strings.Contains(out, "Envoy has what it would be served.") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	w.envoy.Kill()
	w.check(p.Wait(limit, func() error {
		if status, body, err := testbed.Get("http://" + health + "/readyz"); err != nil || status == 200 {
			return fmt.Errorf("ready although Envoy is gone: %v %d %s", err, status, body)
		}
		return nil
	}))
	w.envoy = w.runEnvoy(w.path("direct.json"), s.admin)
	metric(`holdfast_ready{condition="shadow"} 1`)
	w.check(p.Stop(limit))
}

// lines returns the lines of a text that begin with a word.
func lines(text, prefix string) (found string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			found += line
		}
	}
	return found
}
