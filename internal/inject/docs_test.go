package inject

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// docs/inject.md lists every annotation, every key that cannot be changed and every port, and no annotation that is none.
func TestThePageOnInjectionIsComplete(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(envoytest.Root(t), "docs", "inject.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	known := append(Annotations(), statusAnnotation, settingsAnnotation)
	for _, name := range slices.Concat(known, fixed, slices.Sorted(maps.Keys(ports))) {
		if name != "config" && !strings.Contains(page, name) {
			t.Errorf("docs/inject.md does not name %s", name)
		}
	}
	for _, name := range regexp.MustCompile(`holdfast\.dev/[a-z-]+`).FindAllString(page, -1) {
		if !slices.Contains(known, name) {
			t.Errorf("docs/inject.md names %s, which is no annotation", name)
		}
	}
	for kind := range kinds {
		if !strings.Contains(page, kind+"s") {
			t.Errorf("docs/inject.md does not name %ss", kind)
		}
	}
}
