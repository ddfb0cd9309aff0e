package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// The variables of Istio's webhook are read with --istio only, and a bad one is an error like a bad flag.
func TestABadVariableOfTheWebhookEndsTheStart(t *testing.T) {
	dir := t.TempDir()
	args := []string{"run", "--upstream", "file:" + dir, "--admin", "", "--socket", filepath.Join(dir, "run", "xds.sock")}
	t.Setenv("ISTIO_KUBE_APP_PROBERS", `{"/app-health/web/livez":{"httpGet":{"port":0}}}`)
	const about = "holdfast: ISTIO_KUBE_APP_PROBERS: /app-health/web/livez: port 0: want a number from 1 to 65535. "
	for _, tc := range []struct {
		name    string
		environ []string
		more    []string
		code    int
		want    string
	}{
		{"with the flag", nil, []string{"--istio", "--health", "127.0.0.1:0"}, 2, about},
		{"with its variable", []string{"HOLDFAST_ISTIO=true"}, []string{"--health", "127.0.0.1:0"}, 2, about},
		{"without it", nil, []string{"--health", "127.0.0.1:0"}, 0, ""},
		{"without a listener", nil, []string{"--istio", "--health", ""}, 2, "holdfast: --istio needs --health: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := call(t, tc.environ, append(args, tc.more...)...)
			if got.code != tc.code || !strings.Contains(got.errors, tc.want) || tc.code == 2 && strings.Count(got.errors, "\n") != 1 {
				t.Errorf("exit %d\n%s", got.code, got.errors)
			}
		})
	}
}
