package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/cli"
)

// answering serves an admin interface that answers a path with a value, and returns its --admin.
func answering(t *testing.T, answers map[string]any) (addr string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	lis, err := net.Listen("unix", filepath.Join(dir, "a.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		which := r.URL.Path
		if v := r.URL.Query().Get("which"); v != "" {
			which += " " + v
		}
		answer, ok := answers[which]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte("no " + which + "\n"))
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lis) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return "unix:" + filepath.Join(dir, "a.sock")
}

func route(version, cluster string) []admin.Content {
	return []admin.Content{{Node: "web", Type: "RDS", Name: "r", Version: version, Resource: json.RawMessage(`{"name":"r","cluster":"` + cluster + `"}`)}}
}

func TestDiffComparesWhatMayBeMeant(t *testing.T) {
	addr := answering(t, map[string]any{
		"/content served": route("2", "b"), "/content held": route("2", "b"), "/content previous": route("1", "a"),
		"/content accepted": route("2", "b"), "/content stable": []admin.Content{{Node: "web", Type: "RDS", Name: "r"}},
		"/content secret": route("3", "b"),
	})
	other := answering(t, map[string]any{"/content served": []admin.Content{{Node: "api", Type: "RDS", Name: "r", Version: "9", Resource: json.RawMessage(`{"name":"r","cluster":"other"}`)}}})
	const text = "--- RDS/r previous (1)\n+++ RDS/r accepted (2)\n@@ -1,2 +1,2 @@\n name: r\n-cluster: a\n+cluster: b\n"
	for _, tc := range []struct {
		what string
		args []string
		want string
	}{
		{"nothing else is meant than the last change", []string{"RDS/r"}, text},
		{"with colours", []string{"RDS/r", "--color", "always"}, "\x1b[31m-cluster: a\x1b[m\n\x1b[32m+cluster: b\x1b[m\n"},
		{"two contents", []string{"RDS/r", "held", "previous"}, "--- RDS/r held (2)\n+++ RDS/r previous (1)"},
		{"one content", []string{"RDS/r", "previous"}, "+++ RDS/r served (2)"},
		{"the same content", []string{"RDS/r", "held"}, "RDS/r: held and served are the same, version 2\n"},
		{"no content", []string{"RDS/r", "stable"}, "--- RDS/r stable (none)\n+++ RDS/r served (2)\n@@ -0,0 +1,2 @@\n+name: r\n"},
		{"only a secret differs", []string{"RDS/r", "secret"}, "differ only in what is not shown: secrets, or the order of fields (versions 3 and 2)"},
		{"another agent", []string{"RDS/r", other}, "-cluster: other\n+cluster: b\n"},
		{"JSON", []string{"RDS/r", "-o", "json"}, `"which": "previous",` + "\n" + `      "version": "1"`},
		{"YAML", []string{"RDS/r", "-o", "yaml"}, "- node: web\n  resource: RDS/r\n  a:\n    which: previous\n"},
	} {
		if got := ask(t, append([]string{"diff", "--admin", addr}, tc.args...)...); got.code != cli.ExitOK || !strings.Contains(got.out, tc.want) {
			t.Errorf("%s: exit %d %s\n%s\nwant %s", tc.what, got.code, got.errors, got.out, tc.want)
		}
	}
	if got := ask(t, "diff", "--admin", addr, "RDS/r", "nonsense"); got.code != cli.ExitFailed || got.errors != "holdfast: not known: no /content nonsense\n" {
		t.Errorf("%+v", got)
	}
}

func TestOldestIsTheFirstTimeThatIsKnown(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	h := admin.NameHistory{Began: at(10), Versions: []admin.Version{{Until: at(20)}, {From: at(25), Until: at(30)}, {From: at(30)}}}
	for minute, want := range map[int]int{0: 10, 10: 10, 15: 15, 22: 25, 27: 27, 35: 35} {
		if got := oldest(h, at(minute)); !got.Equal(at(want)) {
			t.Errorf("minute %d: %s, want %s", minute, got, at(want))
		}
	}
}

func TestARollbackThatMissesSomethingFails(t *testing.T) {
	addr := answering(t, map[string]any{"/rollback": []admin.Rollback{{
		Node: "web", To: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Changes: []admin.RolledBack{{Type: "RDS", Name: "r", From: "2"}},
		Missing: []admin.NotRestored{{Type: "SDS", Name: "cert", Why: "it ended"}},
	}}})
	got := ask(t, "rollback", "--admin", addr)
	want := "node \"web\": 1 resource would be rolled back to 2026-01-01T00:00:00.000Z\n  RDS/r  2  → none\nmissing\n  SDS/cert: it ended\n"
	if got.code != cli.ExitFailed || got.out != want || !strings.Contains(got.errors, "nothing was rolled back, because something is missing: --partial rolls back the rest") {
		t.Errorf("exit %d %s\n%s\nwant\n%s", got.code, got.errors, got.out, want)
	}
}

// The shells ask the program for what may come next.
func TestCompletion(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"freeze", ""}, "RDS\n"},
		{[]string{"diff", ""}, "RDS/\n"},
		{[]string{"diff", "RDS/r", ""}, "previous\n"},
		{[]string{"rollback", "RDS/r", "CD"}, "CDS/\n"},
		{[]string{"explain", ""}, "LDS/\n"},
		{[]string{"events", "--type", ""}, "EDS\n"},
		{[]string{"status", "-o", ""}, "yaml\n"},
		{[]string{"run", "--log-level", ""}, "debug\n"},
	} {
		if got := ask(t, append([]string{"__complete"}, tc.args...)...); got.code != cli.ExitOK || !strings.Contains(got.out, tc.want) {
			t.Errorf("%q: exit %d\n%s\nwant %s", tc.args, got.code, got.out, tc.want)
		}
	}
}
