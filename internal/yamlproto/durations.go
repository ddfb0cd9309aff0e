package yamlproto

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// UnmarshalDurations is Unmarshal for what Istio reads: with its library for JSON (jsonpb), durations may have the units of Go (50ms,
// 1h30m), which JSON of protobuf does not know, also in an Any.
func (n *Node) UnmarshalDurations(m proto.Message) error {
	durations := make(map[*Node]string)
	n.findDurations(m.ProtoReflect().Descriptor(), durations)
	return n.unmarshal(m, protojson.UnmarshalOptions{}, durations)
}

var (
	durationName = (*durationpb.Duration)(nil).ProtoReflect().Descriptor().FullName()
	anyName      = (*anypb.Any)(nil).ProtoReflect().Descriptor().FullName()
)

// findDurations adds the durations in a message with their texts in seconds.
func (n *Node) findDurations(m protoreflect.MessageDescriptor, durations map[*Node]string) {
	switch {
	case n == nil:
		return
	case m.FullName() == durationName:
		text, _ := n.Text()
		if d, err := time.ParseDuration(text); err == nil {
			sign := ""
			if d < 0 {
				sign = "-"
			}
			durations[n] = fmt.Sprintf("%s%d.%09ds", sign, d.Abs()/time.Second, d.Abs()%time.Second)
		}
		return
	case m.FullName() == anyName:
		url, _ := n.Get("@type").Text()
		inner, err := envoytypes.Resolver.FindMessageByURL(url)
		if err != nil {
			return // decoding says so
		}
		if IsWellKnown(inner.Descriptor()) {
			n = n.Get("value")
		}
		n.findDurations(inner.Descriptor(), durations)
		return
	case IsWellKnown(m):
		return
	}
	for _, key := range n.Keys() {
		f := m.Fields().ByJSONName(key)
		if f == nil {
			f = m.Fields().ByTextName(key)
		}
		if f == nil {
			continue
		}
		value := n.Get(key)
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			for _, key := range value.Keys() {
				value.Get(key).findDurations(f.MapValue().Message(), durations)
			}
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for _, element := range value.Elements() {
				element.findDurations(f.Message(), durations)
			}
		default:
			value.findDurations(f.Message(), durations)
		}
	}
}

// IsWellKnown reports whether a message is one of protobuf itself, such as a Duration, which has a JSON of its own: mostly a single value.
func IsWellKnown(m protoreflect.MessageDescriptor) bool {
	return m.ParentFile().Package() == "google.protobuf"
}
