package config

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// unmarshal decodes a message. As in Istio, durations may have the units of Go (1h30m), which JSON of
// protobuf does not know.
func unmarshal(node *yamlproto.Node, m proto.Message) error {
	durations := make(map[*yamlproto.Node]string)
	findDurations(node, m.ProtoReflect().Descriptor(), durations)
	return node.UnmarshalWith(m, durations)
}

// durationName is the name of the message that is a duration.
var durationName = (*durationpb.Duration)(nil).ProtoReflect().Descriptor().FullName()

// findDurations adds the durations in a message with their texts in seconds.
func findDurations(node *yamlproto.Node, m protoreflect.MessageDescriptor, durations map[*yamlproto.Node]string) {
	if m.FullName() == durationName {
		text, _ := node.Text()
		if d, err := time.ParseDuration(text); err == nil {
			sign := ""
			if d < 0 {
				sign = "-"
			}
			durations[node] = fmt.Sprintf("%s%d.%09ds", sign, d.Abs()/time.Second, d.Abs()%time.Second)
		}
		return
	}
	if isWellKnown(m) {
		return
	}
	for _, key := range node.Keys() {
		f := m.Fields().ByJSONName(key)
		if f == nil {
			f = m.Fields().ByTextName(key)
		}
		if f == nil {
			continue
		}
		value := node.Get(key)
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			for _, key := range value.Keys() {
				findDurations(value.Get(key), f.MapValue().Message(), durations)
			}
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for _, element := range value.Elements() {
				findDurations(element, f.Message(), durations)
			}
		default:
			findDurations(value, f.Message(), durations)
		}
	}
}
