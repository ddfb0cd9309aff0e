package walk

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"
)

// A Struct has a map of messages, and a Value in it a list of them.
func TestEveryMessageIsYieldedOnce(t *testing.T) {
	s, err := structpb.NewStruct(map[string]any{"a": []any{"x", "y"}, "b": "z"})
	if err != nil {
		t.Fatal(err)
	}
	var all func(found []string, v *structpb.Value) []string
	all = func(found []string, v *structpb.Value) []string {
		if text := v.GetStringValue(); text != "" {
			return append(found, text)
		}
		for field := range Messages(v.ProtoReflect()) {
			for item := range Messages(field) {
				found = all(found, item.Interface().(*structpb.Value))
			}
		}
		return found
	}
	var found []string
	for m := range Messages(s.ProtoReflect()) {
		found = all(found, m.Interface().(*structpb.Value))
	}
	slices.Sort(found)
	if !slices.Equal(found, []string{"x", "y", "z"}) {
		t.Errorf("found %q", found)
	}
	for range Messages(s.ProtoReflect()) {
		break // may end early
	}
}
