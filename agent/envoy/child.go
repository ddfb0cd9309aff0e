package envoy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/internal/environ"
	"github.com/holdfast-xds/holdfast/internal/reaper"
)

// child is one process.
type child struct {
	epoch   int
	began   time.Time
	process *os.Process
	exited  chan struct{} // closed when it has ended, and its output was passed on
	code    int           // after exited
	ended   time.Time     // after exited
	served  bool          // it said once that it serves; under the supervisor's mu
	// expected: it is to end, and its end is no crash.
	mu       sync.Mutex
	expected bool
	signals  []syscall.Signal // that were sent from here
}

// start starts a process whose output goes to out, line by line. It ends with the
// process that started it, however that ends; clean is as in Config. It gets its
// environment but for the settings of holdfast. orphans, which may be nil, leaves its exit
// status alone.
func start(argv []string, epoch int, out func(line []byte), clean func(string) string, orphans *reaper.Reaper) (*child, error) {
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
		// The kernel sends Pdeathsig when the *thread* ends that started the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		c.began = time.Now()
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
				said := &messages{clean: clean, out: out, pause: pause}
				lines(r, said.line)
				said.flush()
			}
			close(read)
		}()
		_ = cmd.Wait() // what it says is in ProcessState
		orphans.Done(cmd)
		c.code, c.ended = exitCode(cmd.ProcessState), time.Now()
		select {
		case <-read:
		case <-time.After(time.Second): // a child of the child has the pipe
		}
		_ = r.Close()
		close(c.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", argv[0], err)
	}
	return c, nil
}

// exitCode returns the code as a shell has it: 128 and the signal for one that was
// killed.
func exitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// maxLine bounds a line of output; a longer one is passed on in pieces.
const maxLine = 64 << 10

// lines calls out with each line of what is read, without its end.
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

// signal sends a signal; an error says that the process has ended.
func (c *child) signal(s syscall.Signal) {
	c.mu.Lock()
	if !slices.Contains(c.signals, s) {
		c.signals = append(c.signals, s)
	}
	c.mu.Unlock()
	_ = c.process.Signal(s)
}

// crashed reports, of a child that has ended, whether its configuration may be the cause:
// it ended soon, and neither with code 0 nor by a signal that was sent from here.
func (c *child) crashed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ours := slices.ContainsFunc(c.signals, func(s syscall.Signal) bool { return c.code == 128+int(s) })
	return c.code != 0 && !c.expected && !ours && c.ended.Sub(c.began) < CrashedWithin
}

// ends notes that the end of the process is wanted.
func (c *child) ends() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected = true
}

func (c *child) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expected
}

// stop ends the process with SIGTERM, and with SIGKILL after the grace.
func (c *child) stop(grace time.Duration) {
	c.ends()
	c.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.exited:
		return
	case <-timer.C:
	}
	c.signal(syscall.SIGKILL)
	<-c.exited
}
