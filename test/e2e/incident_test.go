package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// story runs commands and writes down what they print.
type story struct {
	*world
	text bytes.Buffer
}

func (s *story) tell(format string, args ...any) { fmt.Fprintf(&s.text, format, args...) }

// run runs a command, which must succeed, and returns what it prints.
func (s *story) run(args ...string) string {
	s.Helper()
	cmd := exec.Command(holdfast(s.T), args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "HOLDFAST_") }),
		"HOLDFAST_ADMIN=unix:"+s.path("admin.sock"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("%q: %v\n%s", args, err, out)
	}
	text := strings.ReplaceAll(string(out), " --admin unix:"+s.path("admin.sock"), "")
	text = strings.ReplaceAll(text, s.dir, "/var/lib")
	for i, arg := range args {
		if strings.ContainsAny(arg, " ") {
			args[i] = "'" + arg + "'"
		}
	}
	s.tell("```console\n$ holdfast %s\n%s```\n\n", strings.Join(args, " "), text)
	return text
}

func (s *story) runs(texts []string, args ...string) {
	s.Helper()
	s.check(inOrder(s.run(args...), texts...))
}

// commands returns the commands of a document.
func commands(text string) (out []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "$ ") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// TestAnIncident is the story of docs/incident.md: a bad change at night, and the morning after. With
// UPDATE_INCIDENT=1 it writes the document.
func TestAnIncident(t *testing.T) {
	s := &story{world: newWorld(t, xdstest.Delta, xdstest.Delta)}
	s.start("--state-dir", s.path("state"), "--log-level", "info")
	s.does("status")            // the agent answers
	time.Sleep(6 * time.Second) // what is accepted within 5 s is one change

	s.cp.Set(xdstest.Route("ingress", "c3"))
	s.answers(s.url, http.StatusServiceUnavailable)
	began := time.Now()
	s.says([]string{"status"}, "RDS ingress leads to the cluster c3")
	s.tell("## At night\n\nRequests fail with 503. What is wrong?\n\n")
	s.runs([]string{"Problems", "RDS ingress leads to the cluster c3, which the control plane did not send"}, "status")
	s.tell("A route leads to a cluster that is not there. Is that what happens to a request?\n\n")
	s.runs([]string{"→ 503: the cluster c3 is not known"}, "explain", fmt.Sprintf("127.0.0.1:%d/", s.port))
	s.tell("What changed in the route?\n\n")
	s.runs([]string{"-", "cluster: c1", "+", "cluster: c3"}, "diff", "RDS/ingress")
	s.tell("Back to what Envoy had accepted before that change. `--dry-run` shows it first; nothing is missing, so it can be done.\n\n")
	s.runs([]string{"RDS/ingress"}, "rollback", "--dry-run")
	s.runs([]string{"RDS/ingress", "It is frozen"}, "rollback", "--reason", "incident 4711: bad route")
	s.serves("v1")
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	traffic := testbed.StartTraffic(s.url, requestInterval)
	s.cp.Set(xdstest.Route("ingress", "c4"))
	s.nacked(xds.RouteType, "frozen: incident 4711: bad route")
	s.tell("From now on no request fails, whatever the control plane sends. It is told so: each change gets a NACK with the reason, which\n`holdfast-mesh proxies`, `istioctl proxy-status` and the control plane's log show. The agent and Envoy may restart.\n\n")
	s.agent.Kill()
	s.runAgent()
	s.check(testbed.Eventually(limit, func() error {
		if f := s.frozen(); f == nil || f.Waiting["RDS"] != 1 {
			return fmt.Errorf("frozen: %+v", f)
		}
		return nil
	}))
	s.runs([]string{"rolled back to 20", "incident 4711: bad route", "1 change waits"}, "status")

	s.tell("## In the morning\n\nThe control plane has been repaired. What would Envoy get?\n\n")
	s.cp.Set(xdstest.Route("ingress", "c2"))
	s.check(testbed.Eventually(limit, func() error { return inOrder(s.does("diff", "RDS/ingress", "served", "held"), "cluster: c2") }))
	s.runs([]string{"cluster: c1", "cluster: c2"}, "diff", "RDS/ingress", "served", "held")
	s.runs(nil, "resume")
	s.serves("v2")
	s.check(traffic.Stop())
	s.check(testbed.Eventually(limit, func() error { return inOrder(s.does("history", "RDS/ingress"), "now") }))
	s.tell("What happened, for the report:\n\n")
	s.check(testbed.Eventually(limit, func() error { return inOrder(s.does("events", "--type", "RDS"), "changed", "withheld", "ACKed") }))
	s.runs([]string{"RDS: "}, "events", "--since", "8h", "--type", "RDS")
	s.runs([]string{"rolled back", "freeze ended"}, "events", "--since", "8h")
	s.runs([]string{"before 20", "now"}, "history", "RDS/ingress")

	path := filepath.Join(envoytest.Root(t), "docs", "incident.md")
	if os.Getenv("UPDATE_INCIDENT") != "" {
		s.check(os.WriteFile(path, append([]byte(incidentHead), s.text.Bytes()...), 0o644))
		return
	}
	there, err := os.ReadFile(path)
	s.check(err)
	want, got := commands(s.text.String()), commands(string(there))
	if len(want) != len(got) {
		t.Errorf("docs/incident.md has other commands: write it with UPDATE_INCIDENT=1\n%q\n%q", got, want)
	}
}

const incidentHead = `# An incident

A bad change at night, and the morning after: with ` + "`status`, `explain`, `diff`, `rollback`, `events` and `resume`" + `. The test
[incident_test.go](../test/e2e/incident_test.go) plays it with a real Envoy, and wrote the output below. ` + "`HOLDFAST_ADMIN`" + ` is set to the agent's
admin socket; in a pod, ` + "`" + `kubectl exec POD -c holdfast -- holdfast status` + "`" + ` or, with the plugin [kubectl-holdfast](../deploy/kubectl/kubectl-holdfast), ` + "`" + `kubectl holdfast POD status` + "`" + ` does the same.

`
