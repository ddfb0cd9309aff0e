package admin

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-xds/holdfast/internal/logqueue"
)

// described are the metrics of the agent, by name, with their labels in alphabetical order.
func described(t *testing.T) map[string]string {
	m := NewMetrics("v")
	m.UpstreamCertificate(time.Unix(1, 0)) // it is there from now on
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		m.registry.Describe(descs)
		(&stateCollector{metrics: m}).Describe(descs)
		new(logqueue.Queue).Describe(descs)
	}()
	form := regexp.MustCompile(`fqName: "((?:holdfast|grpc)_[a-z0-9_]+)".*variableLabels: \{([^}]*)\}`)
	out := make(map[string]string)
	for d := range descs {
		if f := form.FindStringSubmatch(d.String()); f != nil {
			labels := strings.FieldsFunc(f[2], func(r rune) bool { return r == ',' || r == ' ' })
			slices.Sort(labels)
			out[f[1]] = strings.Join(labels, ", ")
		}
	}
	if len(out) < 40 {
		t.Fatalf("only %d metrics are described: has the form of Desc.String changed?", len(out))
	}
	return out
}

// docs/metrics.md lists each metric with its labels, and nothing else.
func TestTheDocumentOfMetricsListsAllOfThem(t *testing.T) {
	const file = "../../docs/metrics.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `((?:holdfast|grpc)_[a-z0-9_]+)` \\| ([a-z]+) \\|([^|]*)\\| [^|]+ \\|$")
	documented := make(map[string]string)
	for _, r := range row.FindAllStringSubmatch(string(text), -1) {
		if _, twice := documented[r[1]]; twice {
			t.Errorf("%s: %s has two rows", file, r[1])
		}
		var labels []string
		for _, l := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(r[3], -1) {
			labels = append(labels, l[1])
		}
		slices.Sort(labels)
		documented[r[1]] = strings.Join(labels, ", ")
		if counter := strings.HasSuffix(r[1], "_total"); counter != (r[2] == "counter") {
			t.Errorf("%s: %s is called a %s", file, r[1], r[2])
		}
	}
	is := described(t)
	is["holdfast_build_info"] = "go_version, version" // constant labels
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if labels, ok := documented[name]; !ok {
			t.Errorf("%s does not list %s", file, name)
		} else if labels != is[name] {
			t.Errorf("%s: %s has the labels %q, and %q are listed", file, name, is[name], labels)
		}
	}
	for name := range documented {
		if _, ok := is[name]; !ok {
			t.Errorf("%s lists %s, which there is not", file, name)
		}
	}
	if t.Failed() {
		var rows []string
		for name, labels := range is {
			rows = append(rows, fmt.Sprintf("%s {%s}", name, labels))
		}
		slices.Sort(rows)
		t.Logf("the metrics are:\n%s", strings.Join(rows, "\n"))
	}
}
