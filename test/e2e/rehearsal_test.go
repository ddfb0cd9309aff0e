package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// rehearse returns the rehearsal of the running agent, and the exit code.
func (w *world) rehearse() (code int, r admin.Rehearsal) {
	w.Helper()
	code, out := run(w.T, "rehearse", "-o", "json", "--admin", "unix:"+w.path("admin.sock"))
	w.check(json.NewDecoder(strings.NewReader(out)).Decode(&r))
	return code, r
}

// What `holdfast rehearse` says while the control plane is there is what is when it is gone, and the agent and
// Envoy restart.
func TestARehearsalSaysWhatWouldBe(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		promised := func() (r admin.Rehearsal) {
			w.Helper()
			_, r = w.rehearse()
			w.cp.Stop()
			w.envoy.Kill()
			w.agent.Kill()
			w.runAgent()
			w.envoy = w.startEnvoy()
			w.says([]string{"dump", "--type", "LDS"}, `"ingress"`)
			_, again := w.rehearse()
			for kind, n := range r.Groups[0].Stored {
				if got := again.Groups[0].Served[kind]; got != n {
					w.Errorf("%d %s are served after the restart, and %d were promised", got, kind, n)
				}
			}
			return r
		}
		if code, r := w.rehearse(); code != 0 || r.Lost() || r.Groups[0].Stored["RDS"] != 1 {
			w.Fatalf("exit code %d: %+v", code, r)
		}
		promised()
		w.serves("v1")

		// A route with a password is not stored without a key.
		route := xdstest.Route("ingress", "c2")
		route.RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "authorization", Value: "Basic c2VjcmV0"}}}
		w.cp.Set(route)
		w.restartControlPlane()
		w.serves("v2")
		w.check(testbed.Eventually(limit, func() error {
			code, r := w.rehearse()
			if code != 1 || len(r.Losses) != 1 || r.Losses[0].After != "a restart of the agent" || r.Losses[0].What != "RDS ingress" || r.Groups[0].Stored["RDS"] != 0 {
				return fmt.Errorf("exit code %d: %+v", code, r)
			}
			return nil
		}))
		promised()
		if code, out := run(w.T, "rehearse", "--admin", "unix:"+w.path("admin.sock")); code != 1 || !strings.Contains(out, "RDS ingress") || strings.Contains(out, "c2VjcmV0") {
			w.Errorf("exit code %d:\n%s", code, out)
		}
	})
}

// live runs a live rehearsal.
func (w *world) live(d string) (code int, r admin.LiveRehearsal) {
	w.Helper()
	code, out := run(w.T, "rehearse", "--live", d, "-o", "json", "--admin", "unix:"+w.path("admin.sock"))
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil {
		w.Fatalf("exit code %d, %v:\n%s", code, err, out)
	}
	return code, r
}

// The agent is cut off from the control plane while requests go on: none fails, what the control plane changes
// meanwhile comes afterwards, and the control plane is put back whatever happens to the command.
func TestALiveRehearsalCutsTheControlPlaneOff(t *testing.T) {
	inAllForms(t, func(w *world) {
		bootstrap, envoyAdmin := w.bootstrap()
		w.startAgent("--envoy-admin", envoyAdmin)
		w.envoy = w.runEnvoy(bootstrap, envoyAdmin)
		w.serves("v1")
		traffic := testbed.StartTraffic(w.url, requestInterval)
		streams := func() int { now, _ := w.cp.Streams(); return now }
		rehearsed := make(chan struct{})
		go func() {
			defer close(rehearsed)
			code, r := w.live("2s")
			if code != 0 || r.Lost() || r.During == nil || r.During.Completed == 0 || r.During.Failed != 0 || r.After == nil || r.BackAfterSeconds < 0 || r.Seconds < 2 {
				w.Errorf("exit code %d: %+v", code, r)
			}
		}()
		w.check(testbed.Eventually(limit, func() error {
			if n := streams(); n != 0 {
				return fmt.Errorf("%d streams to the control plane", n)
			}
			return nil
		}))
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.says([]string{"status"}, "cut off by a rehearsal")
		if status, text, err := testbed.Get(w.url); err != nil || status != 200 || text != "v1" {
			w.Errorf("during the cut: %d %q %v", status, text, err)
		}
		<-rehearsed
		w.serves("v2")
		w.check(traffic.Stop())
		w.neverWaited()
		w.says([]string{"events"}, "rehearsal: the agent is cut off from its control planes", "rehearsal: the control planes are put back")

		if w.above != xdstest.Delta || w.below != xdstest.Delta {
			return // requests are counted for ten seconds before a long cut
		}
		// The command is interrupted.
		p, err := testbed.Start("rehearse", w.path("rehearse.log"), holdfast(w.T), "rehearse", "--live", "1h", "--admin", "unix:"+w.path("admin.sock"))
		w.check(err)
		w.Cleanup(p.Kill)
		w.check(testbed.Eventually(limit, func() error {
			if n := streams(); n != 0 {
				return fmt.Errorf("%d streams to the control plane", n)
			}
			return nil
		}))
		if code, out := run(w.T, "rehearse", "--live", "1s", "--admin", "unix:"+w.path("admin.sock")); code != 1 || !strings.Contains(out, "a rehearsal is under way already") {
			w.Errorf("exit code %d:\n%s", code, out)
		}
		p.Kill()
		w.cp.Set(xdstest.Route("ingress", "c1"))
		w.serves("v1")
		w.cp.Stop()
		w.says([]string{"status"}, "not connected for")
		if code, out := run(w.T, "rehearse", "--live", "1s", "--admin", "unix:"+w.path("admin.sock")); code != 1 || !strings.Contains(out, "this is no rehearsal, but an outage") {
			w.Errorf("exit code %d:\n%s", code, out)
		}
	})
}

// What would be lost in an outage is found.
func TestALiveRehearsalFindsWhatIsLost(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start("--ready-requires", "upstream")
	w.check(testbed.Eventually(limit, func() error {
		code, out := run(t, "rehearse", "--live", "1s", "--admin", "unix:"+w.path("admin.sock"))
		if code != 1 || !strings.Contains(out, "readiness: upstream: with --ready-requires upstream the pod is not ready") || !strings.Contains(out, "Requests were not counted") {
			return fmt.Errorf("exit code %d:\n%s", code, out)
		}
		return nil
	}))
	if code, out := run(t, "rehearse", "--live", "2h", "--admin", "unix:"+w.path("admin.sock")); code != 2 || !strings.Contains(out, "--live: 2h0m0s: want a duration from 1s to 1h0m0s") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// withAccessLog returns the listener "ingress" with an access log in a file.
func withAccessLog(port int, path string) *listenerv3.Listener {
	l := xdstest.Listener("ingress", uint32(port), "ingress")
	filter := l.FilterChains[0].Filters[0]
	manager := &hcmv3.HttpConnectionManager{}
	if err := filter.GetTypedConfig().UnmarshalTo(manager); err != nil {
		panic(err) // it was just made
	}
	manager.AccessLog = []*accesslogv3.AccessLog{{
		Name: "file", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: xdstest.Pack(&filev3.FileAccessLog{Path: path})},
	}, {
		Name: "stdout", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: xdstest.Pack(&streamv3.StdoutAccessLog{})},
	}}
	manager.AccessLogOptions = &hcmv3.HttpConnectionManager_HcmAccessLogOptions{AccessLogFlushInterval: durationpb.New(time.Second)}
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(manager)}
	return l
}

// A second agent on a copy of the state, and a second Envoy, have what the running ones have; nothing else notices
// them, and what the state lacks is found.
func TestAProof(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can have a network and mounts of its own")
	}
	inAllForms(t, func(w *world) {
		log := w.path("access.log")
		w.cp.Set(withAccessLog(w.port, log))
		bootstrap, envoyAdmin := w.bootstrap()
		w.startAgent("--state-dir", w.path("state"), "--envoy-admin", envoyAdmin)
		w.envoy = w.runEnvoy(bootstrap, envoyAdmin)
		w.serves("v1")
		w.saved()
		w.check(os.Mkdir(w.path("tmp"), 0o700))
		prove := func() (code int, out string) {
			return runWith(w.T, []string{"TMPDIR=" + w.path("tmp")}, "rehearse", "--prove", "--envoy", envoytest.Binary(w.T), "--state-dir", w.path("state"),
				"--socket", w.path("xds.sock"), "--bootstrap", bootstrap, "--admin", "unix:"+w.path("admin.sock"))
		}
		_, before := w.cp.Streams()
		code, out := prove()
		if code != 0 || !strings.Contains(out, "The second Envoy has what the running one has.") ||
			!strings.Contains(out, "CDS: 2 compared") || !strings.Contains(out, "EDS: 2 compared") || !strings.Contains(out, "LDS: 1 compared") || !strings.Contains(out, "RDS: 1 compared") {
			w.Fatalf("exit code %d:\n%s", code, out)
		}
		if _, ever := w.cp.Streams(); ever != before {
			w.Errorf("the control plane was asked %d times", ever-before)
		}
		w.serves("v1")
		w.check(testbed.Eventually(limit, func() error { // Envoy writes it every ten seconds, if it is short
			if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "GET") {
				return fmt.Errorf("the access log of the running Envoy: %q, %v", text, err)
			}
			return nil
		}))
		left, err := filepath.Glob(w.path("tmp/holdfast-proof-*"))
		if err != nil || len(left) > 0 {
			w.Errorf("left behind: %v, %v", left, err)
		}
		w.says([]string{"events"}, "rehearsal: a proof was made")

		if w.above != xdstest.Delta || w.below != xdstest.Delta {
			return // the second Envoy waits for its first answer for 15 s
		}
		// A route with a password is not stored without a key.
		route := xdstest.Route("ingress", "c2")
		route.RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "authorization", Value: "Basic c2VjcmV0"}}}
		w.cp.Set(route)
		w.serves("v2")
		code, out = prove()
		if code != 1 || strings.Contains(out, "CDS c1") || !strings.Contains(out, "RDS ingress: the second Envoy does not have it") || strings.Contains(out, "c2VjcmV0") {
			w.Errorf("exit code %d:\n%s", code, out)
		}
	})
}
