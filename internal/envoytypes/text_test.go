package envoytypes_test

import (
	"errors"
	"testing"

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
