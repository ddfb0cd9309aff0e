package istio

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write coverage.md")

// fieldsFile has the state of every field: kind, path, state, reason.
const fieldsFile = "../../../mesh/config/fields.txt"

// coveredKinds are the kinds whose supported fields must occur in cases.
var coveredKinds = []string{
	"ServiceEntry", "WorkloadEntry", "VirtualService", "DestinationRule", "Gateway", "Sidecar", "PeerAuthentication", "EnvoyFilter",
	"Telemetry", "Service", "EndpointSlice", "Node", "Ingress", "MeshConfig", "MeshNetworks", "ConfigMap",
	"GatewayClass", "KubernetesGateway", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "ReferenceGrant", "BackendTLSPolicy",
}

// wantCases is in how many cases a supported field must occur, and shownCases how many of them the
// table names.
const (
	wantCases  = 2
	shownCases = 6
)

// Every supported field occurs in two cases or is in uncovered.txt with the reason why no request can
// show it, half of the cases combine two features, and coverage.md says which cases these are.
func TestEverySupportedFieldOccursInTwoCasesAndHalfOfTheCasesCombineFeatures(t *testing.T) {
	cases := readCoveredCases(t)
	reasons := readUncovered(t)
	var table strings.Builder
	for _, field := range supportedFields(t) {
		kind, path, _ := strings.Cut(field, " ")
		var users []string
		for _, c := range cases {
			if c.has(kind, path, "") {
				users = append(users, c.name)
			}
		}
		reason, listed := reasons[field]
		delete(reasons, field)
		switch {
		case len(users) < wantCases && !listed:
			t.Errorf("%d cases have %s: %v", len(users), field, users)
		case len(users) >= wantCases && listed:
			t.Errorf("%d cases have %s: remove it from uncovered.txt", len(users), field)
		}
		fmt.Fprintf(&table, "| %s | `%s` | %d | %s |\n", kind, path, len(users), summary(users, reason))
	}
	for field := range reasons {
		t.Errorf("uncovered.txt: %s is no supported field", field)
	}
	count := make(map[string]int)
	combined := 0
	for _, c := range cases {
		found := c.features()
		if len(found) >= 2 {
			combined++
		}
		for _, f := range found {
			count[f]++
		}
	}
	if 2*combined < len(cases) {
		t.Errorf("%d of %d cases combine two features, want half", combined, len(cases))
	}
	checkTable(t, fmt.Sprintf(coverageHead, len(cases), combined, featureList(t, count), table.String()))
}

// coverageHead is coverage.md.
const coverageHead = `# What the cases cover

Written by ` + "`go test -run TestEverySupportedField -update`" + `; do not edit. README.md says what a case and a feature are.

%d cases; %d of them combine two or more features. The cases of each feature:

%s
Each supported field (mesh/config/fields.txt) with the number of its cases and the first of them:

| kind | field | cases | |
| --- | --- | --- | --- |
%s`

func checkTable(t *testing.T, text string) {
	t.Helper()
	if *update {
		check(t, os.WriteFile("coverage.md", []byte(text), 0o644))
	}
	written, err := os.ReadFile("coverage.md")
	check(t, err)
	if string(written) != text {
		t.Error("coverage.md is out of date: run the test with -update")
	}
}

func summary(users []string, reason string) string {
	text := strings.Join(users[:min(len(users), shownCases)], ", ")
	if len(users) > shownCases {
		text += ", …"
	}
	if reason != "" {
		text = strings.TrimSpace(text + " not twice: " + reason)
	}
	return text
}

// coveredCase is a case with what it shares with its group.
type coveredCase struct {
	name      string
	captured  bool
	documents []document
}

// readCoveredCases reads all cases, with ports that nobody listens on.
func readCoveredCases(t *testing.T) (cases []coveredCase) {
	t.Helper()
	files, err := filepath.Glob("testdata/cases/*.yaml")
	check(t, err)
	ports := make(map[string]int)
	for _, name := range slices.Concat(plainBackends, tlsBackends, tcpBackends, []string{"dead"}) {
		ports[name] = 1
	}
	issuer := newIssuer(t)
	for _, path := range files {
		for _, g := range readGroups(t, path, &backends{ports: ports}, issuer, "/certs") {
			var mesh, networks map[string]any
			check(t, yaml.Unmarshal(g.Mesh, &mesh))
			check(t, yaml.Unmarshal(g.Networks, &networks))
			for _, c := range g.cases {
				found := coveredCase{name: g.Name + "/" + c.Name, captured: g.Proxy.Capture != ""}
				for _, d := range g.documents {
					if d.of == c.Name {
						found.documents = append(found.documents, d)
					}
				}
				if len(mesh) > 0 {
					found.documents = append(found.documents, document{kind: "MeshConfig", body: map[string]any{"spec": mesh}})
				}
				if len(networks) > 0 {
					found.documents = append(found.documents, document{kind: "MeshNetworks", body: map[string]any{"spec": map[string]any{"networks": networks}}})
				}
				cases = append(cases, found)
			}
		}
	}
	return cases
}

// has reports whether a document of a kind has a path, with a value if one is given.
func (c *coveredCase) has(kind, path, value string) bool {
	return slices.ContainsFunc(c.documents, func(d document) bool {
		content := d.body["spec"]
		if d.core {
			content = d.body
		}
		return d.kind == kind && occurs(content, strings.Split(path, "."), value)
	})
}

// supportedFields returns the fields with the state yes, each as kind and path.
func supportedFields(t *testing.T) (fields []string) {
	t.Helper()
	text, err := os.ReadFile(fieldsFile)
	check(t, err)
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) > 2 && words[2] == "yes" && slices.Contains(coveredKinds, words[0]) {
			fields = append(fields, words[0]+" "+words[1])
		}
	}
	if len(fields) == 0 {
		t.Fatalf("%s has no supported fields", fieldsFile)
	}
	return fields
}

// readUncovered returns the reasons why fields need not occur in two cases.
func readUncovered(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("uncovered.txt")
	check(t, err)
	reasons := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(words) == 3 {
			reasons[words[0]+" "+words[1]] = words[2]
		} else if words[0] != "" {
			t.Errorf("uncovered.txt: %q has no reason", line)
		}
	}
	return reasons
}

// occurs reports whether a value has a path: name, name[] for each of a list, or name{} for each of a
// map. If a prefix is given, what is at the path must begin with it.
func occurs(value any, path []string, prefix string) bool {
	if len(path) == 0 {
		return prefix == "" || strings.HasPrefix(fmt.Sprint(value), prefix)
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
	has := func(v any) bool { return occurs(v, path[1:], prefix) }
	switch {
	case strings.HasSuffix(path[0], "[]"):
		list, _ := below.([]any)
		return slices.ContainsFunc(list, has)
	case strings.HasSuffix(path[0], "{}"):
		entries, _ := below.(map[string]any)
		return slices.ContainsFunc(slices.Collect(maps.Values(entries)), has)
	}
	return has(below)
}
