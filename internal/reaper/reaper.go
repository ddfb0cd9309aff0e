// Package reaper takes away the processes that end as children of this one without having
// been started by it. To PID 1 of a container come all whose parents have ended, and stay
// as zombies until it waits for them.
//
// It promises that the exit status of a process which was started with Start is left for
// its exec.Cmd.Wait. A nil Reaper starts processes and takes none away. Its methods may be
// called concurrently.
package reaper

import (
	"os/exec"
	"sync"
)

// Reaper knows the processes that this one waits for itself.
type Reaper struct {
	mu  sync.Mutex // held while a process is started, and while others are taken away
	own map[int]struct{}
}

// New returns a reaper; Run runs it.
func New() *Reaper { return &Reaper{own: make(map[int]struct{})} }

// Start is cmd.Start. Done is to be called when cmd.Wait has returned.
func (r *Reaper) Start(cmd *exec.Cmd) error {
	if r == nil {
		return cmd.Start()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	r.own[cmd.Process.Pid] = struct{}{}
	return nil
}

// Done notes that a process was waited for, so that its number may be another's.
func (r *Reaper) Done(cmd *exec.Cmd) {
	if r == nil || cmd.Process == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.own, cmd.Process.Pid)
}
