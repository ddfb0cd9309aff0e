package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
	"github.com/holdfast-xds/holdfast/test/testbed/tutorial"
)

// The commands of docs/getting-started.md for Kubernetes are run as they are written, but for the registry, with the chart of the
// release, and print what the page says.
func TestTheFirstStepsInAClusterPrintWhatThePageSays(t *testing.T) {
	blocks, err := tutorial.Read(filepath.Join(rig.Repository(), "docs", "getting-started.md"), "## In Kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	runsCurl := func(b tutorial.Block) bool { return strings.Contains(b.Commands, "image: "+rig.Curl) }
	if len(blocks) < 9 || !slices.ContainsFunc(blocks, runsCurl) {
		t.Fatalf("the page has %d blocks", len(blocks))
	}
	dir := t.TempDir()
	chart, err := filepath.Glob(filepath.Join(rig.Dist, "holdfast-*.tgz"))
	if err != nil || len(chart) != 1 {
		t.Fatalf("the chart of the release: %q %v", chart, err)
	}
	if err := os.Symlink(chart[0], filepath.Join(dir, filepath.Base(chart[0]))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = rig.Helm(dir, "uninstall", "holdfast", "--namespace", "holdfast", "--ignore-not-found")
		_, _ = rig.Node.Kubectl("delete", "namespace", "shop", "holdfast", "--ignore-not-found")
	})
	for _, b := range blocks {
		deadline := time.Now().Add(time.Minute)
		for {
			got, err := inCluster(t, dir, strings.ReplaceAll(b.Commands, "registry.example/", "docker.io/library/"))
			if err == nil && b.Prints && !tutorial.Matches(got, b.Want) {
				err = fmt.Errorf("want\n%s", b.Want)
			}
			if err == nil {
				t.Logf("%s%s", b.Commands, got)
				break
			}
			if !b.Again || time.Now().After(deadline) {
				pods, _ := rig.Node.Kubectl("get", "pods", "--namespace", "shop", "--output", "wide")
				t.Fatalf("the commands\n%sprint\n%s%v\n%s", b.Commands, got, err, pods)
			}
			time.Sleep(time.Second)
		}
	}
	left, err := rig.Node.Kubectl("get", "namespace", "shop", "holdfast", "--ignore-not-found", "--output", "name")
	if err != nil || left != "" {
		t.Errorf("left behind: %s %v", left, err)
	}
}

// inCluster runs commands as somebody with all rights in the cluster, and returns what they print.
func inCluster(t *testing.T, dir, commands string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := rig.Shell(dir, commands)
	stop := context.AfterFunc(ctx, func() {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
		}
	})
	defer stop()
	out, err := cmd.CombinedOutput()
	return string(out), err
}
