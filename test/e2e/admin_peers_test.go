package e2e

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// The permissions of the socket let everybody connect here; the kernel says who does.
func TestOnlyTheAgentsUserMayEndItAndReadersMayRead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can ask as somebody else")
	}
	const reader, member, stranger = 54321, 54322, 54323
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.startAgent("--admin-readers", "uid:54321", "--admin-readers", "gid:54399")
	w.check(os.Chmod(w.dir, 0o755))
	ask := func(uid uint32, groups []uint32, method, path string) string {
		cmd := exec.Command("curl", "-sS", "-m", "5", "-o", os.DevNull, "-w", "%{http_code}", "-X", method, "--unix-socket", w.path("admin.sock"), "http://x"+path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
		out, _ := cmd.Output() // what curl prints says it all
		return string(out)
	}
	for _, tc := range []struct {
		name   string
		uid    uint32
		groups []uint32
		read   string
		change string
	}{
		{"a reader by its user", reader, nil, "200", "403"},
		{"a reader by its group", member, []uint32{54399}, "200", "403"},
		{"somebody else", stranger, nil, "000", "000"},
	} {
		for _, path := range []string{"/status.json", "/dump", "/readyz?verbose"} {
			if got := ask(tc.uid, tc.groups, "GET", path); got != tc.read && !(path == "/readyz?verbose" && tc.read == "200" && got == "503") {
				t.Errorf("%s: GET %s: %s, want %s", tc.name, path, got, tc.read)
			}
		}
		for _, path := range []string{"/quit", "/drain", "/takeover", "/hot-restart"} {
			if got := ask(tc.uid, tc.groups, "POST", path); got != tc.change {
				t.Errorf("%s: POST %s: %s, want %s", tc.name, path, got, tc.change)
			}
		}
	}
	w.check(w.agent.Alive())
	w.check(w.agent.Says(limit, "--admin-readers"))
	if strings.Contains(w.log(), "requested") {
		t.Error("somebody was heard")
	}
	w.check(w.client().Do(t.Context(), "quit"))
	if code := w.ended(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
}
