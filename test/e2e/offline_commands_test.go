package e2e

import (
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// The state directory of an agent that is dead answers what the agent answered.
func TestAStateDirectoryAnswersAlone(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.serves("v2")
		w.cp.Set(xdstest.BadListener("bad"))
		w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == xds.ListenerType })
		w.saved()
		w.agent.Kill()
		for _, tc := range []struct {
			args []string
			want []string
		}{
			{[]string{"history", "RDS/ingress"}, []string{`RDS/ingress of node "e2e"`, "before 20", "now"}},
			{[]string{"diff", "RDS/ingress"}, []string{"-          cluster: c1", "+          cluster: c2"}},
			{[]string{"diff", "--since", "1h"}, []string{"-          cluster: c1", "+          cluster: c2"}},
			{[]string{"explain", strings.TrimPrefix(w.url, "http://")}, []string{"→ the request goes to the cluster c2"}},
			{[]string{"explain", "LDS/ingress"}, []string{"LDS/ingress", "RDS/ingress", "CDS/c2", "EDS/c2-endpoints", "lately"}},
			{[]string{"dump", "--type", "RDS"}, []string{`"name": "ingress"`, `"cluster": "c2"`}},
			{[]string{"events"}, []string{"control plane connected", "NACK"}},
		} {
			code, out := run(w.T, append(tc.args, "--offline", w.path("state"))...)
			for _, want := range tc.want {
				if code != 0 || !strings.Contains(out, want) {
					w.Errorf("holdfast %q exits with %d and lacks %q:\n%s", tc.args, code, want, out)
				}
			}
		}
		for dir, want := range map[string]string{w.path("nothing"): "does not exist", w.dir: "it contains no state"} {
			if code, out := run(w.T, "history", "--offline", dir); code != 1 || !strings.Contains(out, want) {
				w.Errorf("%s: exit code %d:\n%s", dir, code, out)
			}
		}
		if code, out := run(w.T, "diff", "RDS/ingress", "upstream", "--offline", w.path("state")); code != 1 || !strings.Contains(out, "no control plane is asked") {
			w.Errorf("exit code %d:\n%s", code, out)
		}
	})
}
