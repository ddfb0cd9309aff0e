package istio

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"istio.io/istio/pilot/pkg/config/kube/crd"
	"istio.io/istio/pkg/config/mesh"
	"sigs.k8s.io/yaml"
)

// differencesFile lists what only one of the two rejects, each with the reason.
const differencesFile = "testdata/validation_differences.txt"

// mutation is a document of which one thing is changed.
type mutation struct {
	// name is the kind, the path without indices, and what is there now.
	name, kind     string
	spec, document string
}

// rejectedByIstiod returns why istiod rejects a document; nil if it does not.
func (m *mutation) rejectedByIstiod() error {
	switch m.kind {
	case "MeshConfig":
		_, err := mesh.ApplyMeshConfigDefaults(m.spec)
		return err
	case "MeshNetworks":
		_, err := mesh.ParseMeshNetworks(m.spec)
		return err
	}
	_, _, err := crd.ParseInputs(m.document)
	return err
}

// Documents in which one field has another value, is missing or is there twice, are rejected by both or
// by neither, but for those in differencesFile.
func TestBothRejectTheSameDocuments(t *testing.T) {
	all := readMutations(t)
	rejected := rejectedByHoldfast(t, all)
	reasons := readDifferences(t)
	found := make(map[string]bool)
	both := 0
	for i, m := range all {
		err := m.rejectedByIstiod()
		istiod, holdfast := err != nil, rejected[i] != ""
		if istiod && holdfast {
			both++
		}
		if istiod == holdfast {
			continue
		}
		who, why := "holdfast-mesh", rejected[i]
		if istiod {
			who, why = "istiod", fmt.Sprint(err)
		}
		pattern := matching(reasons, m.name+" "+who)
		if pattern == "" {
			t.Errorf("%s %s: %s", m.name, who, why)
		}
		found[pattern] = true
	}
	for pattern := range reasons {
		if !found[pattern] {
			t.Errorf("%s: no document differs: remove %q", differencesFile, pattern)
		}
	}
	t.Logf("%d documents, %d of them rejected by both", len(all), both)
	if len(all) < 1000 || both < 300 {
		t.Errorf("too few: %d documents, %d of them rejected by both", len(all), both)
	}
}

// matching returns the pattern that a difference has: each * stands for any text.
func matching(reasons map[string]string, name string) string {
	for _, pattern := range slices.Sorted(maps.Keys(reasons)) {
		expr := "^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$"
		if regexp.MustCompile(expr).MatchString(name) {
			return pattern
		}
	}
	return ""
}

// readDifferences reads lines of a pattern, ": " and the reason.
func readDifferences(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(differencesFile)
	check(t, err)
	reasons := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, reason, ok := strings.Cut(line, " :: ")
		if !ok {
			t.Errorf("%s: %q has no reason", differencesFile, line)
		}
		reasons[pattern] = reason
	}
	return reasons
}

// readMutations reads the valid documents, each as it is and with every change.
func readMutations(t *testing.T) (all []mutation) {
	t.Helper()
	text, err := os.ReadFile("testdata/validation.yaml")
	check(t, err)
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		var body map[string]any
		check(t, yaml.Unmarshal([]byte(part), &body))
		kind := body["kind"].(string)
		add := func(what string) {
			spec, err := json.Marshal(body["spec"])
			check(t, err)
			name := "m" + strconv.Itoa(len(all))
			d := map[string]any{"apiVersion": apiVersions[kind], "kind": kind, "metadata": map[string]any{"name": name, "namespace": name}, "spec": body["spec"]}
			if key := map[string]string{"MeshConfig": "mesh", "MeshNetworks": "meshNetworks"}[kind]; key != "" {
				d = map[string]any{
					"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "istio", "namespace": "istio-system"},
					"data": map[string]any{key: string(spec)},
				}
			}
			document, err := json.Marshal(d)
			check(t, err)
			all = append(all, mutation{name: kind + " " + what, kind: kind, spec: string(spec), document: string(document)})
		}
		add("as it is")
		mutate(body["spec"], "", func(v any) { body["spec"] = v }, add)
	}
	return all
}

// mutate sets each value below a value to others, one after the other, calls add for each, and sets it
// back.
func mutate(value any, path string, set func(any), add func(what string)) {
	try := func(v any, what string) {
		set(v)
		add(path + "=" + what)
		set(value)
	}
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			below := v[key]
			at := strings.TrimPrefix(path+"."+key, ".")
			delete(v, key)
			add(at + " missing")
			v[key] = below
			if other, ok := others[key]; ok && v[other.key] == nil {
				v[other.key] = other.value
				add(at + " with " + other.key)
				delete(v, other.key)
			}
			mutate(below, at, func(n any) { v[key] = n }, add)
		}
		try(map[string]any{}, "{}")
	case []any:
		for i := range v {
			mutate(v[i], path+"[]", func(n any) { v[i] = n }, add)
		}
		try([]any{}, "[]")
		try(append(slices.Clone(v), v[0]), "first twice")
	case string:
		for _, text := range stringsFor(v) {
			try(text, strings.Replace(strconv.Quote(text), strings.Repeat("a", 300), "300 times a", 1))
		}
	case float64:
		for _, n := range []float64{-1, 0, 1, 101, 70000, 5e9} {
			try(n, strconv.FormatFloat(n, 'f', -1, 64))
		}
	}
}

// others are fields that cannot stand beside a field, or hardly make sense beside it.
var others = map[string]struct {
	key   string
	value any
}{
	"exact": {"prefix", "/p"}, "prefix": {"regex", "r.*"}, "regex": {"exact", "e"},
	"simple": {"consistentHash", map[string]any{"httpHeaderName": "x-h"}}, "httpHeaderName": {"useSourceIp", true},
	"httpCookie": {"httpQueryParameterName", "q"}, "ringHash": {"maglev", map[string]any{"tableSize": 101}}, "minimumRingSize": {"ringHash", map[string]any{"minimumRingSize": 5}},
	"distribute": {"failover", []any{map[string]any{"from": "a", "to": "b"}}}, "failover": {"failoverPriority", []any{"x"}},
	"warmup": {"warmupDurationSecs", "5s"}, "warmupDurationSecs": {"warmup", map[string]any{"duration": "5s"}},
	"proxyProtocol": {"tls", map[string]any{"mode": "SIMPLE"}}, "tunnel": {"proxyProtocol", map[string]any{"version": "V1"}},
	"redirect": {"route", []any{map[string]any{"destination": map[string]any{"host": "a.test"}}}}, "directResponse": {"redirect", map[string]any{"uri": "/a"}},
	"delegate": {"route", []any{map[string]any{"destination": map[string]any{"host": "a.test"}}}}, "mirror": {"mirrors", []any{map[string]any{"destination": map[string]any{"host": "a.test"}}}},
	"httpStatus": {"grpcStatus", "UNAVAILABLE"}, "fixedDelay": {"exponentialDelay", "5s"}, "uriRegexRewrite": {"uri", "/a"}, "scheme": {"derivePort", "FROM_REQUEST_PORT"},
	"tcp":       {"tls", []any{map[string]any{"match": []any{map[string]any{"sniHosts": []any{"a.test"}}}, "route": []any{map[string]any{"destination": map[string]any{"host": "a.test"}}}}}},
	"endpoints": {"workloadSelector", map[string]any{"labels": map[string]any{"a": "b"}}}, "credentialName": {"caCertificates", "/ca.pem"}, "serverCertificate": {"credentialName", "c"},
	"tlsCertificates": {"serverCertificate", "/s.pem"}, "httpsRedirect": {"mode", "PASSTHROUGH"}, "useClientProtocol": {"h2UpgradePolicy", "UPGRADE"}, "h2UpgradePolicy": {"useClientProtocol", true},
	"perTryTimeout": {"retryIgnorePreviousHosts", false}, "hosts": {"unknownField", 1}, "host": {"unknownField", 1}, "address": {"unknownField", 1},
}

var (
	durationForm = regexp.MustCompile(`^[0-9]+(ms|s|h)$`)
	enumForm     = regexp.MustCompile(`^[A-Z][A-Z0-9_]+$`)
)

// stringsFor returns other values for a string, by what it looks like.
func stringsFor(v string) []string {
	switch {
	case durationForm.MatchString(v):
		return []string{"", "-1s", "0s", "1ns", "1ms", "1500us", "999h", "soon", "5"}
	case enumForm.MatchString(v):
		return []string{"", "BOGUS", strings.ToLower(v)}
	}
	more := []string{}
	if strings.Contains(v, "{*}") { // a template of a path
		more = []string{"{**}", "a/{*}", "//a/{*}", "/a/{*}//", "/a//{*}", "/a/{*}/", "/{**}/{*}", "/{*}/{**}/a"}
	}
	return append(more, "", " ", "*", "*.*", "a b", "-a-", "(", "a..b", "A_B", "/", "x/y", "*/x", "1.2.3", "10.0.0.1", "10.0.0.0/33", "::1", "unix:///a", "unix://a", "\u0000", "ü", strings.Repeat("a", 300))
}

// rejectedByHoldfast returns why holdfast-mesh validate rejects each document; "" if it does not.
func rejectedByHoldfast(t *testing.T, all []mutation) []string {
	t.Helper()
	dir := t.TempDir()
	for i, m := range all {
		check(t, os.WriteFile(filepath.Join(dir, strconv.Itoa(i)+".json"), []byte(m.document), 0o600))
	}
	p := start(t, "holdfast-mesh validate", filepath.Join(dir, "log"), holdfastBinary, "validate", dir)
	<-p.exited
	log, err := os.ReadFile(p.log)
	check(t, err)
	out := make([]string, len(all))
	line := regexp.MustCompile(`/([0-9]+)\.json(?::[0-9]+)?: (.*)$`)
	for text := range strings.Lines(string(log)) {
		m := line.FindStringSubmatch(strings.TrimSpace(text))
		// There is one MeshConfig, and the documents for it are in competition.
		if m != nil && !strings.Contains(m[2], "warning: ") && !strings.HasSuffix(m[2], "that document is used, and this is not") {
			i, err := strconv.Atoi(m[1])
			check(t, err)
			out[i] += m[2] + "; "
		}
	}
	return out
}
