package yamlproto_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/envoytest/reading"
)

// bootstrapFile finds what is a bootstrap, or a part of one.
var bootstrapFile = regexp.MustCompile(`(?m)^\s*"?(static_resources|dynamic_resources|staticResources|dynamicResources|admin|bootstrap_extensions|stats_config|layered_runtime|tracing|overload_manager)"?:`)

// The files of this project that Envoy reads, or is to read, mean to holdfast what they mean to Envoy.
func TestEnvoyReadsTheFilesOfTheProject(t *testing.T) {
	root := envoytest.Root(t)
	readers := make(map[string]*reading.Reader)
	accepted := 0
	for _, dir := range []string{"examples", "bootstrap/testdata", "bootstrap/istio/testdata", "deploy", "test/demo"} {
		must(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			extension := filepath.Ext(path)
			if err != nil || d.IsDir() || extension != ".yaml" && extension != ".json" || strings.HasSuffix(path, ".patch.yaml") || strings.HasSuffix(path, ".merge.yaml") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil || !bootstrapFile.Match(text) || strings.Contains(string(text), "apiVersion:") {
				return err
			}
			taken, difference := reading.File(t, "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap", path, readers)
			if difference != "" {
				t.Errorf("%s\n%s", path, difference)
			}
			if taken {
				accepted++
			}
			return nil
		}))
	}
	t.Logf("%d files are accepted", accepted)
	if accepted < 30 {
		t.Errorf("only %d files are accepted", accepted)
	}
}
