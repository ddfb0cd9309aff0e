package testbed

import "testing"

// Long skips a test that takes long, as it repeats, waits or soaks, with -short, as `make test` and .ci/run play the tests: `make test-all` plays
// it whole.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make test-all plays it")
	}
}

// Times is how often a test repeats what it repeats: all times, and with -short a fraction of it.
func Times(all, short int) int {
	if testing.Short() {
		return short
	}
	return all
}
