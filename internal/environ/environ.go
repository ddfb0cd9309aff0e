// Package environ says which variables of the environment a program gets that holdfast starts.
//
// It keeps no state; its functions may be called concurrently.
package environ

import (
	"os"
	"slices"
	"strings"
)

// Prefix begins the name of every variable that is a setting of holdfast.
const Prefix = "HOLDFAST_"

// ForChild returns the environment of this process for a program that it starts: without the
// settings of holdfast, of which some are secrets (HOLDFAST_UPSTREAM_HEADER). A program that somebody
// takes over would have them to read, and everybody who may read its environment.
func ForChild() []string {
	return slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, Prefix) })
}
