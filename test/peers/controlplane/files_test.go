package controlplane

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest/reading"
)

// asBootstrap finds the bootstraps among the files of others.
var asBootstrap = regexp.MustCompile(`"?(static_resources|dynamic_resources|staticResources|dynamicResources)"?:`)

// The bootstraps in the modules of others, go-control-plane's samples and what Istio's own tests have, mean to holdfast what they mean
// to Envoy.
func TestEnvoyReadsTheBootstrapsOfOthers(t *testing.T) {
	readers := make(map[string]*reading.Reader)
	for _, of := range []struct {
		from, module string
		least        int
	}{{".", "github.com/envoyproxy/go-control-plane", 5}, {"../istio", "istio.io/istio", 20}} {
		accepted := 0
		err := filepath.WalkDir(directoryOf(t, of.from, of.module), func(path string, d fs.DirEntry, err error) error {
			if extension := filepath.Ext(path); err != nil || d.IsDir() || extension != ".json" && extension != ".yaml" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil || !asBootstrap.Match(text) || strings.Contains(string(text), "{{") || strings.Contains(string(text), "apiVersion") {
				return err // templates, and documents of Kubernetes
			}
			taken, difference := reading.File(t, "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap", path, readers)
			if difference != "" {
				t.Errorf("%s\n%s", path, difference)
			}
			if taken {
				accepted++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if t.Logf("%s: %d bootstraps are accepted", of.module, accepted); accepted < of.least {
			t.Errorf("%s: only %d bootstraps are accepted", of.module, accepted)
		}
	}
}

// gateway is the release of Envoy Gateway whose tests have the resources that it makes.
const gateway = "github.com/envoyproxy/gateway@v1.9.1"

// What Envoy Gateway makes of its users' documents means to holdfast what it means to Envoy.
func TestEnvoyReadsTheResourcesOfEnvoyGateway(t *testing.T) {
	dir := filepath.Join(directoryOf(t, ".", gateway), "internal", "xds", "translator", "testdata", "out", "xds-ir")
	const config = "type.googleapis.com/envoy.config."
	kinds := map[string]string{
		"clusters": config + "cluster.v3.Cluster", "listeners": config + "listener.v3.Listener", "routes": config + "route.v3.RouteConfiguration",
		"endpoints": config + "endpoint.v3.ClusterLoadAssignment", "secrets": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r := reading.New(t, ".yaml")
	accepted := 0
	for _, file := range files {
		parts := strings.Split(filepath.Base(file), ".")
		typeURL := kinds[parts[len(parts)-2]]
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if typeURL == "" || !strings.HasPrefix(string(text), "- ") {
			continue // patches, and lists of nothing
		}
		taken, difference := r.Agree(strings.Join(parts, "-"), reading.List(typeURL, string(text)))
		if difference != "" {
			t.Errorf("%s\n%s", filepath.Base(file), difference)
		}
		if taken {
			accepted++
		}
	}
	if t.Logf("%d files are accepted", accepted); accepted < 800 {
		t.Errorf("only %d of %d files are accepted", accepted, len(files))
	}
}

// directoryOf returns the directory of a module, from one that requires it.
func directoryOf(t *testing.T, from, module string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = from
	out, err := cmd.Output()
	var is struct{ Dir string }
	if err != nil || json.Unmarshal(out, &is) != nil {
		t.Fatalf("%s: %v\n%s", module, err, out)
	}
	return is.Dir
}
