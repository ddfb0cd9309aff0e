package tutorial

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// Shell is a bash that runs blocks of commands one after the other. Its methods must be called from the goroutine of the test.
type Shell struct {
	t   testing.TB
	in  io.Writer
	out *bufio.Reader
}

// NewShell starts a bash in a directory. It ends with the test, and so does all that it started.
func NewShell(t testing.TB, dir string) *Shell {
	t.Helper()
	cmd := exec.Command("bash")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = stdout, stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = stdout.Close()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_ = out.Close()
	})
	s := &Shell{t, in, bufio.NewReader(out)}
	s.run("umask 002") // as many have it
	return s
}

// follow runs the commands of a block, and returns an error if they do not print what the page says: at once, or, if the page says that they may
// be run again, after a limit.
func (s *Shell) follow(b Block, limit time.Duration) error {
	s.t.Helper()
	try := func() error {
		if got := s.run(b.Commands); b.Prints && !Matches(got, b.Want) {
			return fmt.Errorf("the commands\n%s\nprint\n%s\nwant\n%s", b.Commands, got, b.Want)
		}
		return nil
	}
	if !b.Again {
		return try()
	}
	return testbed.Eventually(limit, try)
}

// FollowAll follows blocks one after the other. The first that does not print what the page says ends the test, after the logs in a directory.
func (s *Shell) FollowAll(blocks []Block, limit time.Duration, logs string) {
	s.t.Helper()
	for _, b := range blocks {
		if err := s.follow(b, limit); err != nil {
			s.showLogs(logs)
			s.t.Fatal(err)
		}
	}
}

// run runs commands, and returns what they wrote.
func (s *Shell) run(commands string) string {
	s.t.Helper()
	const end = "end of the block"
	if _, err := fmt.Fprintf(s.in, "%s\necho; echo '%s'\n", commands, end); err != nil {
		s.t.Fatal(err)
	}
	var out strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if strings.TrimSpace(line) == end {
			return strings.TrimSuffix(out.String(), "\n")
		}
		out.WriteString(line)
		if err != nil {
			s.t.Fatalf("the shell ended: %v\n%s", err, out.String())
		}
	}
}

// showLogs shows the ends of the logs in a directory.
func (s *Shell) showLogs(dir string) {
	names, _ := filepath.Glob(dir + "/*.log")
	for _, name := range names {
		text, err := os.ReadFile(name)
		s.t.Logf("%s: %v\n%s", name, err, text[max(0, len(text)-4000):])
	}
}
