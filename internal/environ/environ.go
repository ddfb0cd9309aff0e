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

// ForChild returns the environment of this process without the settings of holdfast, some of which are
// secrets (HOLDFAST_UPSTREAM_HEADER). They would be visible to an attacker in the started program, and
// to everybody who may read its environment.
func ForChild() []string {
	return slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, Prefix) })
}
