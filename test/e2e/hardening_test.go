package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// unprivileged is a user that has nothing but what the test gives it.
const unprivileged = 1234

// asUser returns a command that runs another as the unprivileged user. It needs root.
func asUser(t T) []string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("this test runs the agent as another user, and needs root for it")
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skipf("this test needs setpriv, of util-linux: %v", err)
	}
	id := fmt.Sprint(unprivileged)
	return []string{setpriv, "--reuid", id, "--regid", id, "--clear-groups", "--pdeathsig", "KILL"}
}

// give makes the unprivileged user the owner of everything in the world's directory.
func (w *world) give() {
	w.Helper()
	w.check(filepath.WalkDir(w.dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, unprivileged, unprivileged)
	}))
}

// An Envoy that the agent runs has its user. Whoever takes it over does not get at what the agent
// has in memory and in its environment, and the agent does all that it does nevertheless.
func TestTheMemoryOfTheAgentIsClosedToItsUser(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.agentVia = asUser(t)
	t.Setenv("HOLDFAST_UPSTREAM_HEADER", "x-consul-token=PLANTED-IN-THE-ENVIRONMENT")
	t.Setenv("MESH_ID", "kept")
	file, admin := w.bootstrap()
	w.give()
	w.startAgentOf([]string{"--bootstrap", file, "--drain-min", "0s", "--drain-timeout", "5s", "--state-dir", w.path("state")},
		"--", envoytest.Binary(t), "-c", file, "-l", "info")
	w.envoy = &testbed.Envoy{Process: w.agent, Admin: admin}
	w.serves("v1")
	agent, envoy := w.agent.PID(), w.alive(0).PID

	for _, file := range []string{"mem", "environ", "maps"} {
		read := exec.Command(w.agentVia[0], append(w.agentVia[1:len(w.agentVia):len(w.agentVia)], "head", "-c", "1", fmt.Sprintf("/proc/%d/%s", agent, file))...)
		if out, err := read.CombinedOutput(); err == nil || !strings.Contains(string(out), "Permission denied") {
			t.Errorf("the user of the agent may read its %s: %v %q", file, err, out)
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", envoy))
	w.check(err)
	for name, want := range map[string]bool{"HOLDFAST_": false, "PLANTED": false, "\x00MESH_ID=kept\x00": true} {
		if strings.Contains("\x00"+string(environ), name) != want {
			t.Errorf("%q is in Envoy's environment: %v, want %v", name, !want, want)
		}
	}
	owner, err := os.Stat(fmt.Sprintf("/proc/%d/environ", envoy))
	w.check(err)
	if uid := owner.Sys().(*syscall.Stat_t).Uid; uid != unprivileged {
		t.Errorf("Envoy has inherited that its memory is closed: its environ is of user %d", uid)
	}

	// What the agent reads of itself it still can.
	got, err := w.ask("/metrics")
	w.check(err)
	for _, metric := range []string{`process_open_fds [1-9]`, `process_resident_memory_bytes [1-9]`, `process_max_fds [1-9]`} {
		if !regexp.MustCompile(`(?m)^` + metric).MatchString(got.body) {
			t.Errorf("%s is missing", metric)
		}
	}
	log := w.log()
	for _, line := range []string{"can read the memory", "cannot be disabled", "cannot be set", "not given back", "/proc/self", "level=ERROR"} {
		if strings.Contains(log, line) {
			t.Errorf("the log says %q:\n%s", line, log)
		}
	}
}

func TestTheControlPlaneIsHardenedToo(t *testing.T) {
	via := asUser(t)
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.check(os.Mkdir(w.path("resources"), 0o700))
	w.give()
	socket := w.path("cp.sock")
	p, err := testbed.Start("controlplane", w.path("cp.log"), append(via, holdfast(t), "controlplane", "--dir", w.path("resources"), "--listen", "unix:"+socket)...)
	w.check(err)
	t.Cleanup(p.Kill)
	w.check(p.Wait(limit, func() error { return testbed.Dial("unix", socket) }))
	info, err := os.Stat(fmt.Sprintf("/proc/%d/environ", p.PID()))
	w.check(err)
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 { // which is how the kernel shows it
		t.Errorf("its memory is open to its user: environ is of user %d", uid)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	w.check(err)
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.PID()))
	w.check(err)
	for text, want := range map[string]string{string(status): "\nUmask:\t0077\n", string(limits): "Max core file size        0                    0"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q:\n%s", want, text)
		}
	}
	if !strings.Contains(string(status), "\nNoNewPrivs:\t1\n") {
		t.Error("it may get new privileges")
	}
}
