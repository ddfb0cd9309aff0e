// Package walk iterates over protobuf messages by reflection.
//
// It promises to visit every message that is set directly in another one once, in a field, a list or a
// map. It does not decode: an Any is a message like any other. It has no state; all functions may be
// called concurrently.
package walk

import (
	"iter"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Messages yields the messages that are set in m, in no particular order. Modifying one of them
// modifies m.
func Messages(m protoreflect.Message) iter.Seq[protoreflect.Message] {
	return func(yield func(protoreflect.Message) bool) {
		m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case fd.IsMap():
				if fd.MapValue().Message() == nil {
					return true
				}
				more := true
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					more = yield(v.Message())
					return more
				})
				return more
			case fd.Message() == nil:
				return true
			case fd.IsList():
				for i := range v.List().Len() {
					if !yield(v.List().Get(i).Message()) {
						return false
					}
				}
				return true
			default:
				return yield(v.Message())
			}
		})
	}
}
