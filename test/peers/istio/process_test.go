package istio

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// errEnded says that a process has ended, so that waiting for it is in vain.
var errEnded = errors.New("the process has ended")

// process is a running program whose output goes to a file.
type process struct {
	name, log string
	cmd       *exec.Cmd
	exited    chan struct{} // closed when it has ended
}

// start runs a program that ends with its stop, or with this process.
func start(t *testing.T, name, log string, argv ...string) *process {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p := &process{name: name, log: log, cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.stop)
	return p
}

// stop ends the process and waits for it. It may be called several times.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// wait polls until a condition holds, and fails the test with the end of the log if it does not in
// time or the process has ended.
func (p *process) wait(t *testing.T, condition func() error) {
	t.Helper()
	err := eventually(30*time.Second, func() error {
		select {
		case <-p.exited:
			return fmt.Errorf("%s: %w", p.name, errEnded)
		default:
			return condition()
		}
	})
	if err != nil {
		t.Fatalf("%s: %v\n--- end of its log:\n%s", p.name, err, tail(p.log, 30))
	}
}
