package envoytypes_test

import (
	"errors"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

func TestThePlaceOfAnErrorIsTakenOutOfIt(t *testing.T) {
	for _, tc := range []struct {
		text, rest   string
		line, column int
	}{
		{"proto: (line 3:5): unknown field \"x\"", "unknown field \"x\"", 3, 5},
		{"proto:\u00a0(line 3:5): unknown field \"x\"", "unknown field \"x\"", 3, 5},
		{"proto: syntax error (line 12:1): unexpected token", "syntax error: unexpected token", 12, 1},
		{"proto: no place", "no place", 0, 0},
		{"(line 3): x", "(line 3): x", 0, 0},
		{"(line 3:5", "(line 3:5", 0, 0},
		{"", "", 0, 0},
	} {
		line, column, rest := envoytypes.Position(errors.New(tc.text))
		if line != tc.line || column != tc.column || rest != tc.rest {
			t.Errorf("%q: line %d, column %d, %q", tc.text, line, column, rest)
		}
	}
}

// A value may be a key that stands where it does not belong.
func TestTheErrorIsSaidWithoutTheValue(t *testing.T) {
	const planted = "PLANTED-0123"
	for text, want := range map[string]string{
		`{"private_key": "` + planted + `"}`:                      "syntax error: unexpected token (the value is not shown)",
		`{"private_key": {"inline_bytes": "` + planted + `%"}}`:   "invalid value for bytes field inlineBytes (the value is not shown)",
		`{"private_key": {"inline_string": ["` + planted + `"]}}`: "invalid value for string field inlineString: [",
		`{"private_key": {"inline_string": 8123456789}}`:          "invalid value for string field inlineString (the value is not shown)",
		`{"private_key": {"inline_string": ` + planted + `}}`:     "syntax error: invalid value (the value is not shown)",
		`{"private_key": {"inline_string": "\q` + planted + `"}}`: `syntax error: invalid escape code "\\q" in string`,
	} {
		var certificate tlsv3.TlsCertificate
		err := protojson.Unmarshal([]byte(text), &certificate)
		if err == nil {
			t.Errorf("%s is valid", text)
			continue
		}
		if _, _, said := envoytypes.Position(err); said != want {
			t.Errorf("%s: %s", text, said)
		}
	}
	for text, want := range map[string]string{
		`inline_string: ` + planted:            "syntax error: invalid scalar value (the value is not shown)",
		`"` + planted + `"`:                    "syntax error: invalid field name",
		`watched_directory: "` + planted + `"`: "syntax error: unexpected token (the value is not shown)",
	} {
		var source corev3.DataSource
		err := prototext.Unmarshal([]byte(text), &source)
		if err == nil {
			t.Errorf("%s is valid", text)
			continue
		}
		if _, _, said := envoytypes.Position(err); strings.Contains(said, planted) || !strings.HasPrefix(said, want) {
			t.Errorf("%s: %s", text, said)
		}
	}
	_, _, said := envoytypes.Position(errors.New(`proto: (line 1:2): invalid value for enum field type: "STATICC"`))
	if said != `invalid value for enum field type: "STATICC"` {
		t.Errorf("a value that is no text is not shown: %s", said)
	}
}

func TestTheTypeThatWasLackedIsRemembered(t *testing.T) {
	types := envoytypes.NewLookup()
	var body anypb.Any
	if err := (protojson.UnmarshalOptions{Resolver: types}).Unmarshal([]byte(`{"@type": "x/vendor.Thing"}`), &body); err == nil || types.Missing != "x/vendor.Thing" {
		t.Errorf("%v, missing %q", err, types.Missing)
	}
	types = envoytypes.NewLookup()
	if err := (prototext.UnmarshalOptions{Resolver: types}).Unmarshal([]byte(`[x/vendor.Thing] {}`), &body); err == nil || types.Missing != "x/vendor.Thing" {
		t.Errorf("%v, missing %q", err, types.Missing)
	}
	types = envoytypes.NewLookup()
	if err := (protojson.UnmarshalOptions{Resolver: types}).Unmarshal([]byte(`{"@type": "x/envoy.extensions.filters.http.lua.v3.Lua"}`), &body); err != nil || types.Missing != "" {
		t.Errorf("%v, missing %q", err, types.Missing)
	}
}
