package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/internal/environ"
	"github.com/holdfast-xds/holdfast/internal/reaper"
)

// waitForOutput is how long the output of a command is waited for that has exited: a child of it may still have the pipe open.
const waitForOutput = 100 * time.Millisecond

// maxOutput bounds what is kept of the output of a command, in bytes.
const maxOutput = 1 << 10

// waitForEnd is how long the end of a command is waited for after SIGKILL. One of another user, or one that waits for a device,
// may not end.
const waitForEnd = time.Second

// command is what Exec runs, one attempt at a time.
type command struct {
	args []string
	// left is closed when the command of an earlier attempt has ended that did not do so in time; nil for none.
	left chan struct{}
}

// run runs the command until it exits or ctx ends. While that of an earlier attempt does not end, no other one is started.
func (c *command) run(ctx context.Context, orphans *reaper.Reaper) error {
	if c.left != nil {
		select {
		case <-c.left:
			c.left = nil
		default:
			return fmt.Errorf("%s: the command of an earlier attempt does not end, although SIGKILL was sent to it", c.args[0])
		}
	}
	cmd := exec.Command(c.args[0], c.args[1:]...)
	out := &beginning{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env, cmd.WaitDelay = environ.ForChild(), waitForOutput
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its children can be ended with it
	if err := orphans.Start(cmd); err != nil {
		return err
	}
	killGroup := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // there may be nobody left
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = cmd.Wait()
		killGroup() // what it has left behind
		orphans.Done(cmd)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		killGroup()
		_ = cmd.Process.Kill() // it may have left its process group
		select {
		case <-ended:
		case <-time.After(waitForEnd):
			c.left = ended
			return context.Cause(ctx)
		}
	}
	exit, failed := errors.AsType[*exec.ExitError](err)
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		return nil // it has exited with 0, and left a child behind
	case !failed:
		return err
	}
	text := bytes.TrimSpace(out.text)
	if len(text) == 0 {
		return fmt.Errorf("%s: %s", c.args[0], exit.ProcessState)
	}
	return fmt.Errorf("%s: %s: %s", c.args[0], exit.ProcessState, text)
}

// beginning keeps the beginning of what is written. One goroutine at a time writes to it.
type beginning struct{ text []byte }

func (b *beginning) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), maxOutput-len(b.text))]...)
	return len(p), nil
}
