package envoyfilter

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp/syntax"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/fieldrules"
	"github.com/holdfast-xds/holdfast/internal/walk"
)

// violations returns the fields that break a rule of Envoy's API, also in messages inside an Any. With
// partial, fields that are not set break none.
func violations(m proto.Message, partial bool) (found []Problem) {
	var visit func(m protoreflect.Message, path string)
	visit = func(m protoreflect.Message, path string) {
		if packed, ok := m.Interface().(*anypb.Any); ok {
			inside, err := envoytypes.Unpack(packed)
			if err != nil {
				found = append(found, Problem{path, err.Error()})
				return
			}
			visit(inside.ProtoReflect(), path)
			return
		}
		for _, v := range fieldrules.CheckOwn(m) {
			if !partial || v.Set {
				found = append(found, Problem{joined(path, v.Path), v.Reason})
			}
		}
		for _, p := range inner(m.Interface()) {
			found = append(found, Problem{joined(path, p.Field), p.Message})
		}
		for step, child := range children(m) {
			visit(child, joined(path, step))
		}
	}
	visit(m.ProtoReflect(), "")
	return found
}

// inner returns what Envoy rejects in a message although it breaks no rule of the API: a regular expression
// that is none, a Struct that is not the message that it stands for, and a filter where filters of another kind
// are. A message that is not known to this build is left to Envoy.
func inner(m proto.Message) []Problem {
	switch m := m.(type) {
	case *matcherv3.RegexMatcher:
		if _, err := syntax.Parse(m.GetRegex(), syntax.Perl); err != nil {
			return []Problem{{"regex", "is no RE2 regular expression: " + strings.TrimPrefix(err.Error(), "error parsing regexp: ")}}
		}
	case *listenerv3.ListenerFilter:
		return wrongKind(m.GetTypedConfig(), "listener", "udp")
	case *listenerv3.Filter:
		return wrongKind(m.GetTypedConfig(), "network")
	case *managerv3.HttpFilter:
		return wrongKind(m.GetTypedConfig(), "http")
	case typedStruct:
		of, err := envoytypes.Resolver.FindMessageByURL(m.GetTypeUrl())
		if err != nil || m.GetValue() == nil {
			return nil
		}
		if err := decodeStruct(m.GetValue(), of.New().Interface()); err != nil {
			p := problemOf(err)
			return []Problem{{joined("value", p.Field), p.Message}}
		}
	}
	return nil
}

// typedStruct is TypedStruct, of either package.
type typedStruct interface {
	GetTypeUrl() string
	GetValue() *structpb.Struct
}

// typeOf returns the name of the message that a configuration is, also as a TypedStruct; "" for none.
func typeOf(config *anypb.Any) string {
	url := config.GetTypeUrl()
	if strings.HasSuffix(url, ".TypedStruct") {
		if inside, err := envoytypes.Unpack(config); err == nil {
			if of, ok := inside.(typedStruct); ok {
				url = of.GetTypeUrl()
			}
		}
	}
	return url[strings.LastIndexByte(url, '/')+1:]
}

// wrongKind says that the configuration of a filter is that of one of Envoy's own filters of another kind than those wanted.
func wrongKind(config *anypb.Any, want ...string) []Problem {
	if kind, _ := ownFilter(config); kind != "" && !slices.Contains(want, kind) {
		return []Problem{{"typed_config", fmt.Sprintf("%s is a filter of the kind %s, and here are those of the kind %s", typeOf(config), kind, want[0])}}
	}
	return nil
}

// ownFilter returns the kind and the name in the type of a configuration of one of Envoy's own filters, such as "network" and
// "rbac"; "" for any other.
func ownFilter(config *anypb.Any) (kind, name string) {
	rest, ok := strings.CutPrefix(typeOf(config), "envoy.extensions.filters.")
	parts := strings.Split(rest, ".")
	if !ok || len(parts) < 3 {
		return "", ""
	}
	return parts[0], parts[1]
}

// children yields the messages in a message with their steps, in the order of the fields.
func children(m protoreflect.Message) iter.Seq2[string, protoreflect.Message] {
	return func(yield func(string, protoreflect.Message) bool) {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			if !m.Has(f) {
				continue
			}
			name := string(f.Name())
			switch {
			case f.IsMap() && f.MapValue().Message() != nil:
				entries := m.Get(f).Map()
				byKey := make(map[string]protoreflect.Message)
				entries.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					byKey[k.String()] = v.Message()
					return true
				})
				for _, key := range slices.Sorted(maps.Keys(byKey)) {
					if !yield(name+"."+key, byKey[key]) {
						return
					}
				}
			case f.IsMap() || f.Message() == nil:
			case f.IsList():
				for j := range m.Get(f).List().Len() {
					if !yield(fmt.Sprintf("%s[%d]", name, j), m.Get(f).List().Get(j).Message()) {
						return
					}
				}
			default:
				if !yield(name, m.Get(f).Message()) {
					return
				}
			}
		}
	}
}

// fieldsOf yields the names of the fields that are set.
func fieldsOf(m proto.Message) iter.Seq[string] {
	return func(yield func(string) bool) {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if f := fields.Get(i); m.ProtoReflect().Has(f) && !yield(string(f.Name())) {
				return
			}
		}
	}
}

// valid returns an error for the first rule that a message breaks, or a message inside an Any of it.
func valid(m proto.Message) error {
	var texts []string
	for _, violation := range fieldrules.Check(m) {
		texts = append(texts, violation.Error())
	}
	if len(texts) > 0 {
		return errors.New(strings.Join(texts, "; "))
	}
	return validInside(m.ProtoReflect())
}

// validInside checks the messages inside each Any.
func validInside(m protoreflect.Message) error {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		inside, err := envoytypes.Unpack(packed)
		if err != nil {
			return err
		}
		return valid(inside)
	}
	for child := range walk.Messages(m) {
		if err := validInside(child); err != nil {
			return err
		}
	}
	return nil
}

func joined(path, step string) string {
	if path == "" {
		return step
	}
	return path + "." + step
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
