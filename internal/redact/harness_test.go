package redact

import (
	"iter"
	"os"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// everyType yields every type of message in Envoy's API, as it is found: linked or not.
func everyType(t *testing.T) iter.Seq[protoreflect.MessageType] {
	t.Helper()
	raw, err := os.ReadFile("../envoytypes/descriptors.binpb")
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(raw, &set); err != nil {
		t.Fatal(err)
	}
	return func(yield func(protoreflect.MessageType) bool) {
		for _, file := range set.GetFile() {
			if !eachOf(t, protoreflect.FullName(file.GetPackage()), file.GetMessageType(), yield) {
				return
			}
		}
	}
}

func eachOf(t *testing.T, parent protoreflect.FullName, messages []*descriptorpb.DescriptorProto, yield func(protoreflect.MessageType) bool) bool {
	for _, m := range messages {
		if m.GetOptions().GetMapEntry() {
			continue // part of its map
		}
		name := parent.Append(protoreflect.Name(m.GetName()))
		found, err := envoytypes.Resolver.FindMessageByName(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !yield(found) || !eachOf(t, name, m.GetNestedType(), yield) {
			return false
		}
	}
	return true
}
