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

// Oldest and Newest are the minor releases of Envoy 1 with which the end-to-end tests pass.
const (
	Oldest = 36
	Newest = 40
)

// versionTimeout bounds the run of `envoy --version`.
const versionTimeout = 10 * time.Second

// CheckVersion determines the version of a binary. warning explains the risk if it is not a
// tested version, and is "" otherwise. It fails if the binary cannot be run.
func CheckVersion(ctx context.Context, binary string) (release, warning string, err error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "--version")
	cmd.Env = environ.ForChild()
	out, err := cmd.CombinedOutput()
	if err != nil {
		message, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return "", "", fmt.Errorf("%s --version: %w: %.200q: is it Envoy?", binary, err, message)
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
