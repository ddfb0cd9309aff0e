package main

import (
	"log/slog"
	"syscall"

	"golang.org/x/sys/unix"
)

// harden makes new files private, disables core dumps, which would contain keys, and prevents
// programs that the process starts from getting new privileges. It is called before the first
// secret is read. If the kernel rejects one of these, harden logs a warning and continues.
func harden(log *slog.Logger) {
	syscall.Umask(0o077)
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		log.Warn("core dumps cannot be disabled", "err", err)
	}
	// The limit has no effect if the kernel pipes core dumps to a program; this has. It also denies
	// access to /proc/PID/mem and environ to other processes of the same user, such as an Envoy
	// that the agent runs. Envoy itself is not affected, because exec resets it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		log.Warn("other processes of this user can read the memory of the agent", "err", err)
	}
	// For all threads, because any of them may start a program.
	if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 && errno != syscall.ENOTSUP {
		log.Warn("no_new_privs cannot be set", "err", errno)
	}
}
