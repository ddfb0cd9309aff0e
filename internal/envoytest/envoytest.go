// Package envoytest finds the real Envoy for tests. It does not download Envoy: `make envoy` does, and
// a test that needs a missing Envoy fails instead of being skipped, because a skipped test looks like a
// passed one. Only if ENVOY is "none", as `make check` says, which needs no Envoy, it is skipped; `make test` plays it.
//
// Its functions may be called concurrently, but from the goroutine of the test, because they may call
// testing.TB.FailNow.
package envoytest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Version is the default version of Envoy for tests, equal to ENVOY_VERSION of the Makefile.
const Version = "1.40.0"

// Binary returns the absolute path of the Envoy for tests: the value of the environment variable ENVOY
// (a path, relative to the root of the repository, or a command in PATH), or else the pinned Version
// that `make envoy` downloads.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("ENVOY"); path != "" && path != none {
		return named(t, path)
	}
	return BinaryVersion(t, Version)
}

// none is the value of ENVOY for tests without those that need one.
const none = "none"

// BinaryVersion returns the absolute path of a pinned version, and ignores the variable ENVOY but for "none".
func BinaryVersion(t testing.TB, version string) string {
	t.Helper()
	if os.Getenv("ENVOY") == none {
		t.Skip("it needs an Envoy: make test plays it")
	}
	path := filepath.Join(Root(t), ".envoy", "envoy-"+version)
	if _, err := exec.LookPath(path); err != nil {
		t.Fatalf("this test needs Envoy %s (%v): run `%s`", version, err, fetchCommand(version))
	}
	return path
}

func named(t testing.TB, path string) string {
	t.Helper()
	resolved := path
	if strings.ContainsRune(path, filepath.Separator) && !filepath.IsAbs(path) {
		resolved = filepath.Join(Root(t), path)
	}
	resolved, err := exec.LookPath(resolved)
	if err != nil {
		t.Fatalf("this test needs an Envoy, and ENVOY=%s is none (%v): correct it, or unset it and run `make envoy`", path, err)
	}
	return resolved
}

func fetchCommand(version string) string {
	if version == Version {
		return "make envoy"
	}
	return "make envoy ENVOY= ENVOY_VERSION=" + version
}

// module is the beginning of the go.mod in the root of the repository. Modules below test have a go.mod
// of their own.
const module = "module github.com/holdfast-xds/holdfast\n"

// Root returns the root directory of the repository that contains the test.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd() // go test starts a test in the directory of its package
	if err != nil {
		t.Fatal(err)
	}
	for {
		if mod, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(mod), module) {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod of holdfast above the directory of the test")
		}
		dir = parent
	}
}
