package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/test/testbed"
	"github.com/holdfast-xds/holdfast/test/testbed/tutorial"
)

// What docs/try.md says works as it is written, but for ports, the directory, the examples, which have ports, too, and the path of Envoy.
func TestTryingByHandPrintsWhatThePageSays(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast-try-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(envoytest.Root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := read("docs/try.md")
	if n := strings.Count(page, "```sh"); n < 15 {
		t.Fatalf("docs/try.md has %d blocks of commands", n)
	}
	page = strings.ReplaceAll(page, "/tmp/holdfast", filepath.Join(dir, "all"))
	page = strings.ReplaceAll(page, "examples/mesh", filepath.Join(dir, "examples"))
	page = strings.ReplaceAll(page, ".envoy/envoy-"+envoytest.Version, envoytest.Binary(t))
	page = strings.ReplaceAll(page, "bin/holdfast controlplane", "bin/holdfast controlplane --listen 127.0.0.1:18000")
	page = strings.ReplaceAll(page, "bin/holdfast bootstrap", "bin/holdfast bootstrap --envoy-admin 127.0.0.1:15000")
	examples := make(map[string]string)
	for _, name := range []string{"clusters.yaml", "endpoints.yaml", "listeners.yaml", "routes.yaml"} {
		examples[name] = read("examples/mesh/" + name)
	}
	for _, port := range []int{8081, 8082, 18000, 10000, 15000, 15020} {
		free, err := testbed.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		other := regexp.MustCompile(`\b` + strconv.Itoa(port) + `\b`)
		page = other.ReplaceAllString(page, strconv.Itoa(free))
		for name, text := range examples {
			examples[name] = other.ReplaceAllString(text, strconv.Itoa(free))
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "examples"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range examples {
		if err := os.WriteFile(filepath.Join(dir, "examples", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	blocks, err := tutorial.Blocks(page)
	if err != nil {
		t.Fatal(err)
	}
	sh := tutorial.NewShell(t, envoytest.Root(t))
	sh.FollowAll(blocks[1:], limit, filepath.Join(dir, "all")) // `make` has run the first one
	if _, err := os.Stat(filepath.Join(dir, "all")); !os.IsNotExist(err) {
		t.Errorf("left behind: %v", err)
	}
}
