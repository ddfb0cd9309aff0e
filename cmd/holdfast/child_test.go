package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/internal/cgroup"
	"github.com/holdfast-xds/holdfast/internal/cli"
)

func TestTheBootstrapIsFoundInEnvoysCommandLine(t *testing.T) {
	for line, want := range map[string]string{
		"envoy -c a.yaml":                 "a.yaml",
		"envoy -l debug --config-path b":  "b",
		"envoy --config-path=c --foo":     "c",
		"envoy --config-yaml {admin: {}}": "",
		"envoy -c":                        "",
	} {
		if got := configFile(strings.Fields(line)); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

func TestABootstrapNeedNotSayWhoEnvoyIs(t *testing.T) {
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if node := nodeOf(write(t, "with.yaml", "node: {id: web-1, cluster: web}\n"), logger); node.GetId() != "web-1" || log.Len() > 0 {
		t.Errorf("%v, %s", node, log.String())
	}
	if node := nodeOf(write(t, "without.yaml", "admin: {}\n"), logger); node != nil || !strings.Contains(log.String(), "not fetched before Envoy connects") {
		t.Errorf("%v, %s", node, log.String())
	}
}

// childConfig returns what flags say of a child.
func childConfig(t *testing.T, file string, child []string, args ...string) (envoy.Config, string, error) {
	t.Helper()
	f := &runFlags{}
	c := newCommand("run", "", "", "")
	f.addEnvoy(c)
	for _, s := range c.sections {
		if err := s.Parse(args); err != nil {
			return envoy.Config{}, "", err
		}
	}
	var log strings.Builder
	f.cfg.Socket.Path, f.cfg.Log = "/run/holdfast/xds.sock", slog.New(slog.NewTextHandler(&log, nil))
	err := f.completeEnvoy(child, file, cgroup.Limits{CPU: 1.5})
	return f.cfg.Envoy, log.String(), err
}

func TestHowEnvoyIsRunIsSaidByFlags(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := write(t, "envoy.yaml", "admin: {address: {pipe: {path: /run/envoy.sock}}}\n")
	cfg, log, err := childConfig(t, file, []string{self, "-c", file}, "--on-envoy-exit", "exit", "--start-after", "1s", "--drain-timeout", "2s", "--drain-min", "3s", "--kill-after", "4s")
	if err != nil || log != "" {
		t.Fatal(err, log)
	}
	if !slices.Equal(cfg.Args, []string{self, "-c", file}) || cfg.Admin != "unix:/run/envoy.sock" || cfg.Dir != "/run/holdfast" || !cfg.Exit ||
		cfg.StartAfter != time.Second || cfg.Draining != (envoy.Draining{Timeout: 2 * time.Second, Min: 3 * time.Second}) || cfg.Grace != 4*time.Second || cfg.Concurrency != 2 {
		t.Errorf("%+v", cfg)
	}
	// In a container of its own: no child, and an admin to drain by.
	if cfg, _, err = childConfig(t, file, nil, "--envoy-admin", "127.0.0.1:15000"); err != nil || len(cfg.Args) > 0 || cfg.Admin != "127.0.0.1:15000" {
		t.Errorf("%+v, %v", cfg, err)
	}
	if _, log, err = childConfig(t, "", []string{self}); err != nil || !strings.Contains(log, "admin interface is not known") {
		t.Errorf("%v: %s", err, log)
	}
}

func TestWhatIsWrongWithEnvoysCommandLineIsSaid(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	broken := write(t, "broken.yaml", "admin: {address: {socket_address: {port_value: x}}}\n")
	for _, tc := range []struct {
		name, file string
		child      []string
		args       []string
		want       string
	}{
		{"no such binary", "", []string{"/does/not/exist"}, nil, "the command after --:"},
		{"no such bootstrap", missing, []string{"sh"}, nil, "bootstrap: read admin: open " + missing},
		{"a broken bootstrap", broken, []string{"sh"}, nil, "line 1: field admin.address.socket_address.port_value: "},
		{"a negative drain", "", nil, []string{"--drain-min", "-1s"}, `"--drain-min" flag: -1s: want 0 or a positive duration`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, _, err := childConfig(t, tc.file, tc.child, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestACommandLineFollowsTwoDashes(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing after them", []string{"run", "--upstream", "a:1", "--"}, "the command after -- is missing"},
		{"a word before them", []string{"run", "envoy", "--", "envoy"}, `unexpected argument "envoy"`},
		{"of a command that takes none", []string{"status", "--", "envoy"}, "takes flags only"},
		{"a binary that is no Envoy and fails", []string{"run", "--upstream", "a:1", "--", "false"}, "--version"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := call(t, nil, tc.args...); got.code == cli.ExitOK || !strings.Contains(got.errors, tc.want) {
				t.Errorf("%+v, want %q", got, tc.want)
			}
		})
	}
}

func TestEnvoysOutputIsPassedOnAsItIsOrWrapped(t *testing.T) {
	var raw, wrapped strings.Builder
	line := []byte("a \"line\"X")[:8] // with something behind it that is not the line's
	writeLines(&raw, false)(line)
	writeLines(&wrapped, true)(line)
	if raw.String() != "a \"line\"\n" || string(line[:9]) != "a \"line\"X" {
		t.Errorf("%q; behind it: %q", raw.String(), line[:9])
	}
	var got struct{ Time, From, Msg string }
	if err := json.Unmarshal([]byte(wrapped.String()), &got); err != nil || got.From != "envoy" || got.Msg != "a \"line\"" || !strings.HasSuffix(wrapped.String(), "}\n") {
		t.Errorf("%q, %v", wrapped.String(), err)
	}
	if _, err := time.Parse(time.RFC3339Nano, got.Time); err != nil {
		t.Error(err)
	}
}

func TestTheCodeOfEnvoyIsThatOfTheAgent(t *testing.T) {
	if code, ok := exitCode(cli.Failed(fmt.Errorf("x: %w", &envoy.ExitError{Code: 137}))); !ok || code != 137 {
		t.Error(code, ok)
	}
	if _, ok := exitCode(errors.New("another")); ok {
		t.Error("no code of Envoy's")
	}
}

func TestWaitAndDrainSayThatNobodyAnswers(t *testing.T) {
	addr := "unix:" + filepath.Join(t.TempDir(), "a.sock")
	if got := ask(t, "wait", "--admin", addr, "--timeout", "1ms"); got.code != cli.ExitFailed || !strings.Contains(got.errors, "not ready in time: no agent answers on "+addr) {
		t.Errorf("%+v", got)
	}
	if got := ask(t, "drain", "--admin", addr); got.code != cli.ExitFailed || !strings.Contains(got.errors, "no agent answers on "+addr) {
		t.Errorf("%+v", got)
	}
	if got := ask(t, "wait", "--timeout", "-1s"); got.code != cli.ExitUsage || !strings.Contains(got.errors, "--timeout: -1s: want 0 or a positive duration") {
		t.Errorf("%+v", got)
	}
}

// The last poll may run into the end of the time, which says nothing of the agent.
func TestWaitSaysWhyTheAgentIsNotReady(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	lis, err := net.Listen("unix", filepath.Join(dir, "a.sock"))
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked > 1 {
			<-r.Context().Done() // until the time is over
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("draining: it is about to end\n"))
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lis) }()
	got := ask(t, "wait", "--admin", "unix:"+filepath.Join(dir, "a.sock"), "--timeout", "400ms")
	if got.code != cli.ExitFailed || got.errors != "holdfast: not ready in time: draining: it is about to end\n" {
		t.Errorf("exit %d, %q", got.code, got.errors)
	}
	_ = server.Close()
	<-ended
}
