package generate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/mesh/config"
)

// Envoy takes the formats and the regular expressions that validate takes: all of them in one listener and one route configuration, as any
// tenant may write them for a port of all.
func TestEnvoyTakesTheTextsThatAreValid(t *testing.T) {
	lines := func(name string) []string {
		text, err := os.ReadFile(filepath.Join("..", "config", "testdata", "envoy", name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	quoted := func(text string) string {
		out, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	document := func(routes ...string) string {
		return istio("VirtualService", "red", "v", "hosts: [r.test], http: ["+strings.Join(routes, ", ")+"]")
	}
	format := func(text string) string {
		return "{headers: {request: {set: {x: " + quoted(text) + "}}}, directResponse: {status: 200}, match: [{uri: {prefix: /a}}]}"
	}
	regex := func(text string) string {
		return "{match: [{uri: {regex: " + quoted(text) + "}}], directResponse: {status: 200}}"
	}
	var all []string
	for _, text := range lines("formats-taken.txt") {
		all = append(all, format(text))
	}
	for _, text := range lines("regexes-taken.txt") {
		all = append(all, regex(text))
	}
	docs, broken := config.Read("x.yaml", []byte(document(all...)))
	if broken != nil || config.Invalid(docs[0].Problems) {
		t.Fatal(broken, docs)
	}
	service := redService("r.test", "ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.0.0.1}]")
	if problem := envoyTakes(t, envoytest.Binary(t), t.TempDir(), service+"---\n"+document(all...)); problem != "" {
		t.Error(problem)
	}
	for name, one := range map[string]func(string) string{"formats-refused.txt": format, "regexes-refused.txt": regex} {
		for _, text := range lines(name) {
			docs, broken := config.Read("x.yaml", []byte(document(one(text))))
			if broken != nil {
				t.Fatal(broken)
			}
			if !config.Invalid(docs[0].Problems) {
				t.Errorf("%.80s is valid", text)
			}
		}
	}
}
