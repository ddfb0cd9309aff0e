package injector

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

func TestTheDocumentationHasEveryMetricResultAndKey(t *testing.T) {
	file, err := os.ReadFile(filepath.Join(envoytest.Root(t), "docs", "injector.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(file)
	found := must[[]string](t)(metricNames())
	if len(found) < 9 {
		t.Errorf("metrics %v", found)
	}
	for _, name := range found {
		if !strings.Contains(text, "`"+name) {
			t.Errorf("docs/injector.md lacks %s", name)
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `(holdfast_injector_[a-z_]+)` \\|").FindAllStringSubmatch(text, -1) {
		if !slices.Contains(found, row[1]) {
			t.Errorf("docs/injector.md has %s, which does not exist", row[1])
		}
	}
	for _, r := range results {
		if !strings.Contains(text, "`"+r+"`") {
			t.Errorf("docs/injector.md lacks the result %s", r)
		}
	}
	keys := reflect.TypeFor[values]()
	for i := range keys.NumField() {
		if key := keys.Field(i).Tag.Get("yaml"); !strings.Contains(text, "`"+key+"`") {
			t.Errorf("docs/injector.md lacks the key %s", key)
		}
	}
}

func metricNames() (names []string, err error) {
	families, err := newMetrics("test").registry.Gather()
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "holdfast_") {
			names = append(names, f.GetName())
		}
	}
	return names, err
}
