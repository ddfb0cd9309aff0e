package main

import (
	"log/slog"
	"syscall"

	"golang.org/x/sys/unix"
)

// harden gives up what the process, and an Envoy that it runs, have no need of: files
// that others can read, core dumps, which would hold keys, and new privileges by
// programs that are started. It is called before the first secret is read. What the kernel refuses
// is told, and no reason to stop.
func harden(log *slog.Logger) {
	syscall.Umask(0o077)
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		log.Warn("core dumps cannot be disabled", "err", err)
	}
	// The limit does not hold where the kernel pipes core dumps to a program. This does, and it
	// closes /proc/PID/mem and environ to other processes of the same user: to an Envoy that the
	// agent runs, whose own is as open as ever, since it begins anew with the program.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		log.Warn("other processes of this user can read the memory of the agent", "err", err)
	}
	// For all threads, of which any may start a program.
	if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 && errno != syscall.ENOTSUP {
		log.Warn("no_new_privs cannot be set", "err", errno)
	}
}
