package yamlproto

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
)

// one returns the JSON of the only document in a text, without white space.
func one(t *testing.T, text string, format Format) string {
	t.Helper()
	documents, err := Read([]byte(text), format)
	if err != nil || len(documents) != 1 {
		t.Fatalf("%d documents, %v", len(documents), err)
	}
	return strings.ReplaceAll(string(documents[0].JSON()), "\n", "")
}

func TestYAMLIsReadAsWhatItMeans(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"numbers", "[1, -1, 0x10, 0o17, 1_000, 1.5, 1e3, 18446744073709551615]", "[1,-1,16,15,1000,1.5,1000,18446744073709551615]"},
		{"numbers that JSON does not have", "[.inf, -.inf, .nan]", `["Infinity","-Infinity","NaN"]`},
		{"booleans and null", "[true, False, ~, null, ]", "[true,false,null,null]"},
		{"words that are booleans in YAML 1.1", "[yes, NO, y, Off]", `["yes","NO","y","Off"]`},
		{"text", "[a, '1', \"tr\\u00fce\", !!str 1, <&>]", "[\"a\",\"1\",\"trüe\",\"1\",\"\\u003c\\u0026\\u003e\"]"},
		{"a date and a time", "[2026-01-01, 12:30:00]", `["2026-01-01","12:30:00"]`},
		{"base64", "!!binary |\n  aGVs\n  bG8=", `"aGVsbG8="`},
		{"keys are text", "{1: a, yes: b, ~: c, '': d}", `{"1":"a","yes":"b","~":"c","":"d"}`},
		{"an alias", "{a: &x {b: 1}, c: *x}", `{"a":{"b":1},"c":{"b":1}}`},
		{"an alias as a key", "{a: &x b, *x : c}", `{"a":"b","b":"c"}`},
		{"a merge key yields to what is there, and the first of several wins", "a: {<<: [{x: 1, y: 1}, {x: 2, z: 2}], y: 3}", `{"a":{"y":3,"x":1,"z":2}}`},
		{"a merge key in what is merged", "a: {<<: {<<: {x: 1}, y: 2}}", `{"a":{"y":2,"x":1}}`},
		{"a merge key at the top", "<<: {x: 1}", `{"x":1}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := one(t, tc.text, YAML); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestBareWordsOfYAML11AreBooleans(t *testing.T) {
	const text = "[yes, NO, y, Off, on, n, yEs, 'yes', \"no\", !!str on]"
	const want = `[true,false,true,false,true,false,"yEs","yes","no","on"]`
	if got := one(t, text, YAML11); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestJSONIsReadAsItIsWritten(t *testing.T) {
	const text = ` {"a" : [1.50, 1e999, 123456789012345678901234567890, -0, true, null, [ ], { }], "\u0061b": "\ud83d\ude42\/\ud83d", "": "," } `
	const want = `{"a":[1.50,1e999,123456789012345678901234567890,-0,true,null,[],{}],"\u0061b":"\ud83d\ude42\/\ud83d","":","}`
	if got := one(t, text, JSON); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	documents, err := Read([]byte(text), JSON)
	if err != nil || documents[0].Get("ab") == nil {
		t.Errorf("a key is known by another name than it spells: %v, %v", documents, err)
	}
}

func TestTheDocumentsOfAFileAreThoseThatSaySomething(t *testing.T) {
	for _, tc := range []struct {
		name   string
		format Format
		text   string
		lines  []int
	}{
		{"nothing", YAML, "", nil},
		{"only comments", YAML, "# a\n---\n# b\n", nil},
		{"two, and null and comments between them", YAML, "# a\na: 1\n---\nnull\n---\n# b\n---\nb: 1\n", []int{2, 8}},
		{"nothing in JSON", JSON, " \n", nil},
		{"null in JSON", JSON, "null", nil},
		{"two in JSON", JSON, "{}\n\n{}", []int{1, 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			documents, err := Read([]byte(tc.text), tc.format)
			var lines []int
			for _, d := range documents {
				lines = append(lines, d.Line)
			}
			if err != nil || fmt.Sprint(lines) != fmt.Sprint(tc.lines) {
				t.Errorf("on lines %v, want %v, %v", lines, tc.lines, err)
			}
		})
	}
}

func TestAPartOfADocumentKnowsItsPlace(t *testing.T) {
	documents, err := Read([]byte("a:\n  b:\n  - c\n  - d: 1\n"), YAML)
	if err != nil {
		t.Fatal(err)
	}
	d := documents[0]
	elements := d.Get("a").Get("b").Elements()
	if len(elements) != 2 || elements[1].Line != 4 {
		t.Fatalf("%+v", elements)
	}
	if err := elements[1].Unmarshal(&clusterv3.Cluster{}); err == nil || err.Error() != `line 4: field a.b[1].d: unknown field "d"` {
		t.Error(err)
	}
	if d.Get("x") != nil || d.Get("x").Get("y") != nil || elements[0].Get("c") != nil || d.Elements() != nil {
		t.Error("something is there that is not")
	}
	if !d.IsMapping() || d.Get("a").Get("b").IsMapping() || elements[0].IsMapping() {
		t.Error("a mapping is none, or something else is one")
	}
}

func TestWhatIsWrongIsNamedWithLineAndField(t *testing.T) {
	for _, tc := range []struct {
		name       string
		format     Format
		text, want string
	}{
		{"an unknown field", YAML, "node:\n  id: a\n  idd: b\n", `line 3: field node.idd: unknown field "idd"`},
		{"an unknown field in what an alias means", YAML, "node: {locality: &l {\n  zon: a}}\n", `line 2: field node.locality.zon: unknown field "zon", did you mean zone?`},
		{"an unknown field that is merged", YAML, "node:\n  <<: {\n  idd: b}\n", `line 3: field node.idd: unknown field "idd", did you mean id?`},
		{"an unknown field in a list at the top", YAML, "- a", `line 1: must be a mapping, and is a list`},
		{"a field in two spellings", YAML, "admin:\n  profile_path: a\n  profilePath: b", `line 3: field admin.profilePath: duplicate field "profilePath": it is there twice, in another spelling (such as with _ and in camel case)`},
		{"a value that may be a secret", YAML, "node:\n  id: 7", `line 2: field node.id: must be a string, and is a number: put it into quotes`},
		{"a text for a list", YAML, "node:\n  extensions: a", `line 2: field node.extensions: must be a list, and is a string`},
		{"a number in a list of mappings", YAML, "node:\n  extensions:\n  - 1", `line 3: field node.extensions[0]: must be a mapping, and is a number`},
		{"a list for a mapping", YAML, "node:\n  dynamic_parameters: [a]", `line 2: field node.dynamic_parameters: must be a mapping, and is a list`},
		{"a text for a value of a mapping", JSON, "{\"node\": {\"dynamicParameters\": {\n\"a\": \"b\"}}}", `line 2: field node.dynamicParameters.a: must be a mapping, and is a string`},
		{"a number for a duration", YAML, "stats_flush_interval: 5", `line 1: field stats_flush_interval: must be a string as in 1.5s, and is a number`},
		{"a list for a structure", YAML, "node:\n  metadata: []", `line 2: field node.metadata: must be a mapping, and is a list`},
		{"a text for a boolean that may be missing", YAML, "enable_dispatcher_stats: maybe", `line 1: field enable_dispatcher_stats: must be a boolean (true or false), and is a string`},
		{"a mapping for a number", YAML, "stats_flush_on_admin: {}", `line 1: field stats_flush_on_admin: must be a boolean (true or false), and is a mapping`},
		{"a fraction for a number", YAML, "admin: {address: {socket_address: {port_value: 1.5}}}", `line 1: field admin.address.socket_address.port_value: invalid value for uint32 field portValue: 1.5`},
		{"a name that an enum does not have", YAML, "admin: {address: {socket_address: {protocol: QUIC}}}", `line 1: field admin.address.socket_address.protocol: "QUIC" is no value of this field: want one of TCP, UDP`},
		{"a wrong type in a typed configuration", YAML,
			"bootstrap_extensions:\n- typed_config:\n    \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n    name: [a]",
			`line 4: field bootstrap_extensions[0].typed_config.name: must be a string, and is a list`},
		{"a tab on the first line", YAML, "\ta: b", "line 1: found character that cannot start any token: indent with spaces, not with tabs, and quote a text that begins with @, ` or %"},
		{"a colon in a text", YAML, "a:\n  b: c: d", "line 2: mapping values are not allowed in this context: the indentation is wrong, or a text that has a colon must be in quotes"},
		{"a control character", YAML, "a: b\nc: \x00d", "line 2: control character U+0000: this is no text, or it must be escaped in double quotes"},
		{"an alias of nothing", YAML, "a: b\nc: [d, *e]", "line 2: unknown anchor (its name is not shown: a text that begins with * must be in quotes, and may be a password)"},
		{"an alias of nothing that two lines name", YAML, "# *e\nc: *e", "unknown anchor (its name is not shown: a text that begins with * must be in quotes, and may be a password)"},
		{"an unknown type", JSON, "{\"bootstrap_extensions\": [{\n\"typed_config\": {\"@type\": \"x/y.Z\"}}]}", `line 2: field bootstrap_extensions[0].typed_config.@type: type "x/y.Z" is not known to this build`},
		{"a field under its two names", JSON, "{\"flags_path\": \"a\",\n\"flagsPath\": \"a\"}", `line 2: field flagsPath: duplicate field "flagsPath": it is there twice, in another spelling (such as with _ and in camel case)`},
		{"a key twice", YAML, "node: {}\nnode: {}", `line 2: field node: duplicate field "node": first on line 1`},
		{"a key twice in what nobody reads", JSON, "{\"x\": [{\"a\": 1,\n\"\\u0061\": 1}]}", `line 2: field x[0].a: duplicate field "a": first on line 1`},
		{"not UTF-8", YAML, "a: b\nc: \xff", "line 2: not UTF-8 text"},
		{"no number", YAML, "a: b\nc: !!int d", `line 2: "d" is no int`},
		{"a word that is none of JSON", JSON, "{\"a\":\n\n tru}", "line 3: invalid character '}' in literal true (expecting 'e')"},
		{"a bracket too many", JSON, "{}\n]", "line 2: invalid character ']' looking for beginning of value"},
		{"an end that is missing", JSON, "{\"a\":", "line 1: the document ends early"},
		{"an end that is missing, in YAML", YAML, "a:\n  b: [", "line 2: did not find expected node content"},
		{"nested too deeply", YAML, strings.Repeat("[", 600) + strings.Repeat("]", 600), "line 1: nested deeper than 500, or an alias that contains itself"},
		{"nested too deeply in JSON", JSON, strings.Repeat("[", 1_000_000), "line 1: nested deeper than 500"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			documents, err := Read([]byte(tc.text), tc.format)
			if err == nil {
				err = documents[0].Unmarshal(&bootstrapv3.Bootstrap{})
			}
			var at *Error
			if !errors.As(err, &at) || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
			if (at.UnknownType != "") != (tc.name == "an unknown type") {
				t.Errorf("the unknown type is %q", at.UnknownType)
			}
		})
	}
}

// A key that is tagged !ignore is the home of anchors, and no field: Envoy passes it over (TestEnvoyReadsTheseForms in package bootstrap).
func TestWhatIsTaggedIgnoreIsPassedOver(t *testing.T) {
	documents, err := Read([]byte("!ignore anchors:\n  - &name a\n  - {x: &port 1}\nname: *name\nlist: [{!ignore y: z}, *port]\n"), YAML)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(string(documents[0].JSON())), ""); got != `{"name":"a","list":[{},1]}` {
		t.Errorf("%s", got)
	}
}

func TestUnknownFieldsArePassedOverIfAskedFor(t *testing.T) {
	documents, err := Read([]byte("name: a\nx: {y: [z]}\n"), YAML)
	if err != nil {
		t.Fatal(err)
	}
	got := &clusterv3.Cluster{}
	if err := documents[0].UnmarshalKnown(got); err != nil || !proto.Equal(got, &clusterv3.Cluster{Name: "a"}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestAliasesDoNotExpandWithoutEnd(t *testing.T) {
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), i)
	}
	long := "a: &a " + strings.Repeat("x", 1<<16) + "\nb: [" + strings.Repeat("*a, ", 2000) + "]\n"
	wide := "a: &a\n"
	for i := range 2000 {
		wide += fmt.Sprintf("  k%d: 1\n", i)
	}
	wide += "b: {<<: [" + strings.Repeat("*a, ", 2000) + "]}\n"
	for name, text := range map[string]string{"of lists": bomb, "of a long text": long, "of merged mappings": wide} {
		if _, err := Read([]byte(text), YAML); err == nil || !strings.Contains(err.Error(), "expand to more than is accepted") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
