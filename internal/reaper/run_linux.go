package reaper

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// scanPeriod is how often zombies are searched without a signal: the kernel may send one signal for
// several processes.
const scanPeriod = 10 * time.Second

// Run reaps zombies until ctx ends. It does nothing in a process that inherits none: one that is
// neither PID 1 nor a subreaper.
func (r *Reaper) Run(ctx context.Context) {
	if os.Getpid() != 1 && !subreaper() {
		return
	}
	ended := make(chan os.Signal, 1) // never closed
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	ticker := time.NewTicker(scanPeriod)
	defer ticker.Stop()
	for {
		r.reap()
		select {
		case <-ctx.Done():
			return
		case <-ended:
		case <-ticker.C:
		}
	}
}

func subreaper() bool {
	var is int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&is)), 0, 0, 0)
	return err == nil && is != 0
}

// reap reaps every zombie that is a child of this process and was not started by it.
func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	me := os.Getpid()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if _, own := r.own[pid]; own || !isZombieOf(pid, me) {
			continue
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // the exit status is not needed
	}
}

// isZombieOf reports whether a process is a zombie and a child of parent.
func isZombieOf(pid, parent int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// "PID (NAME) STATE PPID …"; the name may have any character.
	at := bytes.LastIndexByte(stat, ')')
	if at < 0 {
		return false
	}
	fields := bytes.Fields(stat[at+1:])
	return len(fields) > 1 && string(fields[0]) == "Z" && string(fields[1]) == strconv.Itoa(parent)
}
