package yamlproto

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// FuzzUnmarshal shows that no file, however broken, does more than return an error that
// names a line of it, that what is read has a form in JSON, and that JSON is not changed.
func FuzzUnmarshal(f *testing.F) {
	formats := []Format{YAML, JSON, YAML11}
	const cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	f.Add(uint8(0), []byte("\"@type\": "+cluster+"\nname: a\n---\nresources: [&x {\"@type\": "+cluster+", name: r}, *x]\n"))
	f.Add(uint8(1), []byte(`{"resources": [{"@type": "`+cluster+`", "name": "a"}]}`))
	f.Add(uint8(2), []byte("a: [yes, 0x10, 1e999, .inf, !!binary YQ==]\nb: {<<: {c: d}}\n"))
	f.Fuzz(func(t *testing.T, format uint8, data []byte) {
		lines := 2 + bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + bytes.Count(data, []byte("\u0085")) + bytes.Count(data, []byte("\u2028")) + bytes.Count(data, []byte("\u2029"))
		check := func(err error) {
			var at *Error
			if err != nil && (!errors.As(err, &at) || at.Line < 0 || at.Line > lines) {
				t.Fatalf("an error that says no place: %#v", err)
			}
		}
		documents, err := Read(data, formats[int(format)%len(formats)])
		check(err)
		for _, d := range documents {
			text := d.JSON()
			if !json.Valid(text) {
				t.Fatalf("this is no JSON: %s", text)
			}
			for _, m := range []proto.Message{&discoveryv3.DiscoveryResponse{}, &anypb.Any{}, &structpb.Value{}} {
				check(d.Unmarshal(m))
				check(d.UnmarshalKnown(m))
			}
			if want := (&bytes.Buffer{}); formats[int(format)%len(formats)] == JSON && len(documents) == 1 && json.Compact(want, data) == nil {
				got := &bytes.Buffer{}
				if err := json.Compact(got, text); err != nil || got.String() != want.String() {
					t.Errorf("%s became %s, %v", want, got, err)
				}
			}
		}
	})
}
