// Package walk goes through protobuf messages by reflection.
//
// It promises every message that is set directly in another, once, whether in a
// field, a list or a map; it decodes nothing, so that an Any is a message like any
// other. It keeps no state; all functions may be called concurrently.
package walk

import (
	"iter"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Messages yields the messages that are set in m, in no order. What the loop does to
// one of them changes m.
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
