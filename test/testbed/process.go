// Package testbed runs what the end-to-end tests and the demo need as real
// processes on loopback: holdfast, Envoy, and HTTP backends. Everything that it
// starts ends with its Stop, or with the process that started it.
//
// Its functions return errors and take no testing.T, so that the demo can use
// them too.
package testbed

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Process is a running program whose output goes to a file.
type Process struct {
	Name string
	// Log is the file with what it wrote.
	Log    string
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended and err is set
	err    error
}

// Start runs a program. Its output is appended to log.
func Start(name, log string, argv ...string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	p := &Process{Name: name, Log: log, exited: make(chan struct{})}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns how the process ended, nil for exit code 0; only after Exited.
func (p *Process) Err() error { return p.err }

// Signal sends the process a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the process with SIGKILL and waits for it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// Stop ends the process with SIGTERM and waits for it, or kills it when it takes
// longer than grace, which is an error.
func (p *Process) Stop(grace time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return p.err
	case <-time.After(grace):
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM", p.Name, grace)
	}
}

// Tail returns the last lines that the process wrote, for an error message.
func (p *Process) Tail(lines int) string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Alive returns an error with the end of the log if the process has ended.
func (p *Process) Alive() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s ended (%v):\n%s", p.Name, p.err, p.Tail(20))
	default:
		return nil
	}
}

// Says waits until the output contains each text: a program writes its log beside what it does.
func (p *Process) Says(limit time.Duration, texts ...string) error {
	return p.Wait(limit, func() error {
		log := p.Tail(math.MaxInt)
		for _, text := range texts {
			if !strings.Contains(log, text) {
				return fmt.Errorf("%s does not say %q", p.Name, text)
			}
		}
		return nil
	})
}

// Wait polls until a condition holds, the process ends, or the time is up. What
// is not reached is said with the condition's last error.
func (p *Process) Wait(limit time.Duration, condition func() error) error {
	err := Eventually(limit, func() error {
		if err := p.Alive(); err != nil {
			return fatal{err}
		}
		return condition()
	})
	if err != nil {
		return fmt.Errorf("%w\n--- end of %s's log:\n%s", err, p.Name, p.Tail(20))
	}
	return nil
}

// fatal is an error that no further attempt can mend.
type fatal struct{ error }

// Eventually polls until a condition holds, every 2 ms, for at most the limit.
func Eventually(limit time.Duration, condition func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		if err == nil {
			return nil
		}
		if f := (fatal{}); errors.As(err, &f) {
			return f.error
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %w", limit, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Dial returns nil if somebody listens at an address.
func Dial(network, addr string) error {
	c, err := net.Dial(network, addr)
	if err == nil {
		_ = c.Close()
	}
	return err
}
