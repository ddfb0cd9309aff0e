package istio

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fieldsFile has the state of every field: kind, path, state, reason.
const fieldsFile = "../../../mesh/config/fields.txt"

// Every field of VirtualService and DestinationRule that holdfast-mesh supports occurs in a case, but for
// those in uncovered.txt, which may only become fewer. Run with UNCOVERED=write, the test writes the
// file.
func TestEverySupportedFieldOccursInACase(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.yaml")
	check(t, err)
	var documents []document
	ports := make(map[string]int)
	for _, name := range slices.Concat(plainBackends, tlsBackends, tcpBackends, []string{"dead"}) {
		ports[name] = 1
	}
	for _, path := range files {
		for _, g := range readGroups(t, path, ports, "/certs") {
			documents = append(documents, g.documents...)
		}
	}
	var uncovered []string
	for _, field := range supportedFields(t) {
		kind, path, _ := strings.Cut(field, " ")
		if !slices.ContainsFunc(documents, func(d document) bool {
			return d.kind == kind && occurs(d.body["spec"], strings.Split(path, "."))
		}) {
			uncovered = append(uncovered, field)
		}
	}
	if os.Getenv("UNCOVERED") == "write" {
		check(t, os.WriteFile("uncovered.txt", []byte(strings.Join(append(uncovered, ""), "\n")), 0o644))
	}
	text, err := os.ReadFile("uncovered.txt")
	check(t, err)
	listed := slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool { return line == "" })
	for _, field := range uncovered {
		if !slices.Contains(listed, field) {
			t.Errorf("no case has %s", field)
		}
	}
	for _, field := range listed {
		if !slices.Contains(uncovered, field) {
			t.Errorf("a case has %s: remove it from uncovered.txt", field)
		}
	}
}

// supportedFields returns the fields with the state yes, each as kind and path.
func supportedFields(t *testing.T) (fields []string) {
	t.Helper()
	text, err := os.ReadFile(fieldsFile)
	check(t, err)
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) > 2 && words[2] == "yes" && (words[0] == "VirtualService" || words[0] == "DestinationRule") {
			fields = append(fields, words[0]+" "+words[1])
		}
	}
	if len(fields) == 0 {
		t.Fatalf("%s has no supported fields", fieldsFile)
	}
	return fields
}

// occurs reports whether a value has a path: name, name[] for each of a list, or name{} for each of a
// map.
func occurs(value any, path []string) bool {
	if len(path) == 0 {
		return true
	}
	fields, ok := value.(map[string]any)
	if !ok {
		return false
	}
	name := strings.TrimRight(path[0], "[]{}")
	below, ok := fields[name]
	if !ok {
		return false
	}
	has := func(v any) bool { return occurs(v, path[1:]) }
	switch {
	case strings.HasSuffix(path[0], "[]"):
		list, _ := below.([]any)
		return slices.ContainsFunc(list, has)
	case strings.HasSuffix(path[0], "{}"):
		entries, _ := below.(map[string]any)
		for _, v := range entries {
			if has(v) {
				return true
			}
		}
		return false
	}
	return has(below)
}
