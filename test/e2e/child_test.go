package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// loadInterval is between two requests of one connection; with loadConnections they
// make 200 requests a second.
const (
	loadInterval    = 40 * time.Millisecond
	loadConnections = 8
)

// startWithChild starts an agent that runs Envoy, and waits until the mesh is served.
func (w *world) startWithChild(extra ...string) {
	w.Helper()
	file, adminAddr := w.bootstrap()
	args := append([]string{"--bootstrap", file, "--drain-min", "0s", "--drain-timeout", "5s"}, extra...)
	w.startAgentOf(args, "--", envoytest.Binary(w.T), "-c", file, "-l", "info")
	w.envoy = &testbed.Envoy{Process: w.agent, Admin: adminAddr}
	w.serves("v1")
}

// startAgentOf starts holdfast without saying who Envoy is: the bootstrap does.
func (w *world) startAgentOf(args []string, child ...string) {
	w.Helper()
	w.agentArgs = slices.Concat([]string{holdfast(w.T), "run",
		"--upstream", w.cpAddr, "--upstream-plaintext", "--upstream-protocol", string(w.above),
		"--socket", w.path("xds.sock"), "--admin", "unix:" + w.path("admin.sock"), "--health", "",
	}, args, child)
	w.runAgent()
}

// child returns what the agent says of its Envoy.
func (w *world) child() envoy.Status {
	w.Helper()
	status, err := w.client().Status(w.Context())
	w.check(err)
	if status.Envoy == nil {
		w.Fatal("the agent runs no Envoy")
	}
	return *status.Envoy
}

func (w *world) client() admin.Client { return admin.Client{Addr: "unix:" + w.path("admin.sock")} }

// alive waits until the child is another process than one, and serves.
func (w *world) alive(not int) envoy.Status {
	w.Helper()
	var e envoy.Status
	w.check(w.agent.Wait(limit, func() error {
		if e = w.child(); e.PID == 0 || e.PID == not || e.State != "LIVE" {
			return fmt.Errorf("Envoy: %+v", e)
		}
		return nil
	}))
	return e
}

// ended waits until the agent has ended, and returns its code.
func (w *world) ended() int {
	w.Helper()
	select {
	case <-w.agent.Exited():
	case <-time.After(limit):
		w.Fatalf("the agent does not end:\n%s", w.agent.Tail(30))
	}
	exit, ok := errors.AsType[*exec.ExitError](w.agent.Err())
	if w.agent.Err() != nil && !ok {
		w.Fatal(w.agent.Err())
	}
	if !ok {
		return 0
	}
	return exit.ExitCode()
}

// runNextAgent starts an agent that takes over, and waits until the one before has
// ended, as it should.
func (w *world) runNextAgent() {
	w.Helper()
	old := w.agent
	w.runAgent()
	select {
	case <-old.Exited():
	case <-time.After(limit):
		w.Fatalf("the old agent does not end:\n%s", old.Tail(20))
	}
	if old.Err() != nil {
		w.Errorf("the old agent ended with %v:\n%s", old.Err(), old.Tail(20))
	}
}

// gone fails if a process is still there.
func (w *world) gone(pid int) {
	w.Helper()
	w.check(testbed.Eventually(limit, func() error {
		if err := syscall.Kill(pid, 0); err == nil {
			return fmt.Errorf("process %d is still there", pid)
		}
		return nil
	}))
}

// Requests fail while no Envoy runs, and only then: what is in flight, and what comes
// within the pause, which is a second when it crashes again and again.
func TestAKilledEnvoyIsStartedAgainTwentyTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.startWithChild()
	w.cp.Stop() // it is not needed for that
	load := testbed.StartLoad(w.url, loadInterval, loadConnections)
	var took []time.Duration
	pid := w.alive(0).PID
	times := testbed.Times(20, 5)
	for range times {
		killed := time.Now()
		w.check(syscall.Kill(pid, syscall.SIGKILL))
		pid = w.alive(pid).PID
		w.serves("v1")
		took = append(took, time.Since(killed))
	}
	sent, failed := load.Sent(), load.Failed()
	load.Wait(sent + 100)
	if err := load.Stop(); load.Failed() > failed+loadConnections {
		t.Errorf("requests fail after the last crash: %v", err)
	}
	t.Logf("%d of %d requests failed while %d Envoys in a row were killed", failed, sent, times)
	if e := w.child(); e.Restarts != times || e.LastExit != 128+int(syscall.SIGKILL) {
		t.Errorf("%+v", e)
	}
	slices.Sort(took)
	t.Logf("from SIGKILL to the first answer: median %s, longest %s", took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
}

func TestTheAgentEndsWithEnvoysCode(t *testing.T) {
	for _, tc := range []struct {
		name string
		flag string
		end  func(w *world, pid int)
		code int
	}{
		{"killed", "exit", func(w *world, pid int) { w.check(syscall.Kill(pid, syscall.SIGKILL)) }, 137},
		{"asked to quit, which is no crash", "restart", func(w *world, _ int) {
			_, _, err := testbed.Post("http://" + w.envoy.Admin + "/quitquitquit")
			w.check(err)
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, xdstest.SotW, xdstest.Delta)
			w.startWithChild("--on-envoy-exit", tc.flag)
			tc.end(w, w.alive(0).PID)
			if code := w.ended(); code != tc.code {
				t.Errorf("the agent ended with code %d, want %d\n%s", code, tc.code, w.agent.Tail(10))
			}
		})
	}
}

func TestAnAgentThatIsKilledLeavesNoEnvoyBehind(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.SotW)
	w.startWithChild()
	pid := w.alive(0).PID
	w.agent.Kill()
	w.gone(pid)
}

// Whoever balances load stops when the agent is not ready any more, as the endpoints of a
// Service follow readiness; until then, and a while longer, every request is answered.
func TestAGracefulEndFailsNoRequest(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		begin func(w *world)
	}{
		{"SIGTERM", func(w *world) { w.check(w.agent.Signal(syscall.SIGTERM)) }},
		{"drain, then SIGTERM", func(w *world) {
			go func() {
				_ = w.client().Do(w.Context(), "drain")
				_ = w.agent.Signal(syscall.SIGTERM)
			}()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, xdstest.Delta, xdstest.Delta)
			w.startWithChild("--drain-min", "3s", "--drain-timeout", "15s")
			pid := w.alive(0).PID
			load := testbed.StartLoad(w.url, loadInterval, loadConnections)
			load.Wait(200)
			began := time.Now()
			tc.begin(w)
			w.check(testbed.Eventually(limit, func() error {
				if missing, err := w.client().Ready(w.Context()); err != nil || !strings.Contains(missing, "draining") {
					return fmt.Errorf("%q, %v", missing, err)
				}
				return nil
			}))
			atNotReady := load.Sent()
			load.Wait(atNotReady + 300) // a second and a half longer
			if err := load.Stop(); err != nil {
				t.Error(err)
			}
			if code := w.ended(); code != 0 {
				t.Errorf("the agent ended with code %d\n%s", code, w.agent.Tail(10))
			}
			w.gone(pid)
			if log := w.log(); !strings.Contains(log, "Envoy drain complete") {
				t.Errorf("not drained:\n%s", w.agent.Tail(20))
			}
			t.Logf("%d requests, %d of them after the agent was not ready; the end took %s", load.Sent(), load.Sent()-atNotReady, time.Since(began).Round(100*time.Millisecond))
		})
	}
}

func (w *world) log() string {
	w.Helper()
	b, err := os.ReadFile(w.agent.Log)
	w.check(err)
	return string(b)
}

// Connections that stay open hold the end up until the timeout, and a second signal ends
// it at once.
func TestASecondSignalEndsADrainAtOnce(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.startWithChild("--drain-min", "1m", "--drain-timeout", "5m")
	pid := w.alive(0).PID
	w.check(w.agent.Signal(syscall.SIGTERM))
	w.check(testbed.Eventually(limit, func() error {
		if !strings.Contains(w.log(), "Envoy drain started") {
			return errors.New("it does not drain")
		}
		return nil
	}))
	w.check(w.agent.Signal(syscall.SIGTERM))
	w.ended()
	w.gone(pid)
}

func TestAHotRestartFailsNoRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.startWithChild("--drain-timeout", "2s")
	load := testbed.StartLoad(w.url, loadInterval, loadConnections)
	pid := w.alive(0).PID
	for epoch := 1; epoch <= 3; epoch++ {
		w.check(w.client().Do(t.Context(), "hot-restart"))
		e := w.alive(pid)
		if e.Epoch != epoch || e.Restarts != 0 {
			t.Errorf("%+v, want epoch %d", e, epoch)
		}
		old := pid
		pid = e.PID
		load.Wait(load.Sent() + 200)
		w.gone(old) // when it has drained
	}
	w.cp.Set(xdstest.Route("ingress", "c2"))
	w.serves("v2")
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests", load.Sent())
}

// An Envoy that cannot start takes nothing from the one that runs.
func TestAHotRestartThatFailsLeavesTheOldEnvoy(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.startWithChild()
	pid := w.alive(0).PID
	file := w.agentArgs[len(w.agentArgs)-3]
	good, err := os.ReadFile(file)
	w.check(err)
	w.check(os.WriteFile(file, []byte("{\"rubbish\": 1}"), 0o600))
	if err := w.client().Do(t.Context(), "hot-restart"); err == nil || !strings.Contains(err.Error(), "the old one keeps running") {
		t.Errorf("%v", err)
	}
	if e := w.child(); e.Restarts != 0 {
		t.Errorf("%+v", e)
	}
	w.serves("v1")
	w.check(syscall.Kill(pid, 0))
	w.check(os.WriteFile(file, good, 0o600))
}

// The next version of the agent takes over while requests flow and Envoy, in a process
// of its own, goes on.
func TestAnAgentTakesOverFromAnotherAndEnvoyLosesNothing(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start("--state-dir", w.path("state"))
	load := testbed.StartLoad(w.url, loadInterval, loadConnections)
	removed := w.value("listener_manager.listener_removed") + w.value("cluster_manager.cluster_removed")
	modified := w.value("listener_manager.listener_modified") + w.value("cluster_manager.cluster_modified")
	for range 5 {
		w.agentArgs = append(slices.DeleteFunc(slices.Clone(w.agentArgs), func(arg string) bool { return arg == "--takeover" }), "--takeover")
		w.runNextAgent()
		w.check(w.agent.Wait(limit, func() error {
			if missing, err := w.client().Ready(t.Context()); err != nil || missing != "" {
				return fmt.Errorf("%q, %v", missing, err)
			}
			return nil
		}))
		w.stat("control_plane.connected_state", 1)
		load.Wait(load.Sent() + 200)
	}
	if got := w.value("listener_manager.listener_removed") + w.value("cluster_manager.cluster_removed"); got != removed {
		t.Errorf("%d removed", got-removed)
	}
	if got := w.value("listener_manager.listener_modified") + w.value("cluster_manager.cluster_modified"); got != modified {
		t.Errorf("%d modified", got-modified)
	}
	w.cp.Set(xdstest.Route("ingress", "c2"))
	w.serves("v2")
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	// Without --takeover a second one is refused.
	args := slices.DeleteFunc(slices.Clone(w.agentArgs), func(arg string) bool { return arg == "--takeover" })
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another holdfast") {
		t.Errorf("a second agent: %v\n%s", err, out)
	}
	t.Logf("%d requests", load.Sent())
}

// Nothing can be asked of a control plane, so that all that the next agent has is what the
// one before left: its state, whole, and every address.
func TestATakeoverWithoutAControlPlaneKeepsEverything(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	health, rest := fmt.Sprintf("127.0.0.1:%d", w.freePort()), fmt.Sprintf("127.0.0.1:%d", w.freePort())
	w.start("--state-dir", w.path("state"), "--rest", rest)
	w.agentArgs = append(w.agentArgs, "--health", health, "--takeover") // from one without --health, then with
	w.saved()
	w.cp.Stop()
	for range 3 {
		w.runNextAgent()
		w.check(w.agent.Wait(limit, func() error {
			status, body, err := testbed.Get("http://" + health + "/readyz")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("%d %s", status, body)
			}
			return err
		}))
		w.check(w.agent.Wait(limit, func() error { return testbed.Dial("tcp", rest) }))
		status, err := w.client().Status(t.Context())
		w.check(err)
		if s, group := status.Storage, w.group(); s == nil || !s.Durable || len(s.Aside) > 0 || group.Restored == 0 {
			t.Errorf("state %+v, %d restored", s, group.Restored)
		}
	}
	w.envoy.Kill()
	w.envoy = w.startEnvoy()
	w.serves("v1")
}

// A configuration that kills Envoy as soon as it is read: the agent serves what Envoy
// lived with, which takes a minute to count as stable.
func TestAConfigurationThatKillsEnvoyIsReplacedByTheStableOne(t *testing.T) {
	testbed.Long(t)
	t.Parallel()
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.startWithChild("--state-dir", w.path("state"))
	stable := time.Now().Add(70 * time.Second)
	w.check(w.agent.Wait(100*time.Second, func() error {
		if time.Now().Before(stable) {
			return errors.New("nothing is stable yet")
		}
		return nil
	}))
	w.cp.Set(w.deadly())
	w.check(w.agent.Wait(60*time.Second, func() error {
		if e := w.child(); e.Restarts < 3 || e.State != "LIVE" {
			return fmt.Errorf("Envoy: %+v", e)
		}
		return nil
	}))
	w.serves("v1")
	if !strings.Contains(w.log(), "the last stable configuration is served") {
		t.Error(w.agent.Tail(20))
	}
	w.fallenBack()
	// An agent that starts again does not feed it to the next Envoy.
	w.agent.Kill()
	w.runAgent()
	w.envoy = &testbed.Envoy{Process: w.agent, Admin: w.envoy.Admin}
	w.serves("v1")
	w.fallenBack()
	if e := w.child(); e.Restarts != 0 {
		t.Errorf("Envoy: %+v\n%s", e, w.agent.Tail(20))
	}
	// The next change gets a chance.
	w.cp.Set(w.mesh("c2")...)
	w.cp.Remove(xds.ListenerType, "deadly")
	w.serves("v2")
}

// fallenBack checks that something is held back.
func (w *world) fallenBack() {
	w.Helper()
	if group := w.group(); group.Fallback == nil {
		b, _ := json.Marshal(group)
		w.Errorf("nothing is held back: %s\n%s", b, w.agent.Tail(20))
	}
}

// deadly is a listener whose Lua code ends the process that reads it.
func (w *world) deadly() *listenerv3.Listener {
	return w.makeDeadly(xdstest.Listener("deadly", uint32(w.freePort()), "ingress"))
}

func (w *world) makeDeadly(l *listenerv3.Listener) *listenerv3.Listener {
	var hcm hcmv3.HttpConnectionManager
	filter := l.GetFilterChains()[0].GetFilters()[0]
	w.check(filter.GetTypedConfig().UnmarshalTo(&hcm))
	hcm.HttpFilters = append([]*hcmv3.HttpFilter{{
		Name: "deadly", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: xdstest.Pack(&luav3.Lua{
			DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "os.exit(7)"}},
		})},
	}}, hcm.HttpFilters...)
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(&hcm)}
	return l
}

// The agent runs Envoy when there is something to serve, not before; and it does not
// wait for ever.
func TestEnvoyIsStartedWhenThereIsSomethingToServe(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.cp.Stop()
	file, adminAddr := w.bootstrap()
	w.startAgentOf([]string{"--bootstrap", file, "--start-after", "10m", "--drain-min", "0s"}, "--", envoytest.Binary(t), "-c", file)
	w.check(w.agent.Wait(limit, func() error {
		if missing, err := w.client().Ready(t.Context()); err != nil || !strings.Contains(missing, "envoy: not started yet") {
			return fmt.Errorf("%q, %v", missing, err)
		}
		return nil
	}))
	w.restartControlPlane()
	w.envoy = &testbed.Envoy{Process: w.agent, Admin: adminAddr}
	w.serves("v1")
	w.check(w.client().Do(t.Context(), "drain"))
	if status, _, err := testbed.Get("http://" + adminAddr + "/ready"); err != nil || status == http.StatusOK {
		t.Errorf("Envoy is ready after a drain: %d, %v", status, err)
	}
}

// The control plane may hold a TLS key.
func TestTheControlPlaneGivesUpWhatItHasNoNeedOf(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	socket := w.path("cp.sock")
	p, err := testbed.Start("control plane", w.path("cp.log"), holdfast(t), "controlplane", "--dir", t.TempDir(), "--listen", "unix:"+socket)
	w.check(err)
	t.Cleanup(p.Kill)
	w.check(p.Wait(limit, func() error { return testbed.Dial("unix", socket) }))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	w.check(err)
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.PID()))
	w.check(err)
	if !strings.Contains(string(limits), "Max core file size        0                    0") {
		t.Errorf("it may dump its core:\n%s", limits)
	}
	for _, want := range []string{"\nUmask:\t0077\n", "\nNoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("no %q:\n%s", want, status)
		}
	}
}

// A file that cannot be read is no reason not to end.
func TestAFileOfTLSThatIsAPipeHoldsNothingUp(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	pipe := w.path("pipe")
	w.check(syscall.Mkfifo(pipe, 0o600))
	for _, flag := range []string{"--upstream-ca=" + pipe, "--upstream-ca=/dev/zero", "--upstream-token-file=" + pipe} {
		w.startAgentWith("--upstream-plaintext", flag)
		w.check(w.agent.Wait(limit, func() error {
			s, err := w.client().Status(t.Context())
			if err != nil {
				return err
			}
			if len(s.Groups) == 0 || len(s.Groups[0].Upstreams) == 0 || !strings.Contains(s.Groups[0].Upstreams[0].LastError, "name a regular file") {
				return fmt.Errorf("%+v", s.Groups)
			}
			return nil
		}))
		w.check(w.agent.Stop(5 * time.Second))
	}
}

// Core dumps would hold keys; an Envoy that the agent runs has no more than it.
func TestTheAgentAndItsEnvoyGiveUpWhatTheyHaveNoNeedOf(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.startWithChild()
	for name, pid := range map[string]int{"the agent": w.agent.PID(), "Envoy": w.alive(0).PID} {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		w.check(err)
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		w.check(err)
		for text, want := range map[string]string{string(status): "\nUmask:\t0077\n", string(limits): "Max core file size        0                    0"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q:\n%s", name, want, text)
			}
		}
		if !strings.Contains(string(status), "\nNoNewPrivs:\t1\n") {
			t.Errorf("%s may get new privileges", name)
		}
	}
	// Others could put another socket, or a state, in place of the agent's.
	open := w.path("open")
	w.check(os.Mkdir(open, 0o700))
	w.check(os.Chmod(open, 0o777))
	if code, out := run(t, "run", "--upstream", "127.0.0.1:1", "--upstream-plaintext", "--socket", open+"/x.sock", "--admin", "", "--health", ""); code != 1 || !strings.Contains(out, "others may write to") {
		t.Errorf("%d %s", code, out)
	}
}
