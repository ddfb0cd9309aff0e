package environ

import (
	"slices"
	"strings"
	"testing"
)

func TestSettingsStayWithTheAgentAndTheRestIsPassedOn(t *testing.T) {
	t.Setenv("HOLDFAST_UPSTREAM_HEADER", "x-token=secret")
	t.Setenv("HOLDFAST_SERVICE_HOST", "192.0.2.1") // Kubernetes sets it for a Service named holdfast
	t.Setenv("MY_HOLDFAST_X", "kept")
	got := ForChild()
	if !slices.Contains(got, "MY_HOLDFAST_X=kept") || slices.ContainsFunc(got, func(pair string) bool { return strings.HasPrefix(pair, Prefix) }) {
		t.Errorf("%d variables, of which MY_HOLDFAST_X must be one, and none of holdfast", len(got))
	}
}
