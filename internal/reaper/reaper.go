// Package reaper reaps processes that end as children of this process without having been started by
// it. PID 1 of a container inherits all processes whose parents have ended; they stay zombies until it
// waits for them.
//
// It promises to leave the exit status of a process that was started with Start to its exec.Cmd.Wait. A
// nil Reaper starts processes and reaps none. Its methods may be called concurrently.
package reaper

import (
	"os/exec"
	"sync"
)

// Reaper reaps the children of this process, except its own.
type Reaper struct {
	mu  sync.Mutex       // held while a process is started, and while others are reaped
	own map[int]struct{} // the processes that were started with Start
}

// New returns a Reaper that reaps nothing before Run is called.
func New() *Reaper { return &Reaper{own: make(map[int]struct{})} }

// Start is cmd.Start. Done must be called after cmd.Wait.
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

// Done records that a process was waited for, after which its PID may be reused.
func (r *Reaper) Done(cmd *exec.Cmd) {
	if r == nil || cmd.Process == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.own, cmd.Process.Pid)
}
