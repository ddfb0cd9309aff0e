// Package environ selects the environment variables for programs that holdfast starts. It has no state;
// its functions may be called concurrently.
package environ

import (
	"os"
	"slices"
	"strings"
)

// Prefix is the prefix of every variable that is a setting of holdfast.
const Prefix = "HOLDFAST_"

// systemd has the variables by which systemd speaks with the process that it started, and with no other
// (sd_notify(3)).
var systemd = []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}

// ForChild returns the environment of this process without what is for this process alone: the variables
// of systemd, and the settings of holdfast, some of which are secrets (HOLDFAST_UPSTREAM_HEADER). They
// would be visible to an attacker in the started program, and to everybody who may read its environment.
func ForChild() []string {
	return slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return strings.HasPrefix(pair, Prefix) || slices.Contains(systemd, name)
	})
}

// minimal are the variables that a program may need to run at all.
var minimal = []string{"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"}

// Minimal returns the variables of this process that a program may need to run at all, for one that somebody else's
// configuration may make read them.
func Minimal() []string {
	pairs := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return !slices.Contains(minimal, name)
	})
	return append([]string{}, pairs...) // not nil, which means all of them to package os/exec
}
