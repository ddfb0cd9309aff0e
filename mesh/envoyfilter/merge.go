package envoyfilter

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// merge merges src into dst, which must have the same type. As istiod does it: what src sets replaces
// what dst has, messages are merged field by field, the entries of a map are replaced one by one, and the
// elements of a list are added at its end; with replaceLists they replace the list. A duration is one
// value, and an Any is replaced as a whole. What has the default value of its type, such as a false or a
// BoolValue of false over a true, is not set and changes nothing.
func merge(dst, src proto.Message, replaceLists bool) {
	mergeMessages(dst.ProtoReflect(), src.ProtoReflect(), replaceLists)
}

func mergeMessages(dst, src protoreflect.Message, replaceLists bool) {
	src.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList():
			if replaceLists {
				dst.Clear(f)
			}
			mergeLists(dst.Mutable(f).List(), v.List())
		case f.IsMap():
			to := dst.Mutable(f).Map()
			v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				to.Set(key, copied(value))
				return true
			})
		case f.Message() == nil || isOneValue(f.Message()):
			dst.Set(f, copied(v))
		default:
			mergeMessages(dst.Mutable(f).Message(), v.Message(), replaceLists)
		}
		return true
	})
	if unknown := src.GetUnknown(); len(unknown) > 0 {
		dst.SetUnknown(append(slices.Clone(dst.GetUnknown()), unknown...))
	}
}

// isOneValue reports whether the fields of a message have a meaning together only.
func isOneValue(m protoreflect.MessageDescriptor) bool {
	return m.FullName() == "google.protobuf.Duration" || m.FullName() == "google.protobuf.Any"
}

func mergeLists(dst, src protoreflect.List) {
	for i := range src.Len() {
		dst.Append(copied(src.Get(i)))
	}
}

// copied returns a value that shares nothing with v. The value of a message is cloned.
func copied(v protoreflect.Value) protoreflect.Value {
	switch is := v.Interface().(type) {
	case protoreflect.Message:
		return protoreflect.ValueOfMessage(proto.Clone(is.Interface()).ProtoReflect())
	case []byte:
		return protoreflect.ValueOfBytes(slices.Clone(is))
	}
	return v
}

// mergedAny returns an Any of the message in dst with that in src merged into it. Both must have the same
// type; if one is nil, it is the other.
func mergedAny(dst, src *anypb.Any) (*anypb.Any, error) {
	switch {
	case src == nil:
		return dst, nil
	case dst == nil:
		return proto.CloneOf(src), nil
	}
	to, err := envoytypes.Unpack(dst)
	if err != nil {
		return nil, err
	}
	from, err := envoytypes.Unpack(src)
	if err != nil {
		return nil, err
	}
	if is, want := from.ProtoReflect().Descriptor(), to.ProtoReflect().Descriptor(); is != want {
		return nil, fmt.Errorf("a %s cannot be merged into a %s", is.FullName(), want.FullName())
	}
	merge(to, from, false)
	return packed(dst.GetTypeUrl(), to)
}

// packed returns a message as an Any with stable bytes.
func packed(typeURL string, m proto.Message) (*anypb.Any, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: typeURL, Value: value}, nil
}
