package file

import (
	"errors"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

func TestBadFileIsNamedWithLineAndField(t *testing.T) {
	const future = "type.googleapis.com/example.of.the.Future"
	const carry = ": write it as a DiscoveryResponse in a .pb file, which can carry any type"
	listener := `resources:
- "@type": ` + xds.ListenerType + `
  name: good
- "@type": ` + xds.ListenerType + `
  name: l
  filter_chains:
  - filters:
    - name: hcm
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: s
`
	wire := func(m proto.Message) string {
		raw, err := proto.Marshal(m)
		check(t, err)
		return string(raw)
	}
	for name, test := range map[string]struct{ file, content, want string }{
		"an unknown field deep in an Any": {
			"a.yaml", listener + "        bogus: 1\n",
			`a.yaml:12: field resources[1].filter_chains[0].filters[0].typed_config.bogus: unknown field "bogus"`,
		},
		"a value of the wrong kind": {
			"a.yaml", listener + "        use_remote_address: sometimes\n",
			`a.yaml:12: field resources[1].filter_chains[0].filters[0].typed_config.use_remote_address: must be a boolean (true or false), and is a string`,
		},
		"an unknown enumerator in a later document": {
			"a.yaml", cluster("a") + "---\n" + cluster("b") + "type: EDDS\n",
			`a.yaml:8: field type: "EDDS" is no value of this field: want one of STATIC, STRICT_DNS, LOGICAL_DNS, EDS, ORIGINAL_DST, did you mean EDS?`,
		},
		"a number where a string belongs": {
			"a.yaml", "\"@type\": " + xds.ClusterType + "\nname: 1\n",
			`a.yaml:2: field name: must be a string, and is a number: put it into quotes`,
		},
		"a key twice": {
			"a.yaml", cluster("a") + "name: b\n",
			`a.yaml:4: field name: duplicate field "name": first on line 2`,
		},
		"an unknown field of the response": {
			"a.json", "{\n  \"resources\": [],\n  \"versionInf\": \"1\"\n}",
			`a.json:3: field versionInf: unknown field "versionInf"`,
		},
		"an unknown field of a resource in JSON": {
			"a.json", "{\"resources\": [\n{\"@type\": \"" + xds.ClusterType + "\",\n\"name\": \"a\",\n\"lb_polcy\": \"MAGLEV\"}]}",
			`a.json:4: field resources[0].lb_polcy: unknown field "lb_polcy"`,
		},
		"an unknown type in YAML": {
			"a.yaml", cluster("a") + "---\n\"@type\": " + future + "\nname: x\n",
			`a.yaml:5: field @type: type "` + future + `" is not known to this build and cannot be read from YAML` + carry,
		},
		"an unknown type inside a resource in JSON": {
			"a.json", "{\"@type\": \"" + xds.ExtensionConfigType + "\", \"name\": \"e\",\n\"typedConfig\": {\n\"@type\": \"" + future + "\"}}",
			`a.json:3: field typedConfig.@type: type "` + future + `" is not known to this build and cannot be read from JSON` + carry,
		},
		"an unknown type in text": {
			"a.txtpb", "\n[" + future + "] { name: \"x\" }",
			`a.txtpb:2: type "` + future + `" is not known to this build and cannot be read from text` + carry,
		},
		"neither shape": {
			"a.yaml", "# comment\nname: a\n",
			`a.yaml:2: want a resource, which has "@type", or a mapping with a list of "resources"`,
		},
		"a list at the top": {
			"a.json", "[]",
			`a.json:1: want a resource, which has "@type", or a mapping with a list of "resources"`,
		},
		"a resource without a name": {
			"a.yaml", "resources:\n- \"@type\": " + xds.ClusterType + "\n  connect_timeout: 1s\n",
			`a.yaml:2: field resources[0]: CDS resource: resource has no name: its name (of endpoints, cluster_name) is missing or empty`,
		},
		"a resource twice": {
			"a.yaml", cluster("a") + "---\n" + cluster("a"),
			`a.yaml:5: CDS "a" is in this file twice: first on line 1`,
		},
		"a resource of another type than the response": {
			"a.yaml", "type_url: " + xds.RouteType + "\nresources:\n- {\"@type\": " + xds.ClusterType + ", name: a}\n",
			`a.yaml:3: field resources[0]: resource of type "` + xds.ClusterType + `" in a response of type "` + xds.RouteType + `"`,
		},
		"a tab in YAML": {
			"a.yaml", "resources:\n\t- a\n",
			"a.yaml:2: found character that cannot start any token",
		},
		"a colon too many in YAML": {
			"a.yaml", "resources:\n- name: a: b\n",
			"a.yaml:2: mapping values are not allowed in this context",
		},
		"an open bracket in YAML": {
			"a.yaml", "version_info: a\nresources: [\n- a\n",
			"a.yaml:3: did not find expected node content",
		},
		"an empty file in YAML":               {"a.yaml", "", "a.yaml: the file is empty, or holds comments only"},
		"an empty file with the other ending": {"a.yml", " \n\n", "a.yml: the file is empty, or holds comments only"},
		"only comments in YAML":               {"a.yaml", "# nothing\n---\n# yet\n", "a.yaml: the file is empty, or holds comments only"},
		"only empty documents in YAML":        {"a.yaml", "---\nnull\n---\n", "a.yaml: the file is empty, or holds comments only"},
		"an empty file in JSON":               {"a.json", "", "a.json: the file is empty, or holds comments only"},
		"an empty file in binary":             {"a.pb", "", "a.pb: the file is empty, or holds comments only"},
		"an empty file in text":               {"a.txtpb", "", "a.txtpb: the file is empty, or holds comments only"},
		"only comments in text":               {"a.txtpb", "# nothing\n\n  # yet\n", "a.txtpb: the file is empty, or holds comments only"},
		"an open list in YAML": {
			"a.yaml", "version_info: a\nresources: [a, b\nother: c\n",
			"a.yaml:2: did not find expected ',' or ']'",
		},
		"an unknown alias in YAML": {
			"a.yaml", "resources: *there\n",
			"a.yaml:1: unknown anchor (its name is not shown: a text that begins with * must be in quotes, and may be a password)",
		},
		"an alias of itself in YAML": {
			"a.yaml", "resources: &a\n- *a\n",
			"a.yaml:1: nested deeper than 500, or an alias that contains itself",
		},
		"a mapping as a key in YAML": {
			"a.yaml", "resources:\n- {a: b}: c\n",
			"a.yaml:2: a key must be a plain value",
		},
		"a bad merge key in YAML": {
			"a.yaml", "resources:\n- <<: 1\n",
			"a.yaml:2: a merge key wants a mapping or a list of mappings",
		},
		"not UTF-8": {
			"a.yaml", "resources:\n- \xff\n",
			"a.yaml:2: not UTF-8 text",
		},
		"a comma too many in JSON": {
			"a.json", "{\n\"resources\": [],\n}",
			"a.json:3: invalid character '}'",
		},
		"an early end of JSON": {
			"a.json", "{\n\"resources\": [\n",
			"a.json:3: the document ends early",
		},
		"two documents in JSON": {
			"a.json", "{}\n{}",
			`a.json:2: more after the end of the document; several resources go into a list under "resources"`,
		},
		"an unknown field in text": {
			"a.txtpb", "version_info: \"1\"\n\nbogus: 1\n",
			`a.txtpb:3: unknown field: bogus`,
		},
		"an unknown field of an Any in text": {
			"a.txtpb", "[" + xds.ClusterType + "] {\n  name: \"a\"\n  bogus: 1\n}\n",
			`a.txtpb:3: unknown field: bogus`,
		},
		"binary that is cut off": {
			"a.pb", wire(&discoveryv3.DiscoveryResponse{VersionInfo: "a long version"})[:5],
			"a.pb: no DiscoveryResponse in wire form: proto:",
		},
		"a bare resource in binary": {
			"a.pb", wire(xdstest.Cluster("a", "")),
			"a.pb: no DiscoveryResponse in wire form: it has fields that a DiscoveryResponse has not",
		},
		"a wrapper without a body in binary": {
			"a.pb", wire(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{xdstest.Pack(&discoveryv3.Resource{Name: "a"})}}),
			"a.pb: field resources[0]: resource without a type: neither it nor its response has a type URL",
		},
		"a heartbeat in binary": {
			"a.pb", wire(&discoveryv3.DiscoveryResponse{TypeUrl: xds.ClusterType, Resources: []*anypb.Any{xdstest.Pack(&discoveryv3.Resource{Name: "a"})}}),
			`a.pb: field resources[0]: CDS "a": resource has no body`,
		},
		"a resource twice in binary": {
			"a.pb", wire(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{xdstest.Pack(xdstest.CLA("a")), xdstest.Pack(xdstest.CLA("a"))}}),
			`a.pb: field resources[1]: EDS "a" is in this file twice: first as resources[0]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(test.file, []byte(test.content), time.Now())
			var at *ParseError
			if !errors.As(err, &at) {
				t.Fatalf("got %v, want a ParseError", err)
			}
			if !strings.HasPrefix(err.Error(), test.want) {
				t.Fatalf("got  %s\nwant %s", err, test.want)
			}
		})
	}
}

// A file with an empty list of resources is valid.
func TestAFileMayHaveAnEmptyListOfResources(t *testing.T) {
	wire, err := proto.Marshal(&discoveryv3.DiscoveryResponse{TypeUrl: xds.ClusterType})
	check(t, err)
	for name, content := range map[string]string{
		"a.yaml": "resources: []\n", "b.yaml": "# none\nresources:\n", "c.json": `{"resources": []}`,
		"d.txtpb": "type_url: '" + xds.ClusterType + "'\n", "e.pb": string(wire),
	} {
		if entries, err := parse(name, []byte(content), time.Now()); err != nil || len(entries) > 0 {
			t.Errorf("%s: %v, %v", name, entries, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	names := []string{"a.yaml", "a.json", "a.pb", "a.txtpb"}
	for i, seed := range []string{
		cluster("a") + "---\nresources: [&x {\"@type\": " + xds.RouteType + ", name: r}]\n",
		`{"resources": [{"@type": "` + xds.ClusterType + `", "name": "a"}]}`,
		"",
		"resources { [" + xds.ClusterType + "] { name: \"a\" } }",
	} {
		f.Add(uint8(i), []byte(seed))
	}
	f.Fuzz(func(t *testing.T, format uint8, data []byte) {
		name := names[int(format)%len(names)]
		entries, err := parse(name, data, time.Unix(0, 0))
		if err != nil {
			var at *ParseError
			if !errors.As(err, &at) || at.File != name || at.Line < 0 || at.Line > 2+strings.Count(string(data), "\n")+strings.Count(string(data), "\r") {
				t.Fatalf("an error that says no place: %#v", err)
			}
			return
		}
		seen := make(map[key]bool)
		for _, e := range entries {
			k := key{e.resource.Type, e.resource.Name}
			if e.resource.Name == "" || e.resource.Version == "" || seen[k] {
				t.Fatalf("a resource without name or version, or twice: %+v", e.resource)
			}
			seen[k] = true
		}
	})
}
