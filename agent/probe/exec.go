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

// run runs a command until it exits or ctx ends.
func run(ctx context.Context, orphans *reaper.Reaper, command []string) error {
	cmd := exec.Command(command[0], command[1:]...)
	out := &beginning{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env, cmd.WaitDelay = environ.ForChild(), waitForOutput
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its children can be ended with it
	if err := orphans.Start(cmd); err != nil {
		return err
	}
	killGroup := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // there may be nobody left
	stop := context.AfterFunc(ctx, killGroup)
	err := cmd.Wait()
	stop()
	killGroup() // what it has left behind
	orphans.Done(cmd)
	exit, failed := errors.AsType[*exec.ExitError](err)
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		return nil // it has exited with 0, and left a child behind
	case !failed:
		return err
	}
	text := bytes.TrimSpace(out.text)
	if len(text) == 0 {
		return fmt.Errorf("%s: %s", command[0], exit.ProcessState)
	}
	return fmt.Errorf("%s: %s: %s", command[0], exit.ProcessState, text)
}

// beginning keeps the beginning of what is written. One goroutine at a time writes to it.
type beginning struct{ text []byte }

func (b *beginning) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), maxOutput-len(b.text))]...)
	return len(p), nil
}
