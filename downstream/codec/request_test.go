package codec

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// mark stands in a message for bytes that are not UTF-8, of the same length.
const mark = "MARKMARK"

// notUTF8 encodes a message, and puts bytes that are not UTF-8 in the place of each mark.
func notUTF8(t testing.TB, m proto.Message) []byte {
	t.Helper()
	wire, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(wire, []byte(mark), []byte("caf\xe9\xff\xfe\x80\xc0"))
}

func decode(wire []byte, into proto.Message) (*Request, error) {
	r := &Request{Message: into}
	return r, New().Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, r)
}

// What strangers can put into a request of Envoy ends nothing: names that are not UTF-8 are left out and told, the others stay.
func TestNamesThatAreNotUTF8AreLeftOut(t *testing.T) {
	const strange = "caf\xe9\xff\xfe\x80\xc0"
	metadata, err := structpb.NewStruct(map[string]any{"a": mark, mark: "b", "c": map[string]any{"d": []any{mark, "e"}}})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: "n-" + mark, Metadata: metadata, ClientFeatures: []string{"f", mark}}
	delta := &discoveryv3.DeltaDiscoveryRequest{}
	r, err := decode(notUTF8(t, &discoveryv3.DeltaDiscoveryRequest{
		Node: node, TypeUrl: "t", ResponseNonce: "1", ResourceNamesSubscribe: []string{"a", mark, "b"}, ResourceNamesUnsubscribe: []string{mark + "x", "c"},
		InitialResourceVersions: map[string]string{"a": "1", mark + "y": "2"}, ErrorDetail: &status.Status{Code: 3, Message: "rejected: " + mark},
	}), delta)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(r.Unreadable)
	if want := []string{strange, strange + "x", strange + "y"}; !slices.Equal(r.Unreadable, want) {
		t.Errorf("unreadable %q, want %q", r.Unreadable, want)
	}
	if delta.TypeUrl != "t" || delta.ResponseNonce != "1" || !slices.Equal(delta.ResourceNamesSubscribe, []string{"a", "b"}) || !slices.Equal(delta.ResourceNamesUnsubscribe, []string{"c"}) ||
		len(delta.InitialResourceVersions) != 1 || delta.ErrorDetail.Message != "rejected: caf\uFFFD" || delta.Node.Id != "n-caf\uFFFD" || !slices.Equal(delta.Node.ClientFeatures, []string{"f"}) {
		t.Errorf("%v", delta)
	}
	if got := delta.Node.Metadata.AsMap(); got["a"] != "caf\uFFFD" || len(got) != 2 {
		t.Errorf("metadata %v", got)
	}

	sotw := &discoveryv3.DiscoveryRequest{}
	r, err = decode(notUTF8(t, &discoveryv3.DiscoveryRequest{TypeUrl: "t", ResourceNames: []string{mark, "a", mark}}), sotw)
	if err != nil || len(r.Unreadable) != 2 || !slices.Equal(sotw.ResourceNames, []string{"a"}) {
		t.Errorf("%v, %q, %v", sotw, r.Unreadable, err)
	}
}

// What is wrong otherwise is an error as ever, and what is right costs nothing.
func TestOtherRequestsAreDecodedAsEver(t *testing.T) {
	for _, wire := range [][]byte{{0xff, 0xff, 0xff}, {0x0a, 0x7f, 'x'}, append([]byte{0x1a, 1, 0xff}, 0x0a, 0x7f)} {
		if _, err := decode(wire, &discoveryv3.DiscoveryRequest{}); err == nil {
			t.Errorf("%x is decoded", wire)
		}
	}
	m := &discoveryv3.DiscoveryRequest{}
	r, err := decode(notUTF8(t, &discoveryv3.DiscoveryRequest{TypeUrl: "t", ResourceNames: []string{"café", "\x00", "*"}}), m)
	if err != nil || len(r.Unreadable) > 0 || len(m.ResourceNames) != 3 {
		t.Errorf("%v, %q, %v", m, r.Unreadable, err)
	}
}

// Any bytes: what protobuf decodes is decoded the same, and no text that is not UTF-8 comes through.
func FuzzRequest(f *testing.F) {
	metadata, _ := structpb.NewStruct(map[string]any{mark: mark})
	f.Add(notUTF8(f, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: mark, Metadata: metadata}, ResourceNamesSubscribe: []string{mark, "*", "\x00"}, InitialResourceVersions: map[string]string{mark: mark}}))
	f.Add(notUTF8(f, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "t", ErrorDetail: &status.Status{Message: mark}}))
	f.Add(protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), []byte(strings.Repeat("\xff", 300))))
	f.Add([]byte{0x0b, 0x0c, 0x1a, 1, 0xff})
	f.Fuzz(func(t *testing.T, wire []byte) {
		for _, m := range []proto.Message{&discoveryv3.DeltaDiscoveryRequest{}, &discoveryv3.DiscoveryRequest{}} {
			plain := m.ProtoReflect().New().Interface()
			valid := proto.Unmarshal(wire, plain) == nil
			r, err := decode(wire, m)
			if valid && (err != nil || len(r.Unreadable) > 0 || !proto.Equal(plain, m)) {
				t.Errorf("%x: %v, %q\n%v\nwant\n%v", wire, err, r.Unreadable, m, plain)
			}
			if err != nil {
				continue
			}
			if _, err := proto.Marshal(m); err != nil {
				t.Errorf("%x: what was decoded cannot be encoded: %v", wire, err)
			}
			for _, name := range r.Unreadable {
				if utf8.ValidString(name) {
					t.Errorf("%x: %q is left out", wire, name)
				}
			}
		}
	})
}
