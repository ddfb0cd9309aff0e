package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// does runs a command against the agent, which must succeed.
func (w *world) does(args ...string) (out string) {
	w.Helper()
	code, out := run(w.T, append(args, "--admin", "unix:"+w.path("admin.sock"))...)
	if code != 0 {
		w.Fatalf("holdfast %q exits with %d:\n%s", args, code, out)
	}
	return out
}

// says waits until the output of a command has all texts.
func (w *world) says(args []string, texts ...string) {
	w.Helper()
	w.check(testbed.Eventually(limit, func() error {
		_, out := run(w.T, append(args, "--admin", "unix:"+w.path("admin.sock"))...)
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("holdfast %q lacks %q:\n%s", args, text, out)
			}
		}
		return nil
	}))
}

// group returns what the status says of the one client group. An agent that was
// just started has none before Envoy opens a stream again.
func (w *world) group() (group admin.Group) {
	w.Helper()
	w.check(testbed.Eventually(limit, func() error {
		status, err := w.status()
		if err == nil && len(status.Groups) != 1 {
			err = fmt.Errorf("%d groups", len(status.Groups))
		}
		if err == nil {
			group = status.Groups[0]
		}
		return err
	}))
	return group
}

// frozen returns what the status says of the freeze; nil for nothing.
func (w *world) frozen() *admin.Freeze {
	w.Helper()
	return w.group().Freeze
}

// nacked waits until the control plane got a NACK of a type with a reason.
func (w *world) nacked(typeURL, reason string) {
	w.Helper()
	w.asked("of the NACK: "+reason, func(e xdstest.Event) bool {
		return e.Kind == xdstest.Nack && e.Type == typeURL && strings.Contains(e.Error.GetMessage(), reason)
	})
}

func TestAFreezeServesWhatWasServed(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		out := w.does("freeze", "--reason", "incident 4711", "--for", "1h")
		if !strings.Contains(out, `node "e2e": frozen since 20`) || !strings.Contains(out, "incident 4711; everything but endpoints and secrets; 0 changes wait") {
			w.Errorf("freeze says\n%s", out)
		}
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.nacked(xds.RouteType, "frozen: incident 4711")
		w.cp.Remove(xds.ClusterType, "c1")
		w.nacked(xds.ClusterType, "frozen: incident 4711")
		w.cp.Remove(xds.EndpointType, "c1")
		w.says([]string{"status"}, "incident 4711", " changes wait", "`holdfast resume --admin unix:")
		w.says([]string{"diff", "RDS/ingress", "served", "held"}, "cluster: c1", "cluster: c2")
		w.says([]string{"explain", "CDS/c1"}, "frozen: the control plane removed it, and clients get version")
		// Endpoints go on.
		w.cp.Set(xdstest.CLA("c2-endpoints", w.v2.Addr, w.v2.Addr))
		w.says([]string{"dump", "--type", "EDS"}, `"accepted"`)
		w.serves("v1")

		w.agent.Kill()
		w.runAgent()
		w.serves("v1")
		w.check(testbed.Eventually(limit, func() error {
			if f := w.frozen(); f == nil || f.Reason != "incident 4711" || f.Waiting["RDS"] != 1 || f.Waiting["CDS"] != 1 {
				return fmt.Errorf("after the restart it is frozen as %+v", f)
			}
			return nil
		}))
		w.check(traffic.Stop())
		w.envoy.Kill()
		w.envoy = w.startEnvoy()
		w.serves("v1")
		w.neverWaited()

		// Offline, too.
		w.cp.Stop()
		w.agent.Kill()
		w.envoy.Kill()
		w.runAgent()
		w.envoy = w.startEnvoy()
		w.serves("v1")
		w.restartControlPlane()
		w.check(testbed.Eventually(limit, func() error {
			if f := w.frozen(); f == nil || f.Waiting["RDS"] != 1 {
				return fmt.Errorf("frozen: %+v", f)
			}
			return nil
		}))
		w.serves("v1")

		traffic = testbed.StartTraffic(w.url, requestInterval)
		if out := w.does("resume"); !strings.Contains(out, "the freeze of ") || !strings.Contains(out, "has ended: 2 changes of the control plane are served now") {
			t.Errorf("resume says\n%s", out)
		}
		w.serves("v2")
		w.check(traffic.Stop())
		if f := w.frozen(); f != nil {
			w.Errorf("it is still frozen: %+v", f)
		}
		w.stat("cluster_manager.active_clusters", 2) // c2 and that of the agent
		w.neverWaited()
	})
}

// A change is bad, and the agent is killed as soon as Envoy has accepted it: what was before it is on disk by then, though
// other former contents were written a moment before.
func TestARollbackAfterTheAgentWasKilled(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		w.saved()
		good := time.Now().UTC().Format(time.RFC3339Nano)
		accepted := func(name, text string) { w.says([]string{"diff", name, "previous", "accepted"}, text) }
		c1 := xdstest.Cluster("c1", "")
		c1.AltStatName = "changed"
		w.cp.Set(c1)
		accepted("CDS/c1", "alt_stat_name: changed")
		w.cp.Set(xdstest.Route("ingress", "c2"))
		accepted("RDS/ingress", "cluster: c2")
		w.agent.Kill()
		w.runAgent()
		w.group()
		out := w.does("rollback", "--to", good, "--reason", "bad route")
		if !strings.Contains(out, "RDS/ingress") || !strings.Contains(out, "CDS/c1") {
			t.Errorf("rollback says\n%s", out)
		}
		w.serves("v1")
		if out := w.does("resume"); !strings.Contains(out, "the rollback of ") || !strings.Contains(out, "(bad route) has ended") {
			t.Errorf("resume says\n%s", out)
		}
		w.serves("v2")
	})
}

var version = regexp.MustCompile(`\s([0-9a-f]{16})\s`)

func TestARollbackServesWhatWasAccepted(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.serves("v2")
		w.says([]string{"dump", "--type", "RDS"}, `"accepted"`)
		good := time.Now().UTC().Format(time.RFC3339Nano)
		w.cp.Set(xdstest.Route("ingress", "gone"), xdstest.Cluster("c3", ""), xdstest.CLA("c3", w.v1.Addr))
		w.answers(w.url, http.StatusServiceUnavailable)
		w.says([]string{"status"}, "RDS ingress leads to the cluster gone")

		w.says([]string{"history", "RDS/ingress"}, "before 20", "now")
		w.says([]string{"diff", "RDS/ingress"}, "RDS/ingress previous (", "cluster: c2", "cluster: gone")
		w.says([]string{"diff", "--since", "10m"}, "cluster: gone")
		w.says([]string{"rollback", "--dry-run", "--to", good}, "would be rolled back to", "RDS/ingress")
		out := w.does("rollback", "--to", good, "--reason", "bad route")
		if !strings.Contains(out, "RDS/ingress") || !strings.Contains(out, "It is frozen") {
			w.Errorf("rollback says\n%s", out)
		}
		w.serves("v2")
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.cp.Set(xdstest.Route("ingress", "gone-too"))
		w.nacked(xds.RouteType, "frozen: bad route")
		w.says([]string{"status"}, "rolled back to 20", "bad route")
		w.agent.Kill()
		w.runAgent()
		w.says([]string{"status"}, "rolled back to 20", "bad route")
		w.check(traffic.Stop())
		w.envoy.Kill()
		w.envoy = w.startEnvoy()
		w.serves("v2")

		// To a version, on top of it.
		versions := version.FindAllStringSubmatch(w.does("history", "RDS/ingress"), -1)
		if len(versions) < 3 {
			w.Fatalf("versions %q", versions)
		}
		w.does("rollback", "RDS/ingress", "--to", versions[0][1])
		w.serves("v1")

		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.does("resume")
		w.serves("v2")
		w.neverWaited()
	})
}

// The last change is what somebody wants to be rid of at night.
func TestARollbackWithoutATimeIsToBeforeTheLastChange(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start()
	w.cp.Set(xdstest.Route("ingress", "c2"))
	w.serves("v2")
	time.Sleep(6 * time.Second) // what is accepted within 5 s is one change
	w.cp.Set(xdstest.Route("ingress", "gone"))
	w.answers(w.url, http.StatusServiceUnavailable)
	w.does("rollback")
	w.serves("v2")
	w.does("rollback") // one further back
	w.serves("v1")
	w.does("resume")
	w.answers(w.url, http.StatusServiceUnavailable)
}

func TestCommandsSayWhatIsWrong(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start("--history-bytes", "0")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"resume"}, "nothing is frozen or held back after crashes of Envoy"},
		{[]string{"freeze", "XDS"}, `unknown type "XDS": want CDS, EDS`},
		{[]string{"freeze", "--reason", strings.Repeat("x", 300)}, "want at most 200"},
		{[]string{"freeze", "--reason", "a\nb"}, "control characters"},
		{[]string{"freeze", "--for", "-1s"}, "0 or a positive duration"},
		{[]string{"rollback"}, "no change of what clients accepted is recorded"},
		{[]string{"rollback", "--to", "yesterday"}, `"yesterday": want a time such as 2026`},
		{[]string{"rollback", "--to", "2100-01-01T00:00:00Z"}, "it is in the future"},
		{[]string{"rollback", "--to", "1h"}, "nothing was rolled back, because something is missing"},
		{[]string{"rollback", "RDS"}, `"RDS" has no name`},
		{[]string{"rollback", "RDS/ingress", "--to", "0123456789abcdef"}, "it has no version 0123456789abcdef"},
		{[]string{"rollback", "RDS/other", "--to", "0123456789abcdef"}, "nothing to roll back"},
		{[]string{"diff"}, "want TYPE/NAME [A [B]] or --since"},
		{[]string{"diff", "RDS/other"}, "there is no RDS/other"},
		{[]string{"diff", "RDS/ingress", "nonsense"}, `"nonsense" is neither one of served, held`},
		{[]string{"diff", "RDS/ingress", "stored"}, "the agent has no --state-dir"},
		{[]string{"diff", "RDS/ingress", "--since", "1h"}, "not both"},
		{[]string{"history", "RDS/ingress", "x"}, "2 arguments are too many"},
		{[]string{"history", "--since", "x"}, `--since "x": want a time`},
	} {
		code, out := run(t, append(tc.args, "--admin", "unix:"+w.path("admin.sock"))...)
		if code == 0 || !strings.Contains(out, tc.want) {
			t.Errorf("%q exits with %d and says\n%s\nwant %s", tc.args, code, out, tc.want)
		}
	}
	w.does("freeze", "RDS")
	if code, out := run(t, "freeze", "--admin", "unix:"+w.path("admin.sock")); code != 1 || !strings.Contains(out, "it is frozen already") {
		t.Errorf("a second freeze exits with %d and says\n%s", code, out)
	}
	w.cp.Set(xdstest.Route("ingress", "c2"))
	w.nacked(xds.RouteType, "frozen since 20")
	w.serves("v1")
}
