package istio

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"istio.io/istio/pilot/pkg/features"
	istiolog "istio.io/istio/pkg/log"
)

var keep = flag.String("keep", "", "write what each Envoy was given, and the documents, below this `directory`")

// The programs under test, with absolute paths.
var holdfastBinary, agentBinary, envoyBinary string

// moduleDir is the directory of this module, which a test may leave.
var moduleDir string

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(insideVariable) == "" {
		code, err := runInNamespace()
		if err != nil {
			fmt.Fprintln(os.Stderr, "the tests need a network namespace of their own (Linux, and root or user namespaces):", err)
			os.Exit(1)
		}
		os.Exit(code)
	}
	if err := setUpNamespace(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := findPrograms(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Envoy as released lacks these two filters of Istio.
	features.MetadataExchange, features.ALPNFilter = false, false
	features.EnableTLSOnSidecarIngress = true // else istiod ignores the field, while holdfast-mesh has no such switch
	for _, scope := range istiolog.Scopes() {
		scope.SetOutputLevel(istiolog.NoneLevel)
	}
	os.Exit(m.Run())
}

// findPrograms finds holdfast-mesh, holdfast and Envoy: by the variables HOLDFAST_MESH, HOLDFAST and ENVOY, or where make
// build and make envoy put them.
func findPrograms() (err error) {
	if moduleDir, err = os.Getwd(); err != nil {
		return err
	}
	if agentBinary, err = program("HOLDFAST", "../../../bin/holdfast", "make build"); err != nil {
		return err
	}
	if holdfastBinary, err = program("HOLDFAST_MESH", "../../../bin/holdfast-mesh", "make build"); err != nil {
		return err
	}
	envoyBinary, err = program("ENVOY", "../../../.envoy/envoy-*", "make envoy")
	return err
}

func program(variable, pattern, target string) (string, error) {
	path := os.Getenv(variable)
	if path == "" {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			return "", fmt.Errorf("%s does not exist: run %s, or set %s", pattern, target, variable)
		}
		path = found[len(found)-1]
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s: %w", variable, err)
	}
	return filepath.Abs(path)
}

// eventually polls until a condition holds, for at most the limit.
func eventually(limit time.Duration, condition func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %w", limit, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// readAll reads a body, or returns as much of it as there was.
func readAll(r io.Reader) string {
	b, _ := io.ReadAll(io.LimitReader(r, 64<<20))
	return string(b)
}
