package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// released finds the commit of the last release in the Makefile.
var released = regexp.MustCompile(`(?m)^released := (\S+)$`)

// Released returns a program of the last release, "holdfast" or "holdfast-mesh", and the version that it says it is. The error
// says that it was not built, and how it is: `make previous` cannot build it in a clone without its commit.
func Released(root, program string) (path, version string, err error) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return "", "", err
	}
	m := released.FindSubmatch(text)
	if m == nil {
		return "", "", fmt.Errorf("%s/Makefile does not say which commit was released", root)
	}
	version = string(m[1])
	path = filepath.Join(root, "bin", program+"-"+version)
	if _, err := os.Stat(path); err != nil {
		return "", "", fmt.Errorf("%w: run `make previous` in a clone that has the commit %s (git fetch --unshallow)", err, version)
	}
	return path, version, nil
}
