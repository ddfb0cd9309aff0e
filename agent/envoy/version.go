package envoy

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/environ"
)

// Oldest and Newest are the minor releases of Envoy 1 that the end-to-end tests
// pass with.
const (
	Oldest = 36
	Newest = 40
)

// versionTimeout bounds how long `envoy --version` is waited for.
const versionTimeout = 10 * time.Second

// CheckVersion asks a binary for its version. warning says, if it is none of those
// that were tested, what to expect; "" otherwise. It fails where the binary cannot be
// run.
func CheckVersion(ctx context.Context, binary string) (release, warning string, err error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	ask := exec.CommandContext(ctx, binary, "--version")
	ask.Env = environ.ForChild()
	out, err := ask.CombinedOutput()
	if err != nil {
		said, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return "", "", fmt.Errorf("%s --version: %w: %.200q: is it Envoy?", binary, err, said)
	}
	_, version, ok := strings.Cut(string(out), "version: ")
	if !ok {
		return "", fmt.Sprintf("%s does not print its version: is it Envoy?", binary), nil
	}
	release = releaseOf(strings.TrimSpace(version))
	major, rest, _ := strings.Cut(release, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	switch {
	case major != "1" || err != nil:
		return release, fmt.Sprintf("Envoy %q is not a known release", release), nil
	case n < Oldest:
		return release, fmt.Sprintf("Envoy %s is older than 1.%d, the oldest release that this version was tested with", release, Oldest), nil
	case n > Newest:
		return release, fmt.Sprintf("Envoy %s is newer than 1.%d, the newest release that this version was tested with", release, Newest), nil
	}
	return release, "", nil
}
