package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-xds/holdfast/agent/admin"
)

// child is the program as a process of its own.
type child struct {
	*exec.Cmd
	lines *bufio.Scanner
}

func startChild(t *testing.T, be string, args ...string) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), beProgram+"="+be)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &child{cmd, bufio.NewScanner(out)}
}

// await reads lines of standard error up to one with a text.
func (c *child) await(t *testing.T, text string) {
	t.Helper()
	var seen []string
	for c.lines.Scan() {
		if strings.Contains(c.lines.Text(), text) {
			return
		}
		seen = append(seen, c.lines.Text())
	}
	t.Fatalf("it ended without %q:\n%s", text, strings.Join(seen, "\n"))
}

// end sends a signal and returns the exit code.
func (c *child) end(t *testing.T, s os.Signal) int {
	t.Helper()
	if err := c.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	for c.lines.Scan() { // what it still says
	}
	err := c.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode()
}

func TestAnAgentRunsUntilItIsToldToEnd(t *testing.T) {
	for _, s := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		t.Run(s.String(), func(t *testing.T) {
			dir := t.TempDir()
			addr := "unix:" + filepath.Join(dir, "admin.sock")
			agent := startChild(t, "main", "run", "--upstream", "file:"+dir, "--socket", filepath.Join(dir, "run", "xds.sock"),
				"--admin", addr, "--health", "", "--log-format", "json", "--node-id", "web-1", "--node-cluster", "web")
			agent.await(t, `"msg":"serving HTTP"`)
			if got := ask(t, "status", "--admin", addr); got.code != 0 || !strings.HasPrefix(got.out, "holdfast dev, up ") {
				t.Errorf("status: %+v", got)
			}
			var status admin.Status
			if got := ask(t, "status", "--admin", addr, "-o", "json"); json.Unmarshal([]byte(got.out), &status) != nil || len(status.Conditions) == 0 {
				t.Errorf("status: %+v", got)
			}
			if got := ask(t, "dump", "--admin", addr); got.code != 0 || !json.Valid([]byte(got.out)) {
				t.Errorf("dump: %+v", got)
			}
			if code := agent.end(t, s); code != 0 {
				t.Errorf("exit %d", code)
			}
			if got := ask(t, "status", "--admin", addr); got.code != 1 || !strings.Contains(got.errors, "no agent answers on "+addr+": is `holdfast run` running") {
				t.Errorf("status of nobody: %+v", got)
			}
		})
	}
}

// ask runs a command that asks another process.
func ask(t *testing.T, args ...string) ran {
	t.Helper()
	var out, errors strings.Builder
	code := execute(t.Context(), process{stdout: &out, stderr: &errors}, args)
	return ran{code, out.String(), errors.String()}
}

func TestASecondSignalEndsTheProcessAtOnce(t *testing.T) {
	for s, want := range map[os.Signal]int{syscall.SIGTERM: 143, os.Interrupt: 130} {
		c := startChild(t, "stuck")
		c.await(t, "running")
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		c.await(t, "ending")
		if code := c.end(t, s); code != want {
			t.Errorf("%s: exit %d, want %d", s, code, want)
		}
	}
}

func TestASecondSignalHurriesADrainAndAThirdEndsTheProcess(t *testing.T) {
	c := startChild(t, "stuck", "hurry")
	c.await(t, "running")
	for _, said := range []string{"ending", "hurried"} {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		c.await(t, said)
	}
	if code := c.end(t, syscall.SIGTERM); code != 143 {
		t.Errorf("exit %d", code)
	}
}
