package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// inOrder returns an error unless a text has the parts, in their order.
func inOrder(text string, parts ...string) error {
	rest := text
	for _, part := range parts {
		at := strings.Index(rest, part)
		if at < 0 {
			return fmt.Errorf("%q is missing, or not after those before it, in\n%s", part, text)
		}
		rest = rest[at+len(part):]
	}
	return nil
}

// What happened can be read afterwards, also after the agent has died, and offline.
func TestEventsSayWhatHappened(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		happened := func(parts ...string) {
			w.Helper()
			w.check(testbed.Eventually(limit, func() error { return inOrder(w.does("events", "--since", "1h"), parts...) }))
		}
		happened("started", "control plane connected", "RDS: 1 added", "ACKed")
		w.cp.Set(w.mesh("c2")...)
		w.serves("v2")
		happened("control plane connected", "1 changed")
		w.cp.Set(xdstest.BadListener("bad"))
		happened("NACKed", "not-an-ip")
		w.cp.Stop()
		happened("1 changed", "not-an-ip", "control plane")
		w.envoy.Kill()
		happened("not-an-ip", "stream closed")
		w.agent.Kill() // -9
		_, out := run(w.T, "events", "--offline", w.path("state"))
		w.check(inOrder(out, "started", "control plane connected", "1 changed", "not-an-ip", "stream closed"))
		w.runAgent()
		w.envoy = w.startEnvoy()
		w.serves("v2")
		happened("1 changed", "not-an-ip", "stream closed", "the stored state was read", "started", "stream opened")
		if out := w.does("events", "--type", "RDS"); strings.Contains(out, "CDS") || !strings.Contains(out, "(ingress)") {
			w.Errorf("the events of RDS are\n%s", out)
		}
		if out := w.does("events", "--name", "nobody"); out != "no events\n" {
			w.Errorf("the events of nobody are\n%s", out)
		}
	})
}

func TestEventsAreFollowed(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start()
	cmd := exec.Command(holdfast(t), "events", "-f", "--admin", "unix:"+w.path("admin.sock"))
	out, err := cmd.StdoutPipe()
	w.check(err)
	stderr := &strings.Builder{}
	cmd.Stderr = stderr
	w.check(cmd.Start())
	defer time.AfterFunc(2*limit, func() { _ = cmd.Process.Kill() }).Stop()
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	w.does("loglevel", "info")
	w.cp.Set(xdstest.Route("ingress", "c2"))
	found := false
	for line := range lines {
		if found = strings.Contains(line, "RDS: ") && strings.Contains(line, "1 changed"); found {
			break
		}
	}
	if !found {
		t.Error("the change was not followed")
	}
	w.check(w.agent.Stop(limit))
	w.runAgent()
	learned := 0 // what the next agent has learned
	count := func(line string) bool {
		if strings.Contains(line, "RDS: 1 added") {
			learned++
		}
		return learned > 0
	}
	for line := range lines {
		if count(line) {
			break
		}
	}
	w.check(cmd.Process.Signal(os.Interrupt))
	for line := range lines {
		count(line)
	}
	if err := cmd.Wait(); err != nil || strings.Count(stderr.String(), "has gone away: waiting for the next one") != 1 {
		t.Errorf("%v, and it says %q", err, stderr)
	}
	if learned != 1 {
		t.Errorf("what the next agent has learned is told %d times", learned)
	}
	if code, out := run(t, "events", "--admin", "unix:"+w.path("admin.sock"), "--type", "XXX"); code == 0 || !strings.Contains(out, `unknown type "XXX"`) {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, out := run(t, "events", "--offline", w.path("nothing")); code != 1 || !strings.Contains(out, "events.jsonl") {
		t.Errorf("exit code %d: %s", code, out)
	}
}
