package envoy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/internal/environ"
	"github.com/holdfast-xds/holdfast/internal/reaper"
)

// child is one Envoy process.
type child struct {
	epoch   int
	started time.Time
	process *os.Process
	exited  chan struct{} // closed when the process has ended and its output was passed on
	code    int           // valid after exited is closed
	ended   time.Time     // valid after exited is closed
	wasLive atomic.Bool   // it was LIVE at least once
	// expected is set if the process is meant to end, so that its end is no crash.
	expected atomic.Bool
	mu       sync.Mutex
	signals  []syscall.Signal // of the agent
}

// startChild starts a process whose output goes to out, line by line. The process ends with
// this process, however this process ends. clean is as in Config. The process inherits the
// environment without the settings of holdfast. orphans, which may be nil, must not reap it.
func startChild(argv []string, epoch int, out func(line []byte), clean func(string) string, orphans *reaper.Reaper) (*child, error) {
	c := &child{epoch: epoch, exited: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = w, w
	cmd.Env = environ.ForChild()
	cmd.SysProcAttr = attributes()
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the *thread* that started the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		c.started = time.Now()
		err := orphans.Start(cmd)
		_ = w.Close()
		if err != nil {
			_ = r.Close()
			started <- err
			return
		}
		c.process = cmd.Process
		started <- nil
		read := make(chan struct{})
		go func() {
			if clean == nil {
				lines(r, out)
			} else {
				m := &messages{clean: clean, out: out, pause: messagePause}
				lines(r, m.line)
				m.flush()
			}
			close(read)
		}()
		_ = cmd.Wait() // the result is in ProcessState
		orphans.Done(cmd)
		c.code, c.ended = exitCode(cmd.ProcessState), time.Now()
		select {
		case <-read:
		case <-time.After(time.Second): // a child of Envoy still has the pipe open
		}
		_ = r.Close()
		close(c.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", argv[0], err)
	}
	return c, nil
}

// exitCode returns the exit code as a shell does: 128 plus the signal for a process that was
// killed.
func exitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// maxLine bounds a line of output; a longer line is passed on in pieces.
const maxLine = 64 << 10

// lines calls out with each line, without its line end.
func lines(r io.Reader, out func([]byte)) {
	in := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		if n := len(line); n > 0 && line[n-1] == '\n' {
			line = line[:n-1]
		} else if n == 0 && err != nil {
			return
		}
		out(line)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// signal sends a signal. It has no effect on a process that has ended.
func (c *child) signal(s syscall.Signal) {
	c.mu.Lock()
	if !slices.Contains(c.signals, s) {
		c.signals = append(c.signals, s)
	}
	c.mu.Unlock()
	_ = c.process.Signal(s)
}

// crashed reports whether the configuration may have caused the end of the process: it ended
// soon after its start, with a code other than 0, and not by a signal of the agent.
func (c *child) crashed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	signalled := slices.ContainsFunc(c.signals, func(s syscall.Signal) bool { return c.code == 128+int(s) })
	return c.code != 0 && !c.expected.Load() && !signalled && c.ended.Sub(c.started) < CrashedWithin
}

// stop ends the process with SIGTERM, and with SIGKILL after the grace period.
func (c *child) stop(grace time.Duration) {
	c.expected.Store(true)
	c.signal(syscall.SIGTERM)
	select {
	case <-c.exited:
		return
	case <-time.After(grace):
	}
	c.signal(syscall.SIGKILL)
	<-c.exited
}

// Oldest and Newest are the minor releases of Envoy 1 with which the end-to-end tests pass.
const (
	Oldest = 36
	Newest = 40
)

// CheckVersion determines the version of a binary. warning explains the risk if it is not a
// tested version, and is "" otherwise. It fails if the binary cannot be run.
func CheckVersion(ctx context.Context, binary string) (release, warning string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "--version")
	cmd.Env = environ.ForChild()
	out, err := cmd.CombinedOutput()
	if err != nil {
		message, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return "", "", fmt.Errorf("%s --version: %w: %.200q: is it Envoy?", binary, err, message)
	}
	_, version, ok := strings.Cut(string(out), "version: ")
	if !ok {
		return "", fmt.Sprintf("%s does not print its version: is it Envoy?", binary), nil
	}
	release = releaseOf(strings.TrimSpace(version))
	major, rest, _ := strings.Cut(release, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	switch {
	case major != "1" || err != nil:
		return release, fmt.Sprintf("Envoy %q is not a known release", release), nil
	case n < Oldest:
		return release, fmt.Sprintf("Envoy %s is older than 1.%d, the oldest release that this version was tested with", release, Oldest), nil
	case n > Newest:
		return release, fmt.Sprintf("Envoy %s is newer than 1.%d, the newest release that this version was tested with", release, Newest), nil
	}
	return release, "", nil
}
