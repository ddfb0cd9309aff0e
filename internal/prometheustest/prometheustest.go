// Package prometheustest finds the real Prometheus for tests. As with Envoy, a test that needs a missing
// one fails: `make prometheus` fetches it.
package prometheustest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// Binary returns the absolute path of "prometheus" or "promtool": in the directory that the environment
// variable PROMETHEUS names (relative to the root of the repository), or else where `make prometheus`
// puts them.
func Binary(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("PROMETHEUS")
	if dir == "" {
		dir = filepath.Join(".peers", "prometheus")
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(envoytest.Root(t), dir)
	}
	path := filepath.Join(dir, name)
	if _, err := exec.LookPath(path); err != nil {
		t.Fatalf("this test needs %s (%v): run `make prometheus`, or let PROMETHEUS name a directory that has it", name, err)
	}
	return path
}
